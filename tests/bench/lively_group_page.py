"""Write a recorded hour of a group as pages of the documentation."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from tests.e2e.shown_messages import AT_ONCE

Recorded: TypeAlias = tuple[str, Sequence[tuple[str, str, Any]], Mapping[str, str]]
"""The platform, what was seen, and what was measured."""

_NAMES = {"Discord": "lively-group.md", "Telegram": "lively-group-telegram.md"}
_INTRODUCTION = """\
Three friends play a mystery every Friday: Ines runs it, Tobi brings biscuits, Mei joins from
wherever she is. Two characters play along: Marlowe, who keeps a lighthouse, and Nora, who mends
clocks.

The service ran as a process, connected to a server that speaks the protocol of {platform}. What
the people write and what the model says is a script (`tests/bench/lively_group.toml`); who wakes
and who stays silent, what is gathered into one answer, what a press or an edit changes, and what
stands on the screen in which order is the service's doing. Pauses between messages were shortened,
a minute to {minute:g} seconds; nothing else was. `python -m tests.bench.lively_group` records it
again.

{where} Under every answer stand {buttons}; they are
shown below only where there are others. [The same hour on {other}]({other_page})."""
_WHERE = {
    "Discord": "Each character speaks with a name and picture of its own, through one webhook of"
    " the channel.",
    "Telegram": "Each character's name stands in bold above what it says; the bot reads all"
    " messages of the group (privacy mode is off).",
}


def pages(hours: Sequence[Recorded], minute_seconds: float) -> dict[str, str]:
    """Return the text of each page by its name in docs/."""
    written = {}
    for platform, events, figures in hours:
        [other] = [one for one in _NAMES if one != platform]
        introduction = _INTRODUCTION.format(
            platform=platform,
            minute=minute_seconds,
            where=_WHERE[platform],
            buttons=", ".join(f"`{one}`" for one in AT_ONCE),
            other=other,
            other_page=_NAMES[other],
        )
        lines = [f"# A lively group, on {platform}", "", introduction, "", *_table(figures), ""]
        lines += ["## #friday-mystery" if platform == "Discord" else "## Friday mystery", ""]
        for at, kind, what in events:
            lines += [*_event(at, kind, what), ""]
        written[_NAMES[platform]] = "\n".join(lines).rstrip() + "\n"
    return written


def _table(figures: Mapping[str, str]) -> Iterator[str]:
    yield "| measured | |"
    yield "|---|---|"
    for name, value in figures.items():
        yield f"| {name} | {value} |"


def _event(at: str, kind: str, what: Any) -> Iterator[str]:
    match kind:
        case "says":
            reply = f" (a reply to {what['reply_to']})" if "reply_to" in what else ""
            file = " 📎 case-file.txt" if what.get("file") else ""
            yield f"{at} **{what['who']}**{reply}: {what['says']}{file}"
        case "edits":
            yield f"{at} **{what['who']}** (edits the message above): {what['edits']}"
        case "presses":
            yield f"{at} **{what['who']}** presses `{what['presses']}`"
        case "note":
            yield f"*{what}*"
        case _:
            yield from _answer(kind, what)


def _answer(kind: str, message: Any) -> Iterator[str]:
    where = ", in the same message" if kind == "changes" else ""
    yield f"> **{message.author}**{where}:"
    yield ">"
    for line in message.text.splitlines():
        yield f"> {line.replace('• ', '- ', 1)}".rstrip()  # a list on this page as well
    special = [one for one in message.buttons if one not in AT_ONCE]
    if special:
        yield ">"
        yield f"> {' '.join(f'`{one}`' for one in message.buttons)}"

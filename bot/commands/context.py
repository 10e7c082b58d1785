"""Show people what an answer was made of: a bar for each section, and what was left out."""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TypeAlias

from bot.chat.outgoing import Attachment
from bot.chat.receipt import DroppedItem, Receipt
from bot.errors import UserError
from bot.ports import Receipts
from bot.prompting.draft.token_shares import prompt_tokens, tokens_by_section

_BAR_CELLS = 12
_MOST_NAMED = 8  # stories, entries, things that were left out
_MOST_NAME_CHARS = 60
_RULER = f"\n{'=' * 80}\n\n"  # between the prompts of two speakers


WriteOut: TypeAlias = Callable[[int, Receipt], Awaitable[str]]
"""Gives the exact prompt of a receipt with this number, secrets removed."""


class ContextView:
    """Tells what the last answer was made of; `mask` removes secrets from a text.

    Both raise `UserError` where nobody has answered of late.
    """

    def __init__(self, receipts: Receipts, write_out: WriteOut, mask: Callable[[str], str]) -> None:
        self._receipts = receipts
        self._write_out = write_out
        self._mask = mask

    async def show(self, conversation: str, *, for_admin: bool) -> str:
        """Every speaker's receipt in a few lines; an admin is told how to see the prompt."""
        shown = [show_context(*one) for one in await self._newest(conversation)]
        if for_admin:
            shown.append("The exact prompt, as a file: /context prompt")
        return self._mask("\n\n".join(shown))

    async def prompts(self, conversation: str) -> tuple[str, Attachment]:
        """The exact prompts of all who spoke, in one file, and what to say beside it."""
        found = await self._newest(conversation)
        numbers = [str(number) for number, _ in found]
        written = [await self._write_out(*one) for one in found]
        whose = ("receipt " if len(found) == 1 else "receipts ") + ", ".join(numbers)
        file = Attachment(f"prompt-{'-'.join(numbers)}.txt", _RULER.join(written))
        return f"The exact prompt of {whose}, secrets removed.", file

    async def _newest(self, conversation: str) -> Sequence[tuple[int, Receipt]]:
        found = await self._receipts.newest(conversation)
        if not found:
            raise UserError("I have not answered here of late, so there is nothing to show.")
        return found


def show_context(number: int, receipt: Receipt) -> str:
    """The receipt in a few lines."""
    lines = [
        _heading(number, receipt),
        *_bars(receipt),
        *_found(receipt),
        *_left_out(receipt),
        _took(receipt),
    ]
    return "\n".join(lines)


def _heading(number: int, receipt: Receipt) -> str:
    version = f" (version {receipt.preset_version})" if receipt.preset_version else ""
    of = f" of {receipt.limit}" if receipt.limit else ""
    who = f"{receipt.preset}{version} on {receipt.provider}/{receipt.prompt.model}"
    return f"{who}, receipt {number}: {prompt_tokens(receipt)}{of} tokens"


def _bars(receipt: Receipt) -> Iterator[str]:
    whole = max(1, prompt_tokens(receipt))
    for section, tokens in tokens_by_section(receipt).items():
        cells = min(_BAR_CELLS, max(1, round(_BAR_CELLS * tokens / whole)))
        bar = "█" * cells + "░" * (_BAR_CELLS - cells)
        yield f"{bar} {section} {tokens} ({tokens / whole:.0%})"


def _found(receipt: Receipt) -> Iterator[str]:
    named = [span for span in receipt.layout if span.name]
    for span in named[:_MOST_NAMED]:
        yield f"{span.section}: {_named(span.name, span.score)}"
    if len(named) > _MOST_NAMED:
        yield f"… and {len(named) - _MOST_NAMED} more"


def _left_out(receipt: Receipt) -> Iterator[str]:
    if not receipt.dropped:
        yield "Nothing was left out."
    for one in receipt.dropped[:_MOST_NAMED]:
        yield f"Left out: {_what(one)} – {one.why}"
    if len(receipt.dropped) > _MOST_NAMED:
        yield f"Left out: {len(receipt.dropped) - _MOST_NAMED} more"


def _what(one: DroppedItem) -> str:
    if one.section == "history":
        return "the oldest line" if one.count == 1 else f"the {one.count} oldest lines"
    name = f" {_named(one.name, one.score)}" if one.name else ""
    tokens = f", about {one.tokens} tokens" if one.tokens else ""
    return f"{one.section}{name}{tokens}"


def _named(name: str, score: float | None) -> str:
    short = name if len(name) <= _MOST_NAME_CHARS else name[:_MOST_NAME_CHARS] + "…"
    return f"“{short}”" if score is None else f"“{short}” {score:.2f}"


def _took(receipt: Receipt) -> str:
    timings, usage = receipt.timings, receipt.usage
    first = timings.first_word_seconds
    parts = [
        f"queued {timings.queued_seconds:.1f} s",
        *([] if first is None else [f"first word after {first:.1f} s"]),
        f"written in {timings.seconds:.1f} s",
    ]
    if usage.output_tokens:
        parts.append(f"{usage.output_tokens} tokens")
    if usage.cached_tokens:
        parts.append(f"{usage.cached_tokens} of the prompt's were cached")
    return ", ".join(parts)

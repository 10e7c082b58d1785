"""Show what a reasoning model has thought, folded under its answer, where its preset says so."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from bot.chat.outgoing import Limits, MessageContent, OutgoingPart

_FEWEST_UNITS = 300
"""Where a message has less than that left, thoughts get a message of their own."""
_FRAME_UNITS = 16
"""What a platform adds around them: a sign, the marks of a spoiler, line breaks."""
_CUT = " …"
_MARKS = re.compile(r"\|(?=\||\Z)|`(?=``)")


def fold_thoughts(
    parts: Sequence[OutgoingPart], thoughts: str, limits: Limits, *, may_add_message: bool
) -> tuple[OutgoingPart, ...]:
    """Return the parts of an answer with its thoughts, as much of them as fits.

    They stand below the text of its last message; where a message has little left, in another one.

    Args:
        parts: the answer, as it is sent.
        thoughts: of the model; nothing is added where there are none.
        limits: of the channel.
        may_add_message: False: another character may stand below already, so that a further
            message would not stand under its answer.
    """
    thoughts = _harmless(thoughts)
    messages = [at for at, one in enumerate(parts) if one.file is None]
    if not thoughts or not messages or not limits.folds_thoughts:
        return tuple(parts)
    at, units = messages[-1], _unit_counter(limits)
    last = parts[at]
    most = limits.below_name(last.content.face).max_units - _FRAME_UNITS
    text = last.text if limits.render is None else limits.render(last.text)
    left = most - units(text)
    if left >= min(_FEWEST_UNITS, units(thoughts)):
        content = replace(last.content, thoughts=_cut(thoughts, left, units))
        return (*parts[:at], replace(last, content=content), *parts[at + 1 :])
    if not may_add_message:
        return tuple(parts)
    content = MessageContent("", last.content.face, thoughts=_cut(thoughts, most, units))
    added = replace(last, part=last.part + 1, content=content)
    return (*parts[: at + 1], added, *parts[at + 1 :])


def _harmless(thoughts: str) -> str:
    """Return thoughts without the marks that would end a spoiler, or reach out of it."""
    return _MARKS.sub("\\g<0>\u200b", thoughts.strip())


def _unit_counter(limits: Limits) -> Callable[[str], int]:
    if limits.unit == "utf16":
        return lambda text: len(text.encode("utf-16-le")) // 2
    return len


def _cut(text: str, most: int, units: Callable[[str], int]) -> str:
    """Return a text of at most so many units, with a sign where it was cut off."""
    if units(text) <= most:
        return text
    most -= len(_CUT)
    kept = text[:most]
    while units(kept) > most:
        kept = kept[: -max(1, (units(kept) - most) // 2)]
    return kept.rstrip() + _CUT

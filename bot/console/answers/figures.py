"""Geometry of the figures of an answer: they are drawn on the server, without style or script."""

from collections.abc import Sequence

from bot.chat.receipt import Receipt
from bot.frozen_dataclass import frozen_dataclass
from bot.prompting.draft.token_shares import prompt_tokens, tokens_by_section

BAR_WIDTH = 1000.0
_WATERFALL_WIDTH = 300.0


@frozen_dataclass
class BudgetSegment:
    """A section's part of the token budget."""

    section: str
    """"free" for what is left."""
    tokens: int
    share: float
    """Of the prompt, from 0 to 1; of what is free: 0."""
    x: float
    width: float


def budget_segments(receipt: Receipt) -> list[BudgetSegment]:
    """Return the sections from left to right; their tokens add up to the prompt's."""
    used = prompt_tokens(receipt)
    whole = max(1, used, receipt.limit or 0)
    segments: list[BudgetSegment] = []
    x = 0.0
    for section, tokens in tokens_by_section(receipt).items():
        width = BAR_WIDTH * tokens / whole
        share = tokens / max(1, used)
        segments.append(BudgetSegment(section, tokens, share, round(x, 2), round(width, 2)))
        x += width
    if receipt.limit and receipt.limit > used:
        free = receipt.limit - used
        segments.append(BudgetSegment("free", free, 0, round(x, 2), round(BAR_WIDTH - x, 2)))
    return segments


@frozen_dataclass
class WaterfallStep:
    """One step of an answer on the axis of time."""

    step: str
    """"received", "waited", "composed", "prefill", "decode", "edits" or "delivered"."""
    seconds: float
    """How long it took; of the edits: until the last of them."""
    x: float
    width: float
    marks: Sequence[float] = ()
    """Where single events stand on the axis: the receipt, each edit."""


def waterfall(receipt: Receipt, delivered: float | None = None) -> Sequence[WaterfallStep]:
    """Return what the time went into, from the receipt of the message to the answer's delivery.

    Args:
        receipt: of the answer.
        delivered: when its last part was sent, in seconds after the receipt of the message; None:
            not yet, or that is not known any more. What was shown while it was written is there
            when the last edit is.
    """
    timings = receipt.timings
    first = timings.seconds if timings.first_word_seconds is None else timings.first_word_seconds
    steps = {
        "received": 0.0,
        "waited": max(0.0, timings.queued_seconds - timings.composed_seconds),
        "composed": timings.composed_seconds,
        "prefill": first,
        "decode": max(0.0, timings.seconds - first),
    }
    written = sum(steps.values())
    last_edit = max(timings.edits, default=0.0)
    ends = [written, last_edit, *([] if delivered is None else [delivered])]
    scale = _WATERFALL_WIDTH / max(*ends, 1e-9)
    placed: list[WaterfallStep] = []
    at = 0.0
    for step, seconds in steps.items():
        placed.append(_placed(step, at, seconds, scale, [0.0] if step == "received" else ()))
        at += seconds
    if timings.edits:
        marks = [round(one * scale, 2) for one in timings.edits]
        begin = min(timings.edits)
        placed.append(_placed("edits", begin, last_edit - begin, scale, marks))
    if delivered is not None:
        shown = max(delivered, last_edit)
        placed.append(_placed("delivered", written, max(0.0, shown - written), scale))
    return placed


def _placed(
    step: str, at: float, seconds: float, scale: float, marks: Sequence[float] = ()
) -> WaterfallStep:
    width = round(max(seconds * scale, 1.0), 2)
    return WaterfallStep(step, seconds, round(at * scale, 2), width, marks)

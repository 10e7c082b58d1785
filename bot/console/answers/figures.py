"""Geometry of the figures of an answer: they are drawn on the server, without style or script."""

from collections.abc import Sequence
from dataclasses import dataclass

from bot.chat.receipt import Receipt
from bot.prompting.draft.token_shares import prompt_tokens, tokens_by_section

BAR_WIDTH = 1000.0
_WATERFALL_WIDTH = 300.0


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
class WaterfallStep:
    """One step of an answer on the axis of time."""

    step: str
    """"waited", "composed", "prefill" or "decode"."""
    seconds: float
    x: float
    width: float


def waterfall(receipt: Receipt) -> Sequence[WaterfallStep]:
    """Return what the time went into, from the receipt of the message to the answer's end."""
    timings = receipt.timings
    first = timings.seconds if timings.first_word_seconds is None else timings.first_word_seconds
    steps = {
        "waited": max(0.0, timings.queued_seconds - timings.composed_seconds),
        "composed": timings.composed_seconds,
        "prefill": first,
        "decode": max(0.0, timings.seconds - first),
    }
    whole = max(sum(steps.values()), 1e-9)
    placed: list[WaterfallStep] = []
    x = 0.0
    for step, seconds in steps.items():
        width = _WATERFALL_WIDTH * seconds / whole
        placed.append(WaterfallStep(step, seconds, round(x, 2), round(max(width, 1.0), 2)))
        x += width
    return placed

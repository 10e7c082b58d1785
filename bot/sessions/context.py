"""Show people what an answer was made of: a bar for each section, and what was left out."""

from collections.abc import Iterator

from bot.chat.receipt import Dropped, Receipt
from bot.prompting.receipts import prompt_tokens, tokens_by_section

_BAR_CELLS = 12
_MOST_NAMED = 8  # stories, entries, things that were left out
_MOST_NAME_CHARS = 60


def show_context(number: int, receipt: Receipt, *, for_admin: bool) -> str:
    """The receipt in a few lines; an admin is told how to see the exact prompt."""
    lines = [
        _heading(number, receipt),
        *_bars(receipt),
        *_found(receipt),
        *_left_out(receipt),
        _took(receipt),
    ]
    if for_admin:
        lines.append(f"The exact prompt, on the server: troupe replay {number} --show")
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


def _what(one: Dropped) -> str:
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

"""Show what an answer was made of: the token share of each section, and what was dropped."""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TypeAlias

from bot.chat.outgoing import Attachment
from bot.chat.receipt import DroppedItem, Receipt
from bot.errors import UserError
from bot.ports import Receipts
from bot.prompting.draft.token_shares import prompt_tokens, tokens_by_section

_BAR_CELLS = 12
_MAX_LISTED = 8  # stories, lorebook entries, dropped items
_MAX_NAME_CHARS = 60
_SECTION_NOUNS = {
    "lore": ("lorebook entry", "lorebook entries"),
    "stories": ("story", "stories"),
    "people": ("the descriptions of people", "descriptions of people"),
}
_RULER = f"\n{'=' * 80}\n\n"  # between the prompts of two speakers


WritePrompt: TypeAlias = Callable[[int, Receipt], Awaitable[str]]
"""Returns the exact prompt of a receipt with this number, secrets removed."""


class ContextView:
    """Shows the receipts of the last answer."""

    def __init__(
        self, receipts: Receipts, write_prompt: WritePrompt, mask: Callable[[str], str]
    ) -> None:
        self._receipts = receipts
        self._write_prompt = write_prompt
        self._mask = mask

    async def show(self, conversation: str, *, for_admin: bool) -> str:
        """Return the receipt of each speaker in a few lines; tell admins how to see the prompt.

        Raises:
            UserError: there is no recent answer.
        """
        shown = [show_context(*one) for one in await self._newest(conversation)]
        if for_admin:
            shown.append("/context prompt sends the exact prompt as a file.")
        return self._mask("\n\n".join(shown))

    async def prompts(self, conversation: str) -> tuple[str, Attachment]:
        """Return a line for the chat, and a file with the exact prompts of all speakers.

        Raises:
            UserError: there is no recent answer.
        """
        found = await self._newest(conversation)
        numbers = [str(number) for number, _ in found]
        written = [await self._write_prompt(*one) for one in found]
        label = ("receipt " if len(found) == 1 else "receipts ") + ", ".join(numbers)
        file = Attachment(f"prompt-{'-'.join(numbers)}.txt", _RULER.join(written))
        return f"The exact prompt of {label}, secrets removed.", file

    async def _newest(self, conversation: str) -> Sequence[tuple[int, Receipt]]:
        found = await self._receipts.newest(conversation)
        if not found:
            raise UserError(
                "I have not answered in this channel recently, so there is no context to show."
            )
        return found


def show_context(number: int, receipt: Receipt) -> str:
    """Return a receipt in a few lines."""
    lines = [
        _heading(number, receipt),
        *_bars(receipt),
        *_named_spans(receipt),
        *_dropped(receipt),
        _timings(receipt),
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


def _named_spans(receipt: Receipt) -> Iterator[str]:
    named = [span for span in receipt.layout if span.name]
    for span in named[:_MAX_LISTED]:
        yield f"{span.section}: {_quoted(span.name, span.score)}"
    if len(named) > _MAX_LISTED:
        yield f"… and {len(named) - _MAX_LISTED} more"


def _dropped(receipt: Receipt) -> Iterator[str]:
    if not receipt.dropped:
        yield "Nothing was left out."
    for one in receipt.dropped[:_MAX_LISTED]:
        yield f"Left out: {_describe(one)} – {one.why}"
    if len(receipt.dropped) > _MAX_LISTED:
        yield f"Left out: {len(receipt.dropped) - _MAX_LISTED} more"


def _describe(one: DroppedItem) -> str:
    if one.section == "history":
        return "the oldest message" if one.count == 1 else f"the {one.count} oldest messages"
    singular, plural = _SECTION_NOUNS.get(one.section, (one.section, one.section))
    noun = singular if one.count == 1 else f"{one.count} {plural}"
    name = f" {_quoted(one.name, one.score)}" if one.name else ""
    tokens = f", about {one.tokens} tokens" if one.tokens else ""
    return f"{noun}{name}{tokens}"


def _quoted(name: str, score: float | None) -> str:
    short = name if len(name) <= _MAX_NAME_CHARS else name[:_MAX_NAME_CHARS] + "…"
    return f"“{short}”" if score is None else f"“{short}” {score:.2f}"


def _timings(receipt: Receipt) -> str:
    timings, usage = receipt.timings, receipt.usage
    first = timings.first_word_seconds
    parts = [
        f"queued {timings.queued_seconds:.1f} s",
        *([] if first is None else [f"first token after {first:.1f} s"]),
        f"generated in {timings.seconds:.1f} s",
    ]
    if usage.output_tokens:
        parts.append(f"{usage.output_tokens} tokens")
    if usage.cached_tokens:
        parts.append(f"{usage.cached_tokens} prompt tokens were cached")
    return ", ".join(parts)

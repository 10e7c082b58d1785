"""Fit a draft to a token budget, and count the tokens of each section."""

import math
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from operator import attrgetter
from typing import TypeAlias

from bot.chat.prompt import Message, Prompt
from bot.chat.receipt import DroppedItem, PromptSpan, Receipt
from bot.errors import UserError
from bot.ports import TextTokenCounter
from bot.prompting.draft import Draft, HistoryUnit, PromptPart, get_story_title
from bot.prompting.text.incremental_map import map_new_items
from bot.prompting.text.tokens import count_tokens, estimate_image_tokens, get_counter_for_model
from bot.texts.text import marked
from bot.value_class import value_class

# A generous estimate of a template's tokens per message: <|im_start|>assistant\n ... <|im_end|>\n
MESSAGE_OVERHEAD_TOKENS = 8
_BYTES_PER_CHAR = 4  # the most in UTF-8
_TOO_BIG_REASON = marked("larger than the remaining budget")
_USED_UP_REASON = marked("the budget was used up")
_MAX_GUESSES = 4  # before falling back to binary search

PromptTokenCounter: TypeAlias = Callable[[Prompt], Awaitable[int]]


@value_class
class FittedPrompt:
    draft: Draft
    prompt: Prompt
    tokens: int
    limit: int | None
    dropped_items: tuple[DroppedItem, ...]


async def fit_draft(
    draft: Draft,
    limit: int | None,
    count_prompt: PromptTokenCounter,
    estimate: TextTokenCounter = count_tokens,
) -> FittedPrompt:
    """Drop as little as needed to fit a draft into `limit` tokens; raise `UserError` if impossible.

    Stories in the system text are dropped last, lowest scores first.
    """
    if limit is not None and (whole_prompt := await _fit_whole_draft(draft, limit, count_prompt)):
        return whole_prompt
    content = _OptionalContent(draft, limit, estimate)
    if limit is None:
        return content.to_fitted_prompt(
            content.item_count, content.estimate_tokens(content.item_count)
        )
    fitting_count, tokens = await _count_fitting_items(content, limit, count_prompt)
    if fitting_count < 0 and draft.stories:
        return await fit_draft(_remove_worst_story(draft, estimate), limit, count_prompt, estimate)
    if fitting_count < 0:
        newest_tokens = sum(estimate_message_tokens([draft.newest_message], estimate))
        raise UserError.translatable(
            "That message is too long for me: it has about {tokens} tokens, but my limit is"
            " {limit}, including my instructions. Please send it in smaller parts.",
            tokens=newest_tokens,
            limit=limit,
        )
    return content.to_fitted_prompt(fitting_count, tokens)


async def _fit_whole_draft(
    draft: Draft, limit: int, count_prompt: PromptTokenCounter
) -> FittedPrompt | None:
    """Return the whole draft as a prompt if its byte count proves that it fits, or else None."""
    prompt = draft.prompt
    if not _fits_by_byte_count(prompt, limit):
        return None
    tokens = await count_prompt(prompt)
    if tokens > limit:
        return None
    final_draft = replace(draft, left_out_items=()) if draft.left_out_items else draft
    return FittedPrompt(final_draft, prompt, tokens, limit, draft.left_out_items)


def _fits_by_byte_count(prompt: Prompt, limit: int) -> bool:
    """Return whether a prompt certainly fits the limit, because a token has at least one byte."""
    if any(map(attrgetter("parts"), prompt.messages)):
        return False
    texts = [message.content for message in prompt.messages]
    tokens_left = limit - len(texts) * MESSAGE_OVERHEAD_TOKENS
    char_count = sum(map(len, texts))
    if char_count * _BYTES_PER_CHAR <= tokens_left:
        return True
    return char_count <= tokens_left and len("".join(texts).encode(errors="replace")) <= tokens_left


def estimate_message_tokens(
    messages: Sequence[Message], estimate: TextTokenCounter
) -> Sequence[int]:
    """Estimate each message's tokens, including images and the template's overhead."""
    text_tokens = estimate([message.content for message in messages])
    return [
        tokens
        + MESSAGE_OVERHEAD_TOKENS
        + (sum(map(estimate_image_tokens, message.images)) if message.parts else 0)
        for tokens, message in zip(text_tokens, messages, strict=True)
    ]


def _remove_worst_story(draft: Draft, estimate: TextTokenCounter) -> Draft:
    story = min(draft.stories, key=lambda story: story.score)
    title, tokens = get_story_title(story), sum(estimate([story.text]))
    dropped_item = DroppedItem("stories", title, _TOO_BIG_REASON, tokens=tokens, score=story.score)
    return replace(draft.without_story(story), left_out_items=(*draft.left_out_items, dropped_item))


class _OptionalContent:
    """A draft's optional items, most important first; `count` is how many of them to keep."""

    def __init__(self, draft: Draft, limit: int | None, estimate: TextTokenCounter) -> None:
        self._draft = draft
        self._limit = limit
        self._required_tokens = sum(estimate_message_tokens(draft.required_messages, estimate))
        parts = _sort_optional_parts(draft)
        texts = [part.text for part in parts]
        part_tokens = [tokens + 2 for tokens in estimate(texts)]  # with a blank line between parts
        tokens_left = None if limit is None else limit - self._required_tokens
        counted_parts = zip(parts, part_tokens, strict=True)
        self._fitting_parts, self._oversized_parts = _split_by_tokens(counted_parts, tokens_left)
        self._unit_tokens = _estimate_unit_tokens(draft, estimate)
        self._item_tokens = [*(tokens for _, tokens in self._fitting_parts), *self._unit_tokens]
        self._cumulative_tokens = list(accumulate(self._item_tokens))
        self._drafts_by_count: dict[int, tuple[Draft, Prompt]] = {}

    @property
    def item_count(self) -> int:
        return len(self._item_tokens)

    def estimate_tokens(self, count: int) -> int:
        return self._required_tokens + (self._cumulative_tokens[count - 1] if count > 0 else 0)

    def build_prompt(self, count: int) -> Prompt:
        return self._build_draft_and_prompt(count)[1]

    def _build_draft_and_prompt(self, count: int) -> tuple[Draft, Prompt]:
        if count not in self._drafts_by_count:
            draft = self._make_draft(count)
            self._drafts_by_count[count] = draft, draft.prompt
        return self._drafts_by_count[count]

    def _make_draft(self, count: int) -> Draft:
        kept_ids = {id(part) for part, _ in self._fitting_parts[:count]}
        draft = self._draft
        first_kept_index = len(draft.history) - max(0, count - len(self._fitting_parts))
        return replace(
            draft,
            system=tuple(part for part in draft.system if part.is_required or id(part) in kept_ids),
            context=tuple(
                part for part in draft.context if part.is_required or id(part) in kept_ids
            ),
            summary=draft.summary if id(draft.summary) in kept_ids else None,
            history=draft.history[first_kept_index:],
            left_out_items=(),
        )

    def guess_fitting_count(self, count: int, tokens_left: float) -> int:
        """Estimate how many items fit if `count` items leave `tokens_left` (may be negative)."""
        while count > 0 and tokens_left < 0:
            count -= 1
            tokens_left += self._item_tokens[count]
        tokens_so_far = self._cumulative_tokens[count - 1] if count else 0
        return bisect_right(self._cumulative_tokens, tokens_so_far + tokens_left, count)

    def to_fitted_prompt(self, count: int, tokens: int) -> FittedPrompt:
        draft, prompt = self._build_draft_and_prompt(count)
        items = [*self._draft.left_out_items]
        items += [_to_dropped_item(*one, _TOO_BIG_REASON) for one in self._oversized_parts]
        items += [_to_dropped_item(*one, _USED_UP_REASON) for one in self._fitting_parts[count:]]
        if units := self._draft.history[: len(self._draft.history) - len(draft.history)]:
            message_count = sum(len(unit.messages) for unit in units)
            items.append(DroppedItem("history", "", _USED_UP_REASON, message_count))
        return FittedPrompt(draft, prompt, tokens, self._limit, tuple(items))


def _to_dropped_item(part: PromptPart, tokens: int, reason: str) -> DroppedItem:
    return DroppedItem(part.section, part.name, reason, tokens=tokens, score=part.score)


async def _count_fitting_items(
    content: _OptionalContent, limit: int, count_prompt: PromptTokenCounter
) -> tuple[int, int]:
    """Return (number of items that fit, prompt tokens), or (-1, 0) if not even zero items fit."""
    fitting_count, fitting_tokens, exceeding_count = -1, 0, content.item_count + 1
    tried_count = content.guess_fitting_count(0, limit - content.estimate_tokens(0))
    for attempt_number in range(content.item_count + 2):
        tokens = await count_prompt(content.build_prompt(tried_count))
        if tokens <= limit:
            fitting_count, fitting_tokens = tried_count, tokens
        else:
            exceeding_count = tried_count
        estimate_ratio = max(1, tokens) / max(1, content.estimate_tokens(tried_count))
        guess = content.guess_fitting_count(tried_count, (limit - tokens) / estimate_ratio)
        if exceeding_count - fitting_count == 1 or guess == fitting_count:
            break
        guess = guess if attempt_number < _MAX_GUESSES else (fitting_count + exceeding_count) // 2
        tried_count = min(max(guess, fitting_count + 1), exceeding_count - 1)
    return fitting_count, fitting_tokens


def _sort_optional_parts(draft: Draft) -> list[PromptPart]:
    parts = [*draft.system, *draft.context, *([draft.summary] if draft.summary else [])]
    return sorted((part for part in parts if not part.is_required), key=lambda part: -part.priority)


def _split_by_tokens(
    parts: Iterable[tuple[PromptPart, int]], tokens_left: int | None
) -> tuple[list[tuple[PromptPart, int]], list[tuple[PromptPart, int]]]:
    fitting_parts, oversized_parts = [], []
    for part, tokens in parts:
        if tokens_left is None or tokens <= tokens_left:
            fitting_parts.append((part, tokens))
            tokens_left = None if tokens_left is None else tokens_left - tokens
        else:
            oversized_parts.append((part, tokens))
    return fitting_parts, oversized_parts


def _estimate_unit_tokens(draft: Draft, estimate: TextTokenCounter) -> list[int]:
    def estimate_tokens(unit: HistoryUnit) -> int:
        return sum(estimate_message_tokens(unit.messages_with_lore, estimate))

    key = "sizes", draft.empty_prompt.character
    unit_tokens = map_new_items(draft.cache, key, estimate, draft.history, estimate_tokens)
    return list(reversed(unit_tokens))


def prompt_tokens(receipt: Receipt) -> int:
    """Return a prompt's token count from the provider or, if it reported none, from our count."""
    return receipt.usage.prompt_tokens or receipt.tokens


def locate_spans(receipt: Receipt) -> Iterator[tuple[PromptSpan, int, int | None]]:
    """Yield each span with its start and end in its first message (None: in a later message)."""
    ends_by_message: dict[int, int] = {}  # where each message's latest span ends
    for span in receipt.layout:
        begin = ends_by_message.get(span.message, 0)
        end = None if span.chars is None else begin + span.chars
        ends_by_message[span.message] = end or 0
        yield span, begin, end


def tokens_by_span(receipt: Receipt) -> list[tuple[PromptSpan, int]]:
    """Divide a prompt's exact token count among its spans, in proportion to estimates."""
    count = get_counter_for_model(receipt.prompt.model)
    weights = [_estimate_tokens(receipt, *location, count) for location in locate_spans(receipt)]
    token_shares = _divide_proportionally(prompt_tokens(receipt), weights)
    return list(zip(receipt.layout, token_shares, strict=True))


def tokens_by_section(receipt: Receipt) -> dict[str, int]:
    section_tokens: dict[str, int] = {}
    for span, tokens in tokens_by_span(receipt):
        section_tokens[span.section] = section_tokens.get(span.section, 0) + tokens
    return section_tokens


def _estimate_tokens(
    receipt: Receipt, span: PromptSpan, begin: int, end: int | None, count_tokens: TextTokenCounter
) -> int:
    messages = receipt.prompt.messages[span.message : span.message + span.messages]
    if not begin and end is None:
        return sum(estimate_message_tokens(messages, count_tokens))
    return 1 + sum(count_tokens([messages[0].content[begin:end]]))


def _divide_proportionally(total: int, weights: Sequence[int]) -> list[int]:
    """Divide a whole number in proportion to weights; the parts add up exactly."""
    total_weight = sum(weights) or 1
    quotients = [total * weight / total_weight for weight in weights]
    shares = [math.floor(share) for share in quotients]
    indexes = sorted(range(len(quotients)), key=lambda index: shares[index] - quotients[index])
    for index in indexes[: total - sum(shares)]:
        shares[index] += 1
    return shares

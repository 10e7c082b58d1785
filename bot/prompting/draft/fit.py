"""Fit a draft into the context: the newest turns win, and a question keeps its answer.

What is left out is chosen by an estimate and confirmed by an exact count of the whole prompt, so
that most prompts are counted once, and none is ever larger than the budget.
"""

import math
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TypeAlias

from bot.chat.prompt import Message, Prompt
from bot.chat.receipt import DroppedItem
from bot.errors import UserError
from bot.prompting.draft.draft import Draft, HistoryUnit, PromptPart, story_title
from bot.prompting.text.image_tokens import image_tokens
from bot.prompting.text.token_counter import TextTokenCounter, count_tokens

# What a chat template wraps around a message, generously: <|im_start|>assistant\n ... <|im_end|>\n
TOKENS_AROUND_A_MESSAGE = 8
_MOST_OVERESTIMATED = 3  # an estimate is never more than so many times what it really is
_UNITS_AT_ONCE = 32
_TOO_LARGE, _FULL = "larger than the room that was left", "the budget was full"
_GUESSES = 4  # after so many the search halves what is left to search

PromptTokenCounter: TypeAlias = Callable[[Prompt], Awaitable[int]]
"""Count the tokens of a whole prompt."""


@dataclass(frozen=True, slots=True)
class FittedPrompt:
    """A draft of which only so much is left that its prompt fits, and what that prompt takes."""

    draft: Draft
    prompt: Prompt
    tokens: int
    limit: int | None
    dropped: tuple[DroppedItem, ...]

    def with_earlier_drops(self, earlier: "FittedPrompt") -> "FittedPrompt":
        """The same, with what had been left out before."""
        return replace(self, dropped=(*earlier.dropped, *self.dropped))


async def fit_draft(
    draft: Draft,
    limit: int | None,
    count: PromptTokenCounter,
    estimate: TextTokenCounter = count_tokens,
) -> FittedPrompt:
    """Leave out as little as makes the prompt cost at most `limit` tokens; None: it may be any.

    Stories stand where the persona wants them, so they go last, those that fit least first.

    Raises:
        UserError: what must be in it is larger than that.
    """
    choices = _OptionalContent(draft, limit, estimate)
    if limit is None:
        return choices.fitted(choices.most, choices.estimate(choices.most))
    kept, tokens = await _most_that_fits(choices, limit, count)
    if kept < 0 and draft.stories:
        return await fit_draft(_with_a_story_less(draft, estimate), limit, count, estimate)
    if kept < 0:
        newest = sum(estimate_message_tokens([draft.newest], estimate))
        raise UserError(
            f"That message is too long for me: about {newest} tokens, and with my instructions "
            f"at most {limit} fit. Please send it in smaller parts."
        )
    return choices.fitted(kept, tokens)


def _with_a_story_less(draft: Draft, estimate: TextTokenCounter) -> Draft:
    worst = min(draft.stories, key=lambda story: story.score)
    tokens = sum(estimate([worst.text]))
    gone = DroppedItem("stories", story_title(worst), _TOO_LARGE, tokens=tokens, score=worst.score)
    return replace(draft.without_story(worst), left_out=(*draft.left_out, gone))


def estimate_message_tokens(
    messages: Sequence[Message], estimate: TextTokenCounter
) -> Sequence[int]:
    """What each message takes of the context, in tokens, roughly."""
    texts = estimate([message.content for message in messages])
    return [
        tokens + TOKENS_AROUND_A_MESSAGE + sum(map(image_tokens, message.images))
        for tokens, message in zip(texts, messages, strict=True)
    ]


class _OptionalContent:
    """What may be left out, the most precious first; keeping `n` of them gives the n-th draft."""

    def __init__(self, draft: Draft, limit: int | None, estimate: TextTokenCounter) -> None:
        self._draft = draft
        self._limit = limit
        self._needed = sum(
            estimate_message_tokens(_without_options(draft).prompt.messages, estimate)
        )
        parts = _optional_parts(draft)
        prices = [price + 2 for price in estimate([part.text for part in parts])]  # a blank line
        left = None if limit is None else limit - self._needed
        self._parts, self._too_large = _affordable(list(zip(parts, prices, strict=True)), left)
        self._unit_prices = _unit_prices(draft.history, limit, estimate)
        self._prices = [*(price for _, price in self._parts), *self._unit_prices]

    @property
    def most(self) -> int:
        return len(self._prices)

    def estimate(self, kept: int) -> int:
        return self._needed + sum(self._prices[:kept])

    def draft(self, kept: int) -> Draft:
        parts = {id(part) for part, _ in self._parts[:kept]}
        whole = self._draft
        oldest = len(whole.history) - max(0, kept - len(self._parts))
        return replace(
            whole,
            system=tuple(part for part in whole.system if part.required or id(part) in parts),
            context=tuple(part for part in whole.context if part.required or id(part) in parts),
            summary=whole.summary if id(whole.summary) in parts else None,
            history=whole.history[oldest:],
            left_out=(),
        )

    def near(self, kept: int, spare: float) -> int:
        """How many can be kept, by the estimate, if with `kept` so many tokens are left over."""
        while kept > 0 and spare < 0:
            kept -= 1
            spare += self._prices[kept]
        while kept < self.most and spare >= self._prices[kept]:
            spare -= self._prices[kept]
            kept += 1
        return kept

    def fitted(self, kept: int, tokens: int) -> FittedPrompt:
        chosen = self.draft(kept)
        dropped = [*self._draft.left_out]
        dropped += [_dropped(one, _TOO_LARGE) for one in self._too_large]
        dropped += [_dropped(one, _FULL) for one in self._parts[kept:]]
        if gone := self._draft.history[: len(self._draft.history) - len(chosen.history)]:
            dropped.append(
                DroppedItem("history", "", _FULL, sum(len(one.messages) for one in gone))
            )
        return FittedPrompt(chosen, chosen.prompt, tokens, self._limit, tuple(dropped))


def _dropped(priced: tuple[PromptPart, int], why: str) -> DroppedItem:
    part, price = priced
    return DroppedItem(part.section, part.name, why, tokens=price, score=part.score)


async def _most_that_fits(
    choices: _OptionalContent, limit: int, count: PromptTokenCounter
) -> tuple[int, int]:
    """How many choices can be kept, and what the prompt then takes; -1: not even without any."""
    good, tokens_of_good, bad = -1, 0, choices.most + 1
    probe = choices.near(0, limit - choices.estimate(0))
    for tries in range(choices.most + 2):
        tokens = await count(choices.draft(probe).prompt)
        if tokens <= limit:
            good, tokens_of_good = probe, tokens
        else:
            bad = probe
        stretch = max(1, tokens) / max(1, choices.estimate(probe))
        guess = choices.near(probe, (limit - tokens) / stretch)
        if bad - good == 1 or guess == good:
            break
        guess = guess if tries < _GUESSES else (good + bad) // 2
        probe = min(max(guess, good + 1), bad - 1)
    return good, tokens_of_good


def _without_options(draft: Draft) -> Draft:
    needed = [tuple(part for part in one if part.required) for one in (draft.system, draft.context)]
    return replace(draft, system=needed[0], context=needed[1], summary=None, history=())


def _optional_parts(draft: Draft) -> list[PromptPart]:
    parts = [*draft.system, *draft.context, *([draft.summary] if draft.summary else [])]
    return sorted((part for part in parts if not part.required), key=lambda part: -part.priority)


def _affordable(
    parts: Iterable[tuple[PromptPart, int]], left: int | None
) -> tuple[list[tuple[PromptPart, int]], list[tuple[PromptPart, int]]]:
    """Part what there is room for from what is too large for the room that others leave."""
    kept, too_large = [], []
    for part, price in parts:
        if left is None or price <= left:
            kept.append((part, price))
            left = None if left is None else left - price
        else:
            too_large.append((part, price))
    return kept, too_large


def _unit_prices(
    history: Sequence[HistoryUnit], limit: int | None, estimate: TextTokenCounter
) -> list[int]:
    """What each unit of the history takes, the newest first, as far back as one could ever fit."""
    left = math.inf if limit is None else limit * _MOST_OVERESTIMATED
    prices: list[int] = []
    for start in range(len(history), 0, -_UNITS_AT_ONCE):
        some = history[max(0, start - _UNITS_AT_ONCE) : start]
        each = iter(
            estimate_message_tokens(
                [message for unit in some for message, _ in unit.contents], estimate
            )
        )
        prices += [sum(islice(each, len(unit.contents))) for unit in some][::-1]
        if sum(prices) > left:
            break
    return prices

"""Estimate the tokens of a prompt for a service that reports them only afterwards.

The encoding is known or guessed from the model's name. The usage that the service then reports
corrects the next estimate: upwards at once, downwards slowly, so that estimates are rather too high
than too low.
"""

import math
from collections import Counter
from operator import attrgetter

from bot.backends.context_limits import TooLong
from bot.chat.prompt import Prompt
from bot.ports import TextTokenCounter
from bot.prompting.text.token_counter import EncodingCounter, counter_for_model, known_encoding

_INITIAL_RATIO = 1.25  # for an unknown tokenizer: most produce fewer tokens
_MARGIN = 1.05
_DECAY = 0.98  # per answer
_MIN_RATIO, _MAX_RATIO = 0.5, 4.0  # wrong reports cannot spoil the estimates
_MESSAGES_TO_LEARN = 32  # are counted again for each answer, on average
_MIN_TOKENS = 100  # in a shorter prompt a service's own additions distort the ratio


class PromptTokenEstimator:
    """Estimates for the models of one provider; what it learns is kept in memory only."""

    def __init__(self) -> None:
        self._ratios: dict[str, float] = {}
        self._unread: Counter[str] = Counter()  # answers since the last one that was learned from

    async def count(self, prompt: Prompt, model: str) -> int:
        """Estimate the tokens of a prompt."""
        token_counter, ratio = self._counter_and_ratio(model)
        return math.ceil(await token_counter.count_prompt(prompt) * ratio)

    async def text_counter(self, model: str) -> TextTokenCounter:
        """Return the counter of the texts of a model's prompts, without the learned ratio."""
        token_counter, _ = self._counter_and_ratio(model)
        await token_counter.load()
        return token_counter

    def learn(self, prompt: Prompt, model: str, tokens: int) -> None:
        """Correct the ratio by the tokens that the service reported; 0: it did not report any.

        Each answer is learned from while prompts are short. Counting a long one again costs more
        than it tells, so of those only every few are.
        """
        self._unread[model] = answers = self._unread[model] + 1
        if tokens <= 0 or answers * _MESSAGES_TO_LEARN < len(prompt.messages):
            return
        token_counter, before = self._counter_and_ratio(model)
        if not token_counter.loaded or any(map(attrgetter("parts"), prompt.messages)):  # images
            return
        if prompt.tools or prompt.tool_exchanges:  # they count, but stand in no message
            return
        self._unread[model] = 0
        counted = token_counter.prompt_tokens(prompt)
        if counted < _MIN_TOKENS:
            return
        ratio = tokens / counted
        is_known = known_encoding(model) is not None
        after = max(before, ratio) if is_known else max(before * _DECAY**answers, ratio * _MARGIN)
        self._ratios[model] = min(_MAX_RATIO, max(_MIN_RATIO, after))

    def learn_rejected(self, prompt: Prompt, model: str, rejected: TooLong) -> int | None:
        """Correct the ratio by a prompt that was too long; return its estimated tokens.

        None: they cannot be estimated.
        """
        token_counter, before = self._counter_and_ratio(model)
        if not token_counter.loaded:
            return None
        counted = max(1, token_counter.prompt_tokens(prompt))
        estimated, context = math.ceil(counted * before), rejected.context_tokens
        tokens = rejected.prompt_tokens
        if tokens is None and context is not None and estimated <= context:
            tokens = context + 1
        if tokens is not None and tokens > estimated:
            self._ratios[model] = min(_MAX_RATIO, tokens / counted * _MARGIN)
        return max(estimated, tokens or 0)

    def _counter_and_ratio(self, model: str) -> tuple[EncodingCounter, float]:
        initial = _INITIAL_RATIO if known_encoding(model) is None else 1.0
        return counter_for_model(model), self._ratios.get(model, initial)

"""Estimate the tokens of a prompt for a service that reports them only afterwards.

The encoding is known or guessed from the model's name. The usage that the service then reports
corrects the next estimate: upwards at once, downwards slowly, so that estimates are rather too high
than too low.
"""

import math

from bot.chat.prompt import Prompt
from bot.prompting.text.token_counter import EncodingCounter, get_counter

# By the prefix of a model's name, first match; these are exact.
_ENCODINGS = (
    ("gpt-oss", "o200k_harmony"),
    ("gpt-4o", "o200k_base"),
    ("gpt-4.", "o200k_base"),
    ("gpt-5", "o200k_base"),
    ("chatgpt-4o", "o200k_base"),
    ("o1", "o200k_base"),
    ("o3", "o200k_base"),
    ("o4", "o200k_base"),
    ("gpt-4", "cl100k_base"),
    ("gpt-3.5", "cl100k_base"),
)
_INITIAL_RATIO = 1.25  # for an unknown tokenizer: most produce fewer tokens
_MARGIN = 1.05
_DECAY = 0.98  # per answer
_MIN_RATIO, _MAX_RATIO = 0.5, 4.0  # wrong reports cannot spoil the estimates
_MIN_TOKENS = 100  # in a shorter prompt a service's own additions distort the ratio


class PromptTokenEstimator:
    """Estimates for the models of one provider; what it learns is kept in memory only."""

    def __init__(self) -> None:
        self._ratios: dict[str, float] = {}

    async def count(self, prompt: Prompt, model: str) -> int:
        """Estimate the tokens of a prompt."""
        token_counter, ratio = self._counter_and_ratio(model)
        return math.ceil(await token_counter.count_prompt(prompt) * ratio)

    def learn(self, prompt: Prompt, model: str, tokens: int) -> None:
        """Correct the ratio by the tokens that the service reported; 0: it did not report any."""
        token_counter, before = self._counter_and_ratio(model)
        has_images = any(message.images for message in prompt.messages)
        if tokens <= 0 or has_images or not token_counter.loaded:
            return
        counted = token_counter.prompt_tokens(prompt)
        if counted < _MIN_TOKENS:
            return
        ratio = tokens / counted
        is_known = _encoding_of(model) is not None
        after = max(before, ratio) if is_known else max(before * _DECAY, ratio * _MARGIN)
        self._ratios[model] = min(_MAX_RATIO, max(_MIN_RATIO, after))

    def _counter_and_ratio(self, model: str) -> tuple[EncodingCounter, float]:
        encoding = _encoding_of(model)
        ratio = self._ratios.get(model, _INITIAL_RATIO if encoding is None else 1.0)
        return get_counter(encoding or "cl100k_base"), ratio


def _encoding_of(model: str) -> str | None:
    name = model.rpartition("/")[2].lower()  # OpenRouter's names begin with a vendor
    return next((encoding for prefix, encoding in _ENCODINGS if name.startswith(prefix)), None)

"""What a prompt will cost at a service that counts only afterwards.

By the model's name it is known or guessed how OpenAI's own encodings would count it, and what the
service then says it was corrects the next count: the estimate follows the most expensive prompt of
late at once, and a cheaper one slowly. So it errs to the side of sending less than would fit.
"""

import math

from bot.chat.prompt import Prompt
from bot.prompting.text.token_counter import EncodingCounter, get_counter

# By the beginning of a model's name, the first that fits; these are exact.
_KNOWN = (
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
_UNKNOWN_STRETCH = 1.25  # until a service has told: most tokenizers of others need less
_MARGIN = 1.05
_FADING = 0.98  # per answer
_LEAST, _MOST = 0.5, 4.0  # a service that reports nonsense cannot spoil the counts
_SHORT = 100  # tokens; in a shorter prompt a service's own additions say nothing of the rest


class PromptCounter:
    """Counts for the models of one provider; what it learns is kept in memory only."""

    def __init__(self) -> None:
        self._stretch: dict[str, float] = {}

    async def count(self, prompt: Prompt, model: str) -> int:
        counts, stretch = self._way(model)
        return math.ceil(await counts.count_prompt(prompt) * stretch)

    def learn(self, prompt: Prompt, model: str, tokens: int) -> None:
        """Take note of what the service says that a prompt cost; 0: it did not say."""
        counts, before = self._way(model)
        has_images = any(message.images for message in prompt.messages)
        if tokens <= 0 or has_images or not counts.loaded:
            return
        raw = counts.prompt_tokens(prompt)
        if raw < _SHORT:
            return
        ratio = tokens / raw
        known = _encoding(model) is not None
        after = max(before, ratio) if known else max(before * _FADING, ratio * _MARGIN)
        self._stretch[model] = min(_MOST, max(_LEAST, after))

    def _way(self, model: str) -> tuple[EncodingCounter, float]:
        encoding = _encoding(model)
        stretch = self._stretch.get(model, _UNKNOWN_STRETCH if encoding is None else 1.0)
        return get_counter(encoding or "cl100k_base"), stretch


def _encoding(model: str) -> str | None:
    name = model.rpartition("/")[2].lower()  # OpenRouter writes openai/gpt-4o
    return next((encoding for begin, encoding in _KNOWN if name.startswith(begin)), None)

"""Count tokens offline in the encodings of OpenAI's models: an estimate for other models."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import TypeAlias

from toktok import batch_count

from bot.chat.prompt import Prompt
from bot.prompting.text.image_tokens import image_tokens

TextTokenCounter: TypeAlias = Callable[[Sequence[str]], Sequence[int]]
"""Count the tokens of each text."""

ENCODINGS: Mapping[str, str] = MappingProxyType(
    {
        "cl100k": "cl100k_base",
        "cl100k_base": "cl100k_base",
        "o200k": "o200k_base",
        "o200k_base": "o200k_base",
        "o200k_harmony": "o200k_harmony",
        "qwen3.5": "qwen3.5",
    }
)
"""The names that presets may use, and those of the library."""

_MAX_CACHED_CHARS = 8_000_000  # of all cached texts
_MAX_CACHED_TEXT_CHARS = 20_000

# docs/sources.md#openai
_ANSWER_START_TOKENS = 3
_TOKENS_PER_MESSAGE = 4  # the role is one of them


class EncodingCounter:
    """Counts tokens in one encoding, with a cache of texts."""

    def __init__(self, encoding: str) -> None:
        self.encoding = encoding
        self.loaded = False
        self._cache: dict[str, int] = {}
        self._chars = 0

    def __call__(self, texts: Sequence[str]) -> Sequence[int]:
        """Return the tokens of each text; special tokens count as plain text."""
        cached = self._cache
        unknown = [text for text in texts if text not in cached]
        if not unknown:
            return [cached[text] for text in texts]
        readable = [
            text.encode(errors="replace").decode() for text in unknown
        ]  # no lone surrogates
        fresh = dict(zip(unknown, batch_count(readable, self.encoding, threads=1), strict=True))
        counts = [fresh[text] if text in fresh else cached[text] for text in texts]
        self._store(fresh)
        return counts

    async def count_prompt(self, prompt: Prompt) -> int:
        """Return `prompt_tokens`; load the encoding (half a second) in a thread first."""
        if not self.loaded:
            await asyncio.to_thread(self, [""])
            self.loaded = True
        return self.prompt_tokens(prompt)

    def prompt_tokens(self, prompt: Prompt) -> int:
        """Return the tokens of a prompt by OpenAI's rules for messages and images."""
        messages = prompt.messages
        overhead = _ANSWER_START_TOKENS + _TOKENS_PER_MESSAGE * len(messages)
        images = sum(image_tokens(image) for message in messages for image in message.images)
        return overhead + images + sum(self([message.content for message in messages]))

    def _store(self, fresh: Mapping[str, int]) -> None:
        for text, tokens in fresh.items():
            if len(text) <= _MAX_CACHED_TEXT_CHARS:
                self._cache[text] = tokens
                self._chars += len(text)
        while self._chars > _MAX_CACHED_CHARS:
            oldest = next(iter(self._cache))
            del self._cache[oldest]
            self._chars -= len(oldest)


@cache
def get_counter(name: str) -> EncodingCounter:
    """Return the shared counter of an encoding, by any of its names."""
    return EncodingCounter(ENCODINGS[name])


def count_tokens(texts: Sequence[str]) -> Sequence[int]:
    """Return the tokens of each text in cl100k_base, an estimate for any model."""
    return get_counter("cl100k_base")(texts)

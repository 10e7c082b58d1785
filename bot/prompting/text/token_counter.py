"""Count tokens offline in the encodings of OpenAI's models: an estimate for other models."""

import asyncio
import sys
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import TypeAlias

# The public batch_count() reads the limits of the control group each time, which takes longer than
# to count a page of text. This is the encoding that it uses, and a test compares their counts.
from toktok import _encoding as load_encoding

from bot.chat.prompt import Prompt
from bot.prompting.text.bounded_cache import BoundedCache
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

_MAX_CACHED_BYTES = 8_000_000
_NORMALIZED = frozenset({"qwen3.5"})  # its tokenizer normalizes texts first

# docs/sources.md#openai
_ANSWER_START_TOKENS = 3
_TOKENS_PER_MESSAGE = 4  # the role is one of them


class EncodingCounter:
    """Counts tokens in one encoding, with a cache of texts."""

    def __init__(self, encoding: str) -> None:
        self.encoding = encoding
        self.loaded = False
        self._tokens = BoundedCache(self._count, sys.getsizeof, _MAX_CACHED_BYTES)

    def __call__(self, texts: Iterable[str]) -> Sequence[int]:
        """Return the tokens of each text; special tokens count as plain text."""
        return list(map(self._tokens.__getitem__, texts))

    async def count_prompt(self, prompt: Prompt) -> int:
        """Return `prompt_tokens`; load the encoding (half a second) in a thread first."""
        if not self.loaded:
            await asyncio.to_thread(load_encoding, self.encoding)
            self.loaded = True
        return self.prompt_tokens(prompt)

    def prompt_tokens(self, prompt: Prompt) -> int:
        """Return the tokens of a prompt by OpenAI's rules for messages and images."""
        messages = prompt.messages
        overhead = _ANSWER_START_TOKENS + _TOKENS_PER_MESSAGE * len(messages)
        images = sum(sum(map(image_tokens, one.images)) for one in messages if one.parts)
        return overhead + images + sum(self([message.content for message in messages]))

    def _count(self, text: str) -> int:
        readable = text.encode(errors="replace").decode()  # no lone surrogates
        if self.encoding in _NORMALIZED:
            readable = unicodedata.normalize("NFC", readable)
        tokens: int = load_encoding(self.encoding).count(readable)
        return tokens


@cache
def get_counter(name: str) -> EncodingCounter:
    """Return the shared counter of an encoding, by any of its names."""
    return EncodingCounter(ENCODINGS[name])


def count_tokens(texts: Iterable[str]) -> Sequence[int]:
    """Return the tokens of each text in cl100k_base, an estimate for any model."""
    return get_counter("cl100k_base")(texts)

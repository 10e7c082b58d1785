"""Count tokens offline, in the encodings of OpenAI's models; for other models it is an estimate."""

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
"""What a preset may call them, and their own names."""

_MOST_REMEMBERED_CHARS = 8_000_000
_REMEMBERED_UP_TO = 20_000  # characters

# https://cookbook.openai.com/examples/how_to_count_tokens_with_tiktoken
_TOKENS_OF_AN_ANSWER_S_BEGINNING = 3
_TOKENS_OF_A_MESSAGE_S_FRAME = 4  # its role is one of them


class EncodingCounter:
    """Counts in one encoding; texts that it has counted before cost next to nothing."""

    def __init__(self, encoding: str) -> None:
        self.encoding = encoding
        self.loaded = False
        self._known: dict[str, int] = {}
        self._chars = 0

    def __call__(self, texts: Sequence[str]) -> Sequence[int]:
        """Give the tokens of each text; special tokens count as the text they are."""
        known = self._known
        unknown = [text for text in texts if text not in known]
        if not unknown:
            return [known[text] for text in texts]
        readable = [text.encode(errors="replace").decode() for text in unknown]  # no half emoji
        fresh = dict(zip(unknown, batch_count(readable, self.encoding, threads=1), strict=True))
        counts = [fresh[text] if text in fresh else known[text] for text in texts]
        self._remember(fresh)
        return counts

    async def count_prompt(self, prompt: Prompt) -> int:
        """As `prompt`, without holding others up while the encoding is loaded: half a second."""
        if not self.loaded:
            await asyncio.to_thread(self, [""])
            self.loaded = True
        return self.prompt_tokens(prompt)

    def prompt_tokens(self, prompt: Prompt) -> int:
        """What a prompt costs by OpenAI's rules, in this encoding."""
        messages = prompt.messages
        frames = _TOKENS_OF_AN_ANSWER_S_BEGINNING + _TOKENS_OF_A_MESSAGE_S_FRAME * len(messages)
        images = sum(image_tokens(image) for message in messages for image in message.images)
        return frames + images + sum(self([message.content for message in messages]))

    def _remember(self, fresh: Mapping[str, int]) -> None:
        for text, tokens in fresh.items():
            if len(text) <= _REMEMBERED_UP_TO:
                self._known[text] = tokens
                self._chars += len(text)
        while self._chars > _MOST_REMEMBERED_CHARS:
            oldest = next(iter(self._known))
            del self._known[oldest]
            self._chars -= len(oldest)


@cache
def get_counter(name: str) -> EncodingCounter:
    """The one counter of an encoding, by any of its names."""
    return EncodingCounter(ENCODINGS[name])


def count_tokens(texts: Sequence[str]) -> Sequence[int]:
    """Give the tokens of each text in cl100k_base, as an estimate for any model."""
    return get_counter("cl100k_base")(texts)

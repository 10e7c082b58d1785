"""Count the tokens of texts, prompts, and images."""

import asyncio
import base64
import binascii
import math
import struct
import tomllib
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from pathlib import Path
from threading import Lock
from typing import Any, Final

from bot.chat.prompt import Image, Prompt

try:
    # The public batch_count() reads the cgroup's limits on each call, which takes longer than
    # counting a page of text. It uses this encoding; a test compares the counts.
    from toktok import _encoding as load_encoding
except ImportError:  # the extra is not installed
    load_encoding = None


_LONGEST_SIDE, _SHORTEST_SIDE, _TILE_SIDE = 2048, 768, 512
_BASE_IMAGE_TOKENS, _TOKENS_PER_TILE = 85, 170  # GPT-4o's; most services use fewer
_ASSUMED_IMAGE_SIZE = (_LONGEST_SIDE, _LONGEST_SIDE * 3)  # the maximum; links have no known size
_MAX_HEADER_CHARS = 64 * 1024  # in base64; a JPEG's size may come after an embedded preview


def estimate_image_tokens(image: Image) -> int:
    """Estimate an image's tokens, assuming the largest size for links and unknown formats."""
    if image.detail == "low":
        return _BASE_IMAGE_TOKENS
    width, height = read_image_size(image) or _ASSUMED_IMAGE_SIZE
    scale = min(1.0, _LONGEST_SIDE / max(width, height))
    scale *= min(1.0, _SHORTEST_SIDE / max(1.0, min(width, height) * scale))
    columns, rows = (max(1, math.ceil(side * scale / _TILE_SIDE)) for side in (width, height))
    return _BASE_IMAGE_TOKENS + _TOKENS_PER_TILE * columns * rows


def read_image_size(image: Image) -> tuple[int, int] | None:
    """Return an image's width and height from its header in a `data:` URI, or None if unknown."""
    uri_start, _, encoded_data = image.url.partition(";base64,")
    if not uri_start.startswith("data:image/") or not encoded_data:
        return None
    encoded_header = encoded_data[:_MAX_HEADER_CHARS]
    try:
        data = base64.b64decode(encoded_header[: len(encoded_header) // 4 * 4])
        return _parse_image_size(data)
    except (binascii.Error, struct.error):
        return None


def _parse_image_size(data: bytes) -> tuple[int, int] | None:
    for signature, struct_format, offset in ((b"\x89PNG", ">II", 16), (b"GIF8", "<HH", 6)):
        if data.startswith(signature):
            width, height = struct.unpack_from(struct_format, data, offset)
            return width, height
    if data.startswith(b"\xff\xd8"):
        return next(_find_jpeg_sizes(data), None)
    return None


def _find_jpeg_sizes(data: bytes) -> Iterator[tuple[int, int]]:
    offset = 2
    while offset + 9 < len(data) and data[offset] == 0xFF:  # every segment starts with FF
        marker, length = data[offset + 1], struct.unpack_from(">H", data, offset + 2)[0]
        if marker in _JPEG_SIZE_SEGMENTS:
            height, width = struct.unpack_from(">HH", data, offset + 5)
            yield width, height
        offset += 2 + length


# The segments that contain a JPEG's size. The codes in the gaps are tables or reserved.
_JPEG_SIZE_SEGMENTS = frozenset([*range(0xC0, 0xC4), *range(0xC5, 0xC8), *range(0xC9, 0xCC)])

_ENCODING_TABLES = tomllib.loads((Path(__file__).parent / "encodings.toml").read_text("utf-8"))
ENCODINGS: Final[Mapping[str, str]] = _ENCODING_TABLES["names"]
"""Maps the encoding names that presets may use to the library's names."""

_MAX_CACHED_TEXTS = 40_000
_MAX_CACHED_MODELS = 1024
_BYTES_PER_TOKEN = 3  # cl100k_base has 4.3 in English, 2.5 in Chinese
_NFC_ENCODINGS = frozenset({"qwen3.5"})  # encodings whose tokenizer normalizes texts first

# docs/sources.md#openai
_ANSWER_START_TOKENS = 3
_TOKENS_PER_MESSAGE = 4  # including the role


class _TokenEstimator:
    """Estimates token counts without the tokenizer library; reported usage corrects them later."""

    def __init__(self, _encoding: str) -> None:
        pass

    def count(self, text: str) -> int:
        return math.ceil(len(text.encode()) / _BYTES_PER_TOKEN)


class EncodingCounter:
    """Counts tokens in one encoding, and caches the counts."""

    def __init__(
        self, encoding: str, load: Callable[[str], Any] = load_encoding or _TokenEstimator
    ) -> None:
        self.encoding = encoding
        self.is_loaded = False
        self._load_encoding = load
        self._load_lock = Lock()
        # The keys are hashes and lengths, so that this cache contains no texts.
        self._token_counts_by_text_key: dict[tuple[int, int], int] = {}

    def __call__(self, texts: Iterable[str]) -> Sequence[int]:
        """Return the number of tokens of each text; special tokens count as plain text."""
        counts = self._token_counts_by_text_key
        return [counts.get((hash(text), len(text))) or self._count_cached(text) for text in texts]

    async def count_prompt(self, prompt: Prompt) -> int:
        """Load the encoding, and count a prompt's tokens."""
        await self.load()
        return self.prompt_tokens(prompt)

    async def load(self) -> None:
        """Load the encoding in a thread, because loading takes half a second."""
        if not self.is_loaded:
            await asyncio.to_thread(self._load)
            self.is_loaded = True

    def prompt_tokens(self, prompt: Prompt) -> int:
        """Count a prompt's tokens by OpenAI's rules for messages and images."""
        messages = prompt.messages
        overhead_tokens = _ANSWER_START_TOKENS + _TOKENS_PER_MESSAGE * len(messages)
        images = [image for message in messages if message.parts for image in message.images]
        text_tokens = sum(self([message.content for message in messages]))
        return overhead_tokens + sum(map(estimate_image_tokens, images)) + text_tokens

    def _count_cached(self, text: str) -> int:
        key = hash(text), len(text)
        tokens = self._token_counts_by_text_key.get(key)
        if tokens is None:
            tokens = self._token_counts_by_text_key[key] = self._compute_token_count(text)
            if len(self._token_counts_by_text_key) > _MAX_CACHED_TEXTS:
                del self._token_counts_by_text_key[next(iter(self._token_counts_by_text_key))]
        return tokens

    def _load(self) -> Any:
        # The first messages of several chats may load it at the same time. A second copy would be
        # dropped, but the process would keep its memory.
        with self._load_lock:
            return self._load_encoding(self.encoding)

    def _compute_token_count(self, text: str) -> int:
        if not text.isascii():
            text = text.encode(errors="replace").decode()  # no lone surrogates
            if self.encoding in _NFC_ENCODINGS:
                text = unicodedata.normalize("NFC", text)
        tokens: int = self._load().count(text)
        return tokens


_get_shared_counter = cache(EncodingCounter)


def get_counter(name: str) -> EncodingCounter:
    """Return the shared counter of an encoding, by any of its names."""
    return _get_shared_counter(ENCODINGS[name])


@lru_cache(_MAX_CACHED_MODELS)
def find_encoding(model: str) -> str | None:
    """Return a model's encoding, or None if it is unknown or the library is not installed."""
    if load_encoding is None:
        return None
    name = model.rpartition("/")[2].lower()  # OpenRouter's names start with a vendor
    models = _ENCODING_TABLES["models"].items()
    return next((encoding for prefix, encoding in models if name.startswith(prefix)), None)


@lru_cache(_MAX_CACHED_MODELS)
def get_counter_for_model(model: str) -> EncodingCounter:
    """Return the shared counter for a model, with cl100k_base if its encoding is unknown."""
    return get_counter(find_encoding(model) or "cl100k_base")


def count_tokens(texts: Iterable[str]) -> Sequence[int]:
    """Return the number of tokens of each text in cl100k_base, as an estimate for any model."""
    return get_counter("cl100k_base")(texts)

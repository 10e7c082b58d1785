"""Estimate the tokens of an image by OpenAI's published tile rule (docs/sources.md#openai)."""

import base64
import binascii
import math
import struct
from collections.abc import Iterable, Iterator

from bot.chat.prompt import Image

_LONGEST_SIDE, _SHORTEST_SIDE, _TILE = 2048, 768, 512
_BASE_TOKENS, _TOKENS_PER_TILE = 85, 170  # GPT-4o's; most services are cheaper
_UNKNOWN_SIZE = (_LONGEST_SIDE, _LONGEST_SIDE * 3)  # the maximum: a link may lead to any size
_HEAD_CHARS = 64 * 1024  # of base64; a JPEG's size may follow an embedded preview


def image_tokens(image: Image) -> int:
    """Return the estimate; an image behind a link or of an unknown format counts as the largest."""
    if image.detail == "low":
        return _BASE_TOKENS
    width, height = image_size(image) or _UNKNOWN_SIZE
    shrunk = min(1.0, _LONGEST_SIDE / max(width, height))
    shrunk *= min(1.0, _SHORTEST_SIDE / max(1.0, min(width, height) * shrunk))
    across, down = (max(1, math.ceil(side * shrunk / _TILE)) for side in (width, height))
    return _BASE_TOKENS + _TOKENS_PER_TILE * across * down


def image_size(image: Image) -> tuple[int, int] | None:
    """Return width and height in pixels from the file header in a `data:` URI; None if unknown."""
    kind, _, encoded = image.url.partition(";base64,")
    if not kind.startswith("data:image/") or not encoded:
        return None
    head = encoded[:_HEAD_CHARS]
    try:
        data = base64.b64decode(head[: len(head) // 4 * 4])
        return _size(data)
    except (binascii.Error, struct.error):
        return None


def _size(data: bytes) -> tuple[int, int] | None:
    if data.startswith(b"\x89PNG"):
        width, height = struct.unpack_from(">II", data, 16)
        return width, height
    if data.startswith(b"GIF8"):
        width, height = struct.unpack_from("<HH", data, 6)
        return width, height
    if data.startswith(b"\xff\xd8"):
        return next(_jpeg_sizes(data), None)
    return None


def _jpeg_sizes(data: bytes) -> Iterator[tuple[int, int]]:
    at = 2
    while at + 9 < len(data) and data[at] == 0xFF:  # every segment begins with it
        marker, length = data[at + 1], struct.unpack_from(">H", data, at + 2)[0]
        if marker in _SIZE_SEGMENTS:
            height, width = struct.unpack_from(">HH", data, at + 5)
            yield width, height
        at += 2 + length


def _numbers(*spans: range) -> Iterable[int]:
    return (number for span in spans for number in span)


# The segments that hold a JPEG's size; the gaps are tables and reserved codes.
_SIZE_SEGMENTS = frozenset(_numbers(range(0xC0, 0xC4), range(0xC5, 0xC8), range(0xC9, 0xCC)))

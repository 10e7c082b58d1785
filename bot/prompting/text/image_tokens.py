"""What an image costs of a context: OpenAI's published rule of tiles, on its size as it was sent.

https://platform.openai.com/docs/guides/images-vision#calculating-costs
"""

import base64
import binascii
import math
import struct
from collections.abc import Iterable, Iterator

from bot.chat.prompt import Image

_LONGEST_SIDE, _SHORTEST_SIDE, _TILE = 2048, 768, 512
_TOKENS, _TOKENS_A_TILE = 85, 170  # GPT-4o's, which most services are cheaper than
_UNKNOWN = (_LONGEST_SIDE, _LONGEST_SIDE * 3)  # as large as it gets: behind a link may be anything
_HEAD_CHARS = 64 * 1024  # of base64; a JPEG's size may stand behind an embedded preview


def image_tokens(image: Image) -> int:
    """An image that is behind a link, or of an unknown kind, counts as the largest there is."""
    if image.detail == "low":
        return _TOKENS
    width, height = image_size(image) or _UNKNOWN
    shrunk = min(1.0, _LONGEST_SIDE / max(width, height))
    shrunk *= min(1.0, _SHORTEST_SIDE / max(1.0, min(width, height) * shrunk))
    across, down = (max(1, math.ceil(side * shrunk / _TILE)) for side in (width, height))
    return _TOKENS + _TOKENS_A_TILE * across * down


def image_size(image: Image) -> tuple[int, int] | None:
    """Width and height in pixels, as a `data:` URI's own header tells them."""
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
    while at + 9 < len(data) and data[at] == 0xFF:  # every segment begins so
        marker, length = data[at + 1], struct.unpack_from(">H", data, at + 2)[0]
        if marker in _FRAMES:
            height, width = struct.unpack_from(">HH", data, at + 5)
            yield width, height
        at += 2 + length


def _numbers(*spans: range) -> Iterable[int]:
    return (number for span in spans for number in span)


# The segments that tell a JPEG's size; the gaps are tables and what is reserved.
_FRAMES = frozenset(_numbers(range(0xC0, 0xC4), range(0xC5, 0xC8), range(0xC9, 0xCC)))

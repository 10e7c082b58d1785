"""Single-color images in the format of presets."""

import base64
import struct
import zlib

from bot.chat.prompt import Image, Message


def png(red: int, *, width: int = 16, height: int = 16) -> Image:
    rows = (b"\0" + bytes((red, 0, 0)) * width) * height
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    return as_image(b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(*each) for each in chunks))


def as_image(data: bytes, kind: str = "png") -> Image:
    return Image(f"data:image/{kind};base64,{base64.b64encode(data).decode()}")


def shown(text: str, *images: Image) -> Message:
    """Return a user message with images after its text."""
    return Message("user", text, (text, *images))


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

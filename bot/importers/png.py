"""Read and write character cards in PNG files.

A card is base64 in a tEXt chunk, named `chara` for V1 and V2, and `ccv3` for V3. Only chunks are
parsed; pixels are copied unchanged.
"""

import base64
import binascii
import struct
import zlib
from collections.abc import Iterator

from bot.errors import PresetError

SIGNATURE = b"\x89PNG\r\n\x1a\n"
_CARD_CHUNK_KEYWORDS = (b"chara", b"ccv3")
_MAX_CHUNKS = 10_000


def read_png(data: bytes) -> tuple[bytes, bytes, bytes]:
    """Return the image without cards, its V1/V2 JSON, and its V3 JSON; raise `PresetError`."""
    kept_chunks, cards = [SIGNATURE], dict.fromkeys(_CARD_CHUNK_KEYWORDS, b"")
    for kind, body, chunk in _read_chunks(data):
        keyword, _, text = body.partition(b"\0")
        if kind == b"tEXt" and (name := keyword.lower()) in cards:
            cards[name] = cards[name] or _decode_card(text)  # like SillyTavern, use the first one
        else:
            kept_chunks.append(chunk)
    if not any(cards.values()):
        raise PresetError.translatable(
            "it is an image without a character card; programs that resize or convert images"
            " remove it, so use the original file"
        )
    return b"".join(kept_chunks), cards[b"chara"], cards[b"ccv3"]


def encode_png(image: bytes, *, v2_json: bytes, v3_json: bytes | None) -> bytes:
    """Return the PNG with cards at its end, where other programs put them."""
    card_chunks = [_make_chunk(b"tEXt", b"chara\0" + base64.b64encode(v2_json))]
    if v3_json is not None:
        card_chunks.append(_make_chunk(b"tEXt", b"ccv3\0" + base64.b64encode(v3_json)))
    chunks = list(_read_chunks(image))
    other_chunks = [
        raw_chunk
        for kind, body, raw_chunk in chunks[:-1]
        if kind != b"tEXt" or body.partition(b"\0")[0].lower() not in _CARD_CHUNK_KEYWORDS
    ]
    return b"".join([SIGNATURE, *other_chunks, *card_chunks, chunks[-1][2]])


def blank_image(width: int = 256, height: int = 384) -> bytes:
    """Return a PNG of a single dark color, for cards without an image."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    rows = (b"\0" + bytes((46, 42, 58)) * width) * height
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b"")]
    return SIGNATURE + b"".join(_make_chunk(kind, data) for kind, data in chunks)


def _read_chunks(data: bytes) -> Iterator[tuple[bytes, bytes, bytes]]:
    """Yield each chunk's type, body, and raw bytes, up to IEND."""
    position = len(SIGNATURE)
    for count in range(_MAX_CHUNKS):
        size, kind = struct.unpack(">I4s", data[position : position + 8].ljust(8, b"\xff"))
        end = position + 12 + size
        if end > len(data):
            raise PresetError.translatable("the PNG ends too early; download it again")
        body = data[position + 8 : end - 4]
        (checksum,) = struct.unpack_from(">I", data, end - 4)
        if checksum != zlib.crc32(kind + body) or (count == 0 and kind != b"IHDR"):
            raise PresetError.translatable("the PNG is damaged; download it again")
        yield kind, body, data[position:end]
        if kind == b"IEND":
            return
        position = end
    raise PresetError.translatable(
        "the PNG has more than {limit} chunks; save the image again", limit=_MAX_CHUNKS
    )


def _decode_card(text: bytes) -> bytes:
    try:
        return base64.b64decode(b"".join(text.split()), validate=True)
    except binascii.Error:
        raise PresetError.translatable(
            "the card in the PNG is not base64; export the card again from the program that made it"
        ) from None


def _make_chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

"""Cards inside a PNG: base64 in its tEXt chunks, `chara` (V1, V2) and `ccv3` (V3).

Only the chunks are walked; no pixel is ever decoded, and none is changed.
"""

import base64
import binascii
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from bot.errors import PresetError

SIGNATURE = b"\x89PNG\r\n\x1a\n"
_CARDS = (b"chara", b"ccv3")
_MAX_CHUNKS = 10_000


@dataclass(frozen=True, slots=True)
class PngCards:
    """The cards as JSON bytes (at least one of them is there), and the PNG without them."""

    image: bytes
    v2: bytes
    v3: bytes


def read(data: bytes, source: str) -> PngCards:
    """Raise PresetError for a PNG that is broken or holds no card."""
    kept, cards = [SIGNATURE], dict.fromkeys(_CARDS, b"")
    for kind, body, raw in _chunks(data, source):
        keyword, _, text = body.partition(b"\0")
        if kind == b"tEXt" and keyword.lower() in cards:
            cards[keyword.lower()] = _decoded(text, source)
        else:
            kept.append(raw)
    if not any(cards.values()):
        raise PresetError(
            f"{source} is an image without a character card in it; programs that shrink or convert"
            " images throw it away, so take the original file"
        )
    return PngCards(b"".join(kept), v2=cards[b"chara"], v3=cards[b"ccv3"])


def write(image: bytes, *, v2: bytes, v3: bytes | None) -> bytes:
    """Put cards into a PNG, before its end as other programs do."""
    texts = [_chunk(b"tEXt", b"chara\0" + base64.b64encode(v2))]
    if v3 is not None:
        texts.append(_chunk(b"tEXt", b"ccv3\0" + base64.b64encode(v3)))
    chunks = list(_chunks(image, "the card's image"))
    others = [raw for kind, body, raw in chunks[:-1] if not _is_card(kind, body)]
    return b"".join([SIGNATURE, *others, *texts, chunks[-1][2]])


def plain_image(width: int = 256, height: int = 384) -> bytes:
    """Make an image of one dark colour, for cards that never had one."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    rows = (b"\0" + bytes((46, 42, 58)) * width) * height
    body = [(b"IHDR", header), (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b"")]
    return SIGNATURE + b"".join(_chunk(kind, data) for kind, data in body)


def _chunks(data: bytes, source: str) -> Iterator[tuple[bytes, bytes, bytes]]:
    """Give the kind, the body and the raw bytes of each chunk up to IEND.

    What follows IEND (another file, glued on) belongs to no chunk and is left out.
    """
    place = len(SIGNATURE)
    for count in range(_MAX_CHUNKS):
        if len(data) < place + 12:
            raise PresetError(f"{source}: the PNG ends too early; download it again")
        size, kind = struct.unpack_from(">I4s", data, place)
        end = place + 12 + size
        if end > len(data):
            raise PresetError(f"{source}: the PNG ends too early; download it again")
        body = data[place + 8 : end - 4]
        (checksum,) = struct.unpack_from(">I", data, end - 4)
        if checksum != zlib.crc32(kind + body) or (count == 0 and kind != b"IHDR"):
            raise PresetError(f"{source}: the PNG is damaged; download it again")
        yield kind, body, data[place:end]
        if kind == b"IEND":
            return
        place = end
    raise PresetError(f"{source}: the PNG has more than {_MAX_CHUNKS} chunks; save the image anew")


def _decoded(text: bytes, source: str) -> bytes:
    try:
        return base64.b64decode(b"".join(text.split()), validate=True)
    except binascii.Error:
        raise PresetError(
            f"{source}: the card in the PNG is no base64; export it from its program anew"
        ) from None


def _is_card(kind: bytes, body: bytes) -> bool:
    return kind == b"tEXt" and body.partition(b"\0")[0].lower() in _CARDS


def _chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

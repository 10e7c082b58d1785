"""Five character cards covering all versions and containers; the last is hostile."""

import io
import json
import struct
import zipfile
import zlib
from pathlib import Path

from bot.importers.archives import encode_charx
from bot.importers.card import Json, dump_json
from bot.importers.png import SIGNATURE, blank_image, encode_png

PORTRAIT = blank_image(24, 36)

CARDS: dict[str, Json] = json.loads((Path(__file__).parent / "cards.json").read_text("utf-8"))
INNKEEPER = CARDS["innkeeper"]
"""V1 with six texts, and fields of an old program."""

DETECTIVE = CARDS["detective"]
"""V2 with all fields of the specification."""

ROBOT = CARDS["robot"]
"""V3 with nickname, group greetings, assets, languages and unknown keys."""

SINGER = CARDS["singer"]
TRICKSTER = CARDS["trickster"]
"""A valid card that attacks the programs that read it."""

SINGER_ASSETS = {"assets/icon/image/a.png": PORTRAIT, "assets/other/la.ogg": b"OggS\x00\xff\x00"}

CARD_FILES = {
    "innkeeper.json": json.dumps(INNKEEPER, indent=4).encode(),
    "detective.png": encode_png(PORTRAIT, v2_json=dump_json(DETECTIVE), v3_json=None),
    "robot.png": encode_png(
        PORTRAIT, v2_json=dump_json({**ROBOT, "spec": "chara_card_v2"}), v3_json=dump_json(ROBOT)
    ),
    "singer.charx": encode_charx(dump_json(SINGER), SINGER_ASSETS),
    "trickster.png": encode_png(PORTRAIT, v2_json=dump_json(TRICKSTER), v3_json=None),
}
CARD_CONTENTS = {
    "innkeeper.json": INNKEEPER,
    "detective.png": DETECTIVE,
    "robot.png": ROBOT,
    "singer.charx": SINGER,
    "trickster.png": TRICKSTER,
}


def chunk(kind: bytes, body: bytes, *, checksum: int | None = None) -> bytes:
    """Return a PNG chunk, with the given checksum or the correct one."""
    right = zlib.crc32(kind + body)
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", checksum or right)


def build_png(*chunks: bytes) -> bytes:
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0))
    return SIGNATURE + header + b"".join(chunks) + chunk(b"IEND", b"")


def zipped(*files: tuple[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for path, content in files:
            archive.writestr(path, content)
    return buffer.getvalue()

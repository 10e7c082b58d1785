"""Test the result of the child process that reads character cards."""

import base64
import io
import json
from collections.abc import Callable
from typing import Any

import pytest
from PIL import Image

from bot.importers.archives import MAIN_ICON_PATH, encode_charx
from bot.importers.png import blank_image, encode_png
from bot.media.attachment_reader import convert_in_child

ADDRESS = "https://cards.example/mira.png"


def as_png(card: bytes, image: bytes) -> bytes:
    return encode_png(image, v2_json=card, v3_json=None)


def as_charx(card: bytes, image: bytes) -> bytes:
    return encode_charx(card, {MAIN_ICON_PATH: image})


async def read(
    image: bytes, packed: Callable[[bytes, bytes], bytes] = as_png, **fields: object
) -> dict[str, Any]:
    data = {"name": "Mira", "description": "Mira keeps bees.", **fields}
    card = json.dumps({"spec": "chara_card_v3", "data": data}).encode()
    found: dict[str, Any] = json.loads(await convert_in_child("card", packed(card, image)))
    return found


@pytest.mark.parametrize("packed", [as_png, as_charx])
async def test_embedded_picture_is_shrunk_if_the_card_has_no_url(
    packed: Callable[[bytes, bytes], bytes],
) -> None:
    found = await read(blank_image(), packed, avatar="none")
    with Image.open(io.BytesIO(base64.b64decode(found["picture"]))) as picture:
        assert (picture.format, picture.size) == ("PNG", (128, 128))
    assert "avatar" not in json.loads(found["preset"])


@pytest.mark.parametrize(
    ("image", "avatar"),
    [(blank_image(), ADDRESS), (blank_image(20_000, 3_000), ""), (blank_image(9, 0), "")],
    ids=["address", "too large", "damaged"],
)
async def test_card_with_a_url_or_an_unreadable_picture_has_no_picture(
    image: bytes, avatar: str
) -> None:
    found = await read(image, avatar=avatar)
    assert found["picture"] is None
    assert json.loads(found["preset"]).get("avatar", "") == avatar

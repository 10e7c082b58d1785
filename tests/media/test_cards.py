"""Test what the child process reads from a character card."""

import base64
import io
import json
from typing import Any

import pytest
from PIL import Image

from bot.importers.png import plain_image, write_png
from bot.media.attachment_reader import convert

ADDRESS = "https://cards.example/mira.png"


async def read(image: bytes, **fields: object) -> dict[str, Any]:
    data = {"name": "Mira", "description": "Mira keeps bees.", **fields}
    card = json.dumps({"spec": "chara_card_v2", "data": data}).encode()
    found: dict[str, Any] = json.loads(await convert("card", write_png(image, v2=card, v3=None)))
    return found


async def test_picture_without_an_address_is_the_cards_own_in_small() -> None:
    found = await read(plain_image(), avatar="none")
    with Image.open(io.BytesIO(base64.b64decode(found["picture"]))) as picture:
        assert (picture.format, picture.size) == ("PNG", (128, 128))
    assert "avatar" not in json.loads(found["preset"])


@pytest.mark.parametrize(
    ("image", "avatar"),
    [(plain_image(), ADDRESS), (plain_image(20_000, 3_000), ""), (plain_image(9, 0), "")],
    ids=["address", "too large", "damaged"],
)
async def test_card_with_an_address_or_an_unusable_picture_has_none(
    image: bytes, avatar: str
) -> None:
    found = await read(image, avatar=avatar)
    assert found["picture"] is None
    assert json.loads(found["preset"]).get("avatar", "") == avatar

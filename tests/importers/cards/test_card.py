"""A card keeps every field on its way through, and a hostile file gets one clear line."""

import base64
import io
import json
import random
import time
import zipfile

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bot.errors import PresetError
from bot.importers.cards.card import CardContainer, CardSpec, read_card, write_card
from bot.importers.cards.png import plain_image
from bot.importers.cards.png import write as png
from bot.importers.cards.safe_json import MAX_FILE_BYTES, Json, dump
from tests.importers.card_samples import (
    CONTENTS,
    DETECTIVE,
    FIVE,
    INNKEEPER,
    PORTRAIT,
    ROBOT,
    SINGER_ASSETS,
    chunk,
    png_of,
)

NAMES = list(FIVE)


@pytest.mark.parametrize("name", NAMES)
def test_every_field_of_the_five_cards_is_read(name: str) -> None:
    assert read_card(FIVE[name], name).content == CONTENTS[name]


@pytest.mark.parametrize("name", NAMES)
def test_a_card_survives_the_way_through_its_own_container(name: str) -> None:
    container = CardContainer(name.rpartition(".")[2])
    card = read_card(FIVE[name], name)

    again = read_card(write_card(card, container), name)

    assert dump(again.content) == dump(card.content)
    assert again == card


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("container", list(CardContainer))
def test_the_fields_survive_the_way_through_any_container(
    name: str, container: CardContainer
) -> None:
    card = read_card(FIVE[name], name)

    content = read_card(write_card(card, container), "export").content

    before = card.content if card.spec is CardSpec.V1 else card.content["data"]
    after = content.get("data", content)
    assert isinstance(before, dict)
    assert isinstance(after, dict)
    assert {key: after[key] for key in before} == before


def test_the_image_is_the_same_and_the_other_programs_card_is_kept() -> None:
    card = read_card(FIVE["robot.png"], "robot.png")

    assert card.image == PORTRAIT
    assert card.older == {**ROBOT, "spec": "chara_card_v2"}
    assert write_card(card, CardContainer.PNG) == FIVE["robot.png"]


def test_the_assets_of_a_charx_are_kept_and_its_icon_becomes_the_png() -> None:
    card = read_card(FIVE["singer.charx"], "singer.charx")

    assert card.assets == SINGER_ASSETS
    assert read_card(write_card(card, CardContainer.PNG), "png").image == PORTRAIT


def test_the_newest_card_of_a_png_wins() -> None:
    both = png(PORTRAIT, v2=dump(DETECTIVE), v3=dump(ROBOT))

    assert read_card(both, "both.png").nickname == "Sieben"


def test_typed_fields_tell_what_the_card_says() -> None:
    card = read_card(FIVE["detective.png"], "detective.png")

    assert (card.spec, card.name, card.character_version) == (CardSpec.V2, "Ilse Brandt", "1.2-β")
    assert card.alternate_greetings == ("*The phone rings.* Brandt.", "Shut the door, {{user}}.")
    assert card.tags == ("noir", "警察")
    assert card.character_book is not None


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    # no half surrogates: no file can store them
    | st.text(alphabet=st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(
        alphabet=st.characters(exclude_categories=["Cs"]), max_size=5), inner, max_size=3),
    max_leaves=10,
)  # fmt: skip


@given(json_values, st.sampled_from(list(CardContainer)))
def test_whatever_stands_in_extensions_comes_back(value: object, container: CardContainer) -> None:
    content: Json = {
        "spec": "chara_card_v3",
        "spec_version": "3.0",
        "data": {"name": "N", "extensions": {"x": value}},
    }

    card = read_card(dump(content), "card.json")

    assert read_card(write_card(card, container), "export").content == content


# --- hostile files ---------------------------------------------------------------------------


def zipped(*files: tuple[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for path, content in files:
            archive.writestr(path, content)
    return buffer.getvalue()


CARD = dump(ROBOT)
HOSTILE = {
    "no card at all": (b"GIF89a", "neither a PNG, a CHARX nor JSON"),
    "a picture alone": (plain_image(), "an image without a character card"),
    "a broken checksum": (
        png_of(chunk(b"tEXt", b"chara\0" + base64.b64encode(CARD), checksum=1)),
        "the PNG is damaged; download it again",
    ),
    "cut in the middle": (FIVE["detective.png"][:400], "ends too early; download it again"),
    "a chunk that claims 2 GB": (
        png_of(b"\x7f\xff\xff\xfftEXtchara\0"),
        "ends too early",
    ),
    "no base64": (png_of(chunk(b"tEXt", b"chara\0{]~}")), "no base64"),
    "base64 of no JSON": (
        png_of(chunk(b"tEXt", b"chara\0" + base64.b64encode(b"hi"))),
        "no valid JSON",
    ),
    "a list": (png_of(chunk(b"tEXt", b"chara\0" + base64.b64encode(b"[]"))), "one JSON object"),
    "not UTF-8": (b'{"name": "\xff"}', "not UTF-8"),
    "deep": (b'{"name": "N", "description": ' + b"[" * 100 + b"]" * 100 + b"}", "deeper than 64"),
    "very deep": (b'{"a":' * 200_000, "deeper than 64"),
    "NaN": (b'{"name": "N", "description": NaN}', "NaN is no JSON number"),
    "a number beyond all": (b'{"name": "N", "description": 1e400}', "1e400 is no JSON number"),
    "half an emoji": (b'{"name": "N", "description": "\\ud83d"}', "half of a surrogate pair"),
    "no name": (b'{"name": " ", "description": "x"}', "has no name"),
    "a name that is a book": (b'{"name": "%s", "description": ""}' % (b"N" * 1001), "shorten it"),
    "a number as a text": (b'{"name": "N", "description": 5}', "description must be a text"),
    "another spec": (b'{"spec": "chara_card_v9", "data": {}}', "'chara_card_v9' is unknown"),
    "any JSON": (b'{"hello": 1}', "no character card"),
    "too large": (b"{" + b" " * MAX_FILE_BYTES, "larger than 10 MiB"),
    "a zip without a card": (zipped(("a.txt", b"")), "no card.json"),
    "a zip bomb": (zipped(("card.json", CARD), ("a", b"\0" * 30_000_000)), "zip bomb"),
    "ten zip bombs": (
        zipped(*((f"a{n}", random.Random(1).randbytes(20_000) * 300) for n in range(10))),
        "over 50 MiB",
    ),
    "many files": (zipped(*((f"a{n}", b"") for n in range(101))), "over 100 files"),
    "a path upwards": (zipped(("../../card.json", CARD)), "leads out of the CHARX"),
    "a path of Windows": (zipped(("C:\\card.json", CARD)), "leads out of the CHARX"),
    "a damaged zip": (FIVE["singer.charx"][:-30], "the CHARX is damaged"),
}


@pytest.mark.parametrize("case", list(HOSTILE))
def test_a_hostile_file_gets_one_line_that_names_it(case: str) -> None:
    data, said = HOSTILE[case]
    begun = time.monotonic()

    with pytest.raises(PresetError, match=r"^evil\.png") as caught:
        read_card(data, "evil.png")

    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300
    assert time.monotonic() - begun < 5


def test_a_zip_that_lies_about_sizes_is_refused() -> None:
    honest = zipped(("card.json", CARD), method=zipfile.ZIP_STORED)
    size = len(CARD).to_bytes(4, "little")
    lying = honest.replace(size, (len(CARD) - 5).to_bytes(4, "little"))

    with pytest.raises(PresetError, match=r"evil\.charx"):
        read_card(lying, "evil.charx")


def test_what_is_glued_to_a_png_is_not_kept() -> None:
    card = read_card(FIVE["detective.png"] + zipped(("card.json", CARD)), "polyglot.png")

    assert card.content == DETECTIVE
    assert write_card(card, CardContainer.PNG) == FIVE["detective.png"]


@given(st.binary(max_size=200), st.integers(0, 400))
@example(b"\0\0\0\x08" + b"\0" * 18 + b"\x0c", 4)  # a file's name that is said to be UTF-8
def test_no_damage_ends_in_anything_but_one_line(noise: bytes, place: int) -> None:
    for whole in FIVE.values():
        damaged = whole[:place] + noise + whole[place + len(noise) :]
        try:
            read_card(damaged, "damaged")
        except PresetError as error:
            assert "\n" not in str(error)  # noqa: PT017


def test_a_v1_card_leaves_as_a_v2_card_where_a_container_needs_one() -> None:
    card = read_card(FIVE["innkeeper.json"], "innkeeper.json")

    charx = read_card(write_card(card, CardContainer.CHARX), "export")

    assert (charx.spec, charx.name) == (CardSpec.V3, "Marta")
    assert json.loads(write_card(card, CardContainer.JSON)) == INNKEEPER


def test_a_zip_whose_files_overlap_is_refused() -> None:
    """Two names for the same bytes: how small bombs become large ones (CVE-2024-0450)."""
    honest = zipped(("card.json", CARD), ("a.txt", b"x" * 500), method=zipfile.ZIP_STORED)
    second = honest.index(b"PK\x01\x02", honest.index(b"PK\x01\x02") + 1)
    overlapping = honest[: second + 42] + b"\0\0\0\0" + honest[second + 46 :]

    with pytest.raises(
        PresetError, match=r"^evil\.charx: the CHARX is damaged .*download it again"
    ):
        read_card(overlapping, "evil.charx")

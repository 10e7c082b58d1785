"""Reading and writing cards keeps every field; invalid files give a one-line error."""

import base64
import json
import random
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bot.errors import PresetError
from bot.importers.card import (
    MAX_FILE_BYTES,
    CardContainer,
    CardSpec,
    Json,
    dump_json,
    encode_card,
    read_card,
)
from bot.importers.png import blank_image, encode_png
from tests.importers.card_samples import (
    CARD_CONTENTS,
    CARD_FILES,
    DETECTIVE,
    INNKEEPER,
    PORTRAIT,
    ROBOT,
    SINGER_ASSETS,
    build_png,
    chunk,
    zipped,
)
from tests.importers.refusals import assert_has_a_translation

NAMES = list(CARD_FILES)


@pytest.mark.parametrize("name", NAMES)
def test_card_is_read_and_survives_a_round_trip_through_its_own_container(name: str) -> None:
    container = CardContainer(name.rpartition(".")[2])
    card = read_card(CARD_FILES[name], name)
    assert card.content == CARD_CONTENTS[name]

    again = read_card(encode_card(card, container), name)

    assert dump_json(again.content) == dump_json(card.content)
    assert again == card


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("container", list(CardContainer))
def test_card_fields_survive_a_round_trip_through_any_container(
    name: str, container: CardContainer
) -> None:
    card = read_card(CARD_FILES[name], name)

    content = read_card(encode_card(card, container), "export").content

    before = card.content if card.spec is CardSpec.V1 else card.content["data"]
    after = content.get("data", content)
    assert isinstance(before, dict)
    assert isinstance(after, dict)
    assert {key: after[key] for key in before} == before


def test_png_keeps_its_image_and_its_v2_card() -> None:
    card = read_card(CARD_FILES["robot.png"], "robot.png")

    assert card.bare_png == PORTRAIT
    assert card.v2_twin == {**ROBOT, "spec": "chara_card_v2"}
    assert encode_card(card, CardContainer.PNG) == CARD_FILES["robot.png"]


def test_assets_of_a_charx_are_kept_and_its_icon_becomes_the_png() -> None:
    card = read_card(CARD_FILES["singer.charx"], "singer.charx")

    assert card.assets == SINGER_ASSETS
    assert read_card(encode_card(card, CardContainer.PNG), "png").bare_png == PORTRAIT


def test_first_card_in_a_png_is_used() -> None:
    """SillyTavern does the same, so the imported card is the card it shows."""
    first, second = (
        encode_png(PORTRAIT, v2_json=dump_json(one), v3_json=None) for one in (DETECTIVE, ROBOT)
    )
    begin = second.index(b"tEXtchara") - 4
    end = begin + 12 + int.from_bytes(second[begin : begin + 4], "big")
    twice = first[:-12] + second[begin:end] + first[-12:]

    card = read_card(twice, "twice.png")

    assert card.name == "Ilse Brandt"
    assert encode_card(card, CardContainer.PNG) == first


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    # no lone surrogates: no file can store them
    | st.text(alphabet=st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(
        alphabet=st.characters(exclude_categories=["Cs"]), max_size=5), inner, max_size=3),
    max_leaves=10,
)  # fmt: skip


@given(json_values, st.sampled_from(list(CardContainer)))
def test_extensions_survive_a_round_trip(value: object, container: CardContainer) -> None:
    content: Json = {
        "spec": "chara_card_v3",
        "spec_version": "3.0",
        "data": {"name": "N", "extensions": {"x": value}},
    }

    card = read_card(dump_json(content), "card.json")

    assert read_card(encode_card(card, container), "export").content == content


CARD = dump_json(ROBOT)
TEXTS = json.loads((Path(__file__).parent / "hostile_cards.json").read_text("utf-8"))
HOSTILE: dict[str, tuple[bytes | Callable[[], bytes], str]] = {
    **{name: (text.encode(), problem) for name, (text, problem) in TEXTS.items()},
    "a picture alone": (blank_image(), "an image without a character card"),
    "a broken checksum": (
        build_png(chunk(b"tEXt", b"chara\0" + base64.b64encode(CARD), checksum=1)),
        "the PNG is damaged; download it again",
    ),
    "cut in the middle": (CARD_FILES["detective.png"][:400], "ends too early; download it again"),
    "a chunk that claims 2 GB": (
        build_png(b"\x7f\xff\xff\xfftEXtchara\0"),
        "ends too early",
    ),
    "not base64": (build_png(chunk(b"tEXt", b"chara\0{]~}")), "not base64"),
    "base64 of no JSON": (
        build_png(chunk(b"tEXt", b"chara\0" + base64.b64encode(b"hi"))),
        "not valid JSON (",
    ),
    "a list": (
        build_png(chunk(b"tEXt", b"chara\0" + base64.b64encode(b"[]"))),
        "not a JSON object",
    ),
    "not UTF-8": (b'{"name": "\xff"}', "not UTF-8"),
    "deep": (
        b'{"name": "N", "description": ' + b"[" * 100 + b"]" * 100 + b"}",
        "more than 64 levels deep",
    ),
    "very deep": (b'{"a":' * 200_000, "more than 64 levels deep"),
    "a name that is a book": (b'{"name": "%s", "description": ""}' % (b"N" * 1001), "shorten it"),
    "too large": (b"{" + b" " * MAX_FILE_BYTES, "larger than 10 MiB"),
    "a zip without a card": (zipped(("a.txt", b"")), "no card.json"),
    "a zip bomb": (lambda: zipped(("card.json", CARD), ("a", b"\0" * 30_000_000)), "zip bomb"),
    "ten zip bombs": (
        lambda: zipped(*((f"a{n}", random.Random(1).randbytes(20_000) * 300) for n in range(10))),
        "it unpacks to more than 50 MiB",
    ),
    "many files": (
        lambda: zipped(*((f"a{n}", b"") for n in range(20_001))),
        "or 20000 files",
    ),
    "a path upwards": (zipped(("../../card.json", CARD)), "points outside the archive"),
    "a path of Windows": (zipped(("C:\\card.json", CARD)), "points outside the archive"),
    "a damaged zip": (CARD_FILES["singer.charx"][:-30], "the archive cannot be unpacked"),
}


@pytest.mark.parametrize("case", list(HOSTILE))
def test_hostile_file_gives_a_one_line_error_with_its_name(case: str) -> None:
    file, problem = HOSTILE[case]
    data = file() if callable(file) else file
    begun = time.process_time()

    with pytest.raises(PresetError, match=r"^evil\.png") as caught:
        read_card(data, "evil.png")

    assert problem in str(caught.value)
    assert_has_a_translation(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300
    assert time.process_time() - begun < 5


def test_zip_with_wrong_sizes_is_rejected() -> None:
    honest = zipped(("card.json", CARD), method=zipfile.ZIP_STORED)
    size = len(CARD).to_bytes(4, "little")
    lying = honest.replace(size, (len(CARD) - 5).to_bytes(4, "little"))

    with pytest.raises(PresetError, match=r"evil\.charx"):
        read_card(lying, "evil.charx")


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_zip_with_block_compression_is_rejected(method: int) -> None:
    """700 bytes of bzip2 would unpack to 1.2 GB before the size is checked."""
    packed = zipped(("card.json", CARD), method=method)

    with pytest.raises(PresetError, match=r"^evil\.charx: the archive cannot be unpacked"):
        read_card(packed, "evil.charx")


def test_data_appended_to_a_png_is_dropped() -> None:
    card = read_card(CARD_FILES["detective.png"] + zipped(("card.json", CARD)), "polyglot.png")

    assert card.content == DETECTIVE
    assert encode_card(card, CardContainer.PNG) == CARD_FILES["detective.png"]


@given(st.binary(max_size=200), st.integers(0, 400))
@example(b"\0\0\0\x08" + b"\0" * 18 + b"\x0c", 4)  # a file's name that is said to be UTF-8
def test_damaged_file_gives_a_one_line_error(noise: bytes, position: int) -> None:
    for whole in CARD_FILES.values():
        damaged = whole[:position] + noise + whole[position + len(noise) :]
        try:
            read_card(damaged, "damaged")
        except PresetError as error:
            assert "\n" not in str(error)  # noqa: PT017


def test_v1_card_is_upgraded_to_v3_for_a_charx() -> None:
    card = read_card(CARD_FILES["innkeeper.json"], "innkeeper.json")

    charx = read_card(encode_card(card, CardContainer.CHARX), "export")

    assert (charx.spec, charx.name) == (CardSpec.V3, "Marta")
    assert json.loads(encode_card(card, CardContainer.JSON)) == INNKEEPER

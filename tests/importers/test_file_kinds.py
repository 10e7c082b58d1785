"""File kinds are detected by content, and a wrong command suggests the right one."""

import json
from pathlib import Path

import pytest

from bot.errors import UserError
from bot.importers.file_kinds import (
    CHARACTER_KINDS,
    PRESET_KINDS,
    FileKind,
    check_file_kind,
    detect_file_kind,
)
from bot.importers.png import blank_image
from bot.texts.text import translate
from tests.importers.card_samples import CARD_FILES, zipped
from tests.importers.refusals import assert_is_chinese

TEXTS = json.loads((Path(__file__).parent / "file_kinds.json").read_text("utf-8"))
FILES: dict[str, tuple[FileKind, bytes | str | object]] = {
    **{name: (FileKind[kind], content) for name, (kind, content) in TEXTS.items()},
    "GGUF": (FileKind.GGUF, b"GGUF\3\0\0\0"),
    "image": (FileKind.IMAGE, blank_image(2, 2)),
    "photo": (FileKind.IMAGE, b"\xff\xd8\xff\xe0"),
    "ChatHaruhi 1": (
        FileKind.HARUHI,
        zipped(("haruhi/system_prompt.txt", b"x"), ("haruhi/texts/1.txt", b"x")),
    ),
    "zip": (FileKind.ARCHIVE, zipped(("photo.jpg", b"x"))),
    "damaged zip": (FileKind.ARCHIVE, b"PK\x03\x04 half"),
    "bytes": (FileKind.UNKNOWN, b"\x80\x81\x82"),
    "nothing": (FileKind.UNKNOWN, b""),
    "deep": (FileKind.UNKNOWN, "[" * 100_000),
}


@pytest.mark.parametrize("name", FILES)
def test_kind_is_detected_by_content(name: str) -> None:
    kind, content = FILES[name]
    if not isinstance(content, bytes):
        content = (content if isinstance(content, str) else json.dumps(content)).encode()
    assert detect_file_kind(content) is kind


@pytest.mark.parametrize("name", CARD_FILES)
def test_cards_are_detected_in_every_container(name: str) -> None:
    ending = name.rpartition(".")[2]
    wanted = {"png": FileKind.CARD_PNG, "json": FileKind.CARD_JSON, "charx": FileKind.CHARX}
    assert detect_file_kind(CARD_FILES[name]) is wanted[ending]


@pytest.mark.parametrize("kind", FileKind, ids=lambda kind: kind.name)
def test_every_kind_of_file_has_a_translation(kind: FileKind) -> None:
    assert_is_chinese(translate(kind.describe(Path("x.bin")), "zh"))


def test_error_for_the_wrong_command_names_the_file_and_the_right_command() -> None:
    card = CARD_FILES["detective.png"]
    with pytest.raises(UserError) as caught:
        check_file_kind(card, Path("ilse.png"), PRESET_KINDS)
    assert str(caught.value) == (
        "ilse.png is a character card (PNG);"
        " import it as a preset with `troupe character import ilse.png`"
    )
    check_file_kind(card, Path("ilse.png"), CHARACTER_KINDS)


def test_unknown_file_is_passed_to_the_importer() -> None:
    check_file_kind(b"Dear all,", Path("letter.txt"), PRESET_KINDS)


def test_lorebook_error_suggests_the_presets_folder() -> None:
    with pytest.raises(UserError, match=r'"lorebook": "world\.json"'):
        check_file_kind(b'{"entries": []}', Path("in/world.json"), CHARACTER_KINDS)

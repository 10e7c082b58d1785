"""Presets that load the persona and stories from a character file."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bot.errors import CharacterError, PresetError
from bot.importers.character_files import read_character_content, read_character_folder
from bot.prompting.character import Character
from bot.prompting.presets.files import load_presets
from tests.importers.refusals import assert_has_a_translation


def preset_folder(tmp_path: Path, **keys: str) -> Path:
    preset = {"name": "nora", "provider": "p", "model": "m", **keys}
    (tmp_path / "nora.json").write_text(json.dumps(preset), "utf-8")
    return tmp_path


def save_character(tmp_path: Path) -> None:
    character = Character(
        "Nora", "P\n{{RAG-dialogue}}", texts=["one", "two"], embedding=lambda _: [1.0]
    )
    character.save_to_jsonl(tmp_path / "nora.jsonl")


def test_persona_and_stories_are_read_from_the_file(tmp_path: Path) -> None:
    save_character(tmp_path)

    loaded = read_character_folder(
        preset_folder(tmp_path, character="nora.jsonl", role_name="Nora")
    )

    assert loaded.presets["nora"].persona == "P\n{{RAG-dialogue}}"
    assert loaded.stories["nora"] == ("one", "two")
    folder = preset_folder(tmp_path, character="nora.jsonl", role_name="Nora", persona="Q")
    assert read_character_folder(folder).presets["nora"].persona == "Q"  # its own keys win


def test_error_for_a_card_in_the_presets_folder_suggests_the_right_command(
    tmp_path: Path,
) -> None:
    folder = preset_folder(tmp_path)
    card = {"spec": "chara_card_v2", "spec_version": "2.0", "data": {"name": "Ilse"}}
    (folder / "ilse.json").write_text(json.dumps(card), "utf-8")
    found = read_character_folder(folder)
    assert found.presets.keys() == {"nora"}
    assert found.disabled_reasons["ilse"] == (
        f"{folder}/ilse.json is a character card (JSON); import it as a preset with"
        f" `troupe character import {folder}/ilse.json`, and move it out of the presets folder"
    )


def test_built_in_role_needs_no_file(tmp_path: Path) -> None:
    loaded = read_character_folder(preset_folder(tmp_path, character="haruhi"))

    assert loaded.presets["nora"].role_name == "凉宫春日"
    assert len(loaded.stories["nora"]) == 8


def test_preset_without_a_character_is_unchanged(tmp_path: Path) -> None:
    folder = preset_folder(tmp_path)
    loaded = read_character_folder(folder)

    assert loaded.stories == {}
    assert loaded.presets == load_presets(folder)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"character": "absent.jsonl"}, "cannot be read"),
        ({"character": "nora.exe"}, ".exe files cannot be read as characters; use .jsonl"),
        ({"character": "haruhu"}, "is not a built-in role"),
        ({"character": "qqqqqq"}, "is not a built-in role"),
        ({"character": "../x.jsonl"}, "it is outside"),
        ({"character": "nora.jsonl"}, "add 'role_name'"),
    ],
)
def test_problem_with_a_character_is_reported(
    tmp_path: Path, keys: dict[str, str], message: str
) -> None:
    save_character(tmp_path)

    found = read_character_folder(preset_folder(tmp_path, **keys))
    with pytest.raises(PresetError, match=f"preset 'nora': character '.*': .*{message}") as raised:
        found.find("nora")
    assert_has_a_translation(raised.value)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("x.jsonl", b""),
        ("x.jsonl", b"\xff"),
        ("x.jsonl", b'{"luotuo_openai": "a"}\n'),
        ("x.jsonl", b'{"luotuo_openai": "a", "text": "x"}\n'),
        ("x.jsonl", b'{"luotuo_openai": "a", "enc_text": "?"}\n'),
        ("x.txt", b"x"),
        ("x.zip", b"PK"),
    ],
)
def test_error_about_a_character_file_has_a_translation(name: str, content: bytes) -> None:
    with pytest.raises(CharacterError) as raised:
        read_character_content(Path(name), content)
    assert_has_a_translation(raised.value)


def test_importing_character_files_does_not_import_numpy() -> None:
    code = "import sys, bot.importers.character_files; print('numpy' in sys.modules)"

    made = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert made.stdout.strip() == "False"

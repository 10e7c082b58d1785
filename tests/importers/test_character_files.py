"""Presets that take their persona and their stories from a file beside them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bot.errors import PresetError
from bot.importers.character_files import (
    PresetWithStories,
    load_complete_presets,
    load_presets_with_stories,
)
from bot.prompting.character.character import Character


def folder(tmp_path: Path, **keys: str) -> Path:
    preset = {"name": "nora", "provider": "p", "model": "m", **keys}
    (tmp_path / "nora.json").write_text(json.dumps(preset), "utf-8")
    return tmp_path


def saved(tmp_path: Path) -> None:
    light = Character(
        "Nora", "P\n{{RAG-dialogue}}", texts=["one", "two"], embedding=lambda _: [1.0]
    )
    light.save_to_jsonl(tmp_path / "nora.jsonl")


def test_persona_and_stories_come_from_the_file(tmp_path: Path) -> None:
    saved(tmp_path)

    roles = load_presets_with_stories(folder(tmp_path, character="nora.jsonl", role_name="Nora"))

    assert roles["nora"].preset.persona == "P\n{{RAG-dialogue}}"
    assert roles["nora"].stories == ("one", "two")


def test_keys_of_the_preset_win(tmp_path: Path) -> None:
    saved(tmp_path)

    presets = load_complete_presets(
        folder(tmp_path, character="nora.jsonl", role_name="Nora", persona="Q")
    )

    assert presets["nora"].persona == "Q"


def test_a_known_role_needs_no_file(tmp_path: Path) -> None:
    role = load_presets_with_stories(folder(tmp_path, character="haruhi"))["nora"]

    assert role.preset.role_name == "凉宫春日"
    assert len(role.stories) == 8


def test_a_preset_without_a_character_stays_as_it_is(tmp_path: Path) -> None:
    [(name, role)] = load_presets_with_stories(folder(tmp_path)).items()

    assert role == PresetWithStories(role.preset)
    assert name == role.preset.name


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"character": "absent.jsonl"}, "cannot be read"),
        ({"character": "nora.exe"}, "of a kind that we know: .jsonl"),
        ({"character": "haruhu"}, "no known role"),
        ({"character": "nora.jsonl"}, "add 'role_name'"),
    ],
)
def test_what_is_wrong_with_a_character_is_said(
    tmp_path: Path, keys: dict[str, str], message: str
) -> None:
    saved(tmp_path)

    with pytest.raises(PresetError, match=f"preset 'nora': character '.*': .*{message}"):
        load_presets_with_stories(folder(tmp_path, **keys))


def test_a_service_without_stories_loads_no_embedding() -> None:
    code = "import sys, bot.importers.character_files; print('numpy' in sys.modules)"

    made = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert made.stdout.strip() == "False"

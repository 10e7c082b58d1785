"""Presets with outside paths, operator settings, or absurd numbers are rejected."""

import json
from pathlib import Path

import pytest

from bot.errors import CharacterError, PresetError
from bot.importers.character_files import read_character_file
from bot.prompting.presets.files import check_preset, load_presets, parse_preset, read_lorebook_file

TABLES = json.loads((Path(__file__).parent / "mistakes.json").read_text("utf-8"))
LEAST = {"name": "nova", "provider": "local", "model": "default"}
HUGE = 10**30


@pytest.mark.parametrize(
    "keys",
    [
        *TABLES["hostile"],
        {"version": HUGE},
        {"version": 2**31 - 1},
        {"max_output_tokens": HUGE},
        {"max_input_tokens": HUGE},
        {"summary": {"max_output_tokens": HUGE}},
        {"parameters": {"max_tokens": HUGE}},
        {"fallbacks": [{"provider": "local"}] * 9},
        {"messages": [{"role": "user", "content": "x"}] * 10_001},
        {"aliases": ["a"] * 257},
        {"tools": ["dice"] * 257},
        {"mcp_servers": ["files"] * 257},
    ],
    ids=str,
)
def test_hostile_key_is_rejected(keys: dict[str, object]) -> None:
    with pytest.raises(PresetError):
        parse_preset(json.dumps(LEAST | keys), "nova.json")


@pytest.mark.parametrize("name", TABLES["operator"])
def test_parameter_that_changes_the_destination_or_payer_is_rejected(name: str) -> None:
    text = '{"name": "nova", "provider": "local", "model": "m",\n"parameters": {\n%s: "x"}}'

    [problem] = check_preset(text % json.dumps(name)).problems

    assert problem.line == 3
    assert "can be set only by the operator" in problem.text


@pytest.mark.parametrize("name", TABLES["unseen"])
def test_parameter_that_evades_budgets_is_rejected(name: str) -> None:
    text = '{"name": "nova", "provider": "local", "model": "m",\n"parameters": {\n%s: ["x"]}}'

    [problem] = check_preset(text % json.dumps(name)).problems

    assert problem.line == 3
    assert "without the budgets noticing" in problem.text


@pytest.mark.parametrize("reference", [*TABLES["characters"], "a" * 5000 + ".jsonl"])
def test_character_file_outside_the_presets_folder_is_rejected(
    tmp_path: Path, reference: str
) -> None:
    folder = hostile_folder(tmp_path)

    with pytest.raises(CharacterError):
        read_character_file(reference, folder)


@pytest.mark.parametrize("name", [*TABLES["lorebooks"], "a" * 5000 + ".json"])
def test_lorebook_file_outside_the_presets_folder_is_rejected(tmp_path: Path, name: str) -> None:
    folder = hostile_folder(tmp_path)

    with pytest.raises(PresetError):
        read_lorebook_file(name, folder / "nova.json")


@pytest.mark.parametrize("link", ["/dev/zero", "nova.json", "missing.json", "."])
def test_preset_that_is_not_a_file_is_reported(tmp_path: Path, link: str) -> None:
    (tmp_path / "nova.json").symlink_to(link)

    with pytest.raises(PresetError, match=r"nova\.json"):
        load_presets(tmp_path)


def test_duplicate_preset_names_are_rejected_in_any_case_and_width(tmp_path: Path) -> None:
    for at, name in enumerate(("nova", "NOVA", "ｎｏｖａ", "Nova")):  # full width
        text = json.dumps(LEAST | {"name": name})
        (tmp_path / f"{at}.json").write_text(text, encoding="utf-8")

    with pytest.raises(PresetError) as raised:
        load_presets(tmp_path)

    assert str(raised.value).count("is already taken by") == 3


def hostile_folder(folder: Path) -> Path:
    """Create a presets folder with links to files outside, and a folder named like a file."""
    presets = folder / "presets"
    (presets / "folder.zip").mkdir(parents=True)
    for suffix in ("json", "jsonl"):
        (folder / f"secret.{suffix}").write_text('{"entries": {}}', encoding="utf-8")
        (presets / f"link.{suffix}").symlink_to(folder / f"secret.{suffix}")
        (presets / f"loop.{suffix}").symlink_to(f"loop.{suffix}")
    return presets

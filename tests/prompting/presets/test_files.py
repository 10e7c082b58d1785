"""Preset files in our and RodelAgent's format are parsed; errors state file and line."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bot.errors import PresetError
from bot.prompting.presets.fields import find_name_problem
from bot.prompting.presets.files import export_preset, find_preset, load_presets, parse_preset
from bot.prompting.presets.preset import Preset
from tests.attacks import attack_texts
from tests.checkout import CHECKOUT
from tests.shared_data import golden

TABLES = json.loads((Path(__file__).parent / "mistakes.json").read_text("utf-8"))
SHIPPED = CHECKOUT / "presets"
LEAST = {"name": "nova", "provider": "local", "model": "default"}


def parse(**keys: object) -> Preset:
    return parse_preset(json.dumps(LEAST | keys), "nova.json")


def read_problem(text: str) -> str:
    with pytest.raises(PresetError) as raised:
        parse_preset(text, "nova.json")
    return str(raised.value)


def write(folder: Path, **files: str) -> Path:
    for stem, text in files.items():
        (folder / f"{stem}.json").write_text(text, encoding="utf-8")
    return folder


def test_shipped_presets_are_in_exported_form() -> None:
    presets = load_presets(SHIPPED)

    assert {"assistant", "marlowe", "兰亭", "coder"} <= set(presets)
    texts = {file.read_text(encoding="utf-8") for file in SHIPPED.glob("*.json")}
    assert texts == {export_preset(preset) for preset in presets.values()}


def test_null_input_limit_means_unlimited_and_is_kept() -> None:
    preset = parse(max_input_tokens=None)

    assert preset.max_input_tokens is None
    assert parse_preset(export_preset(preset), "again") == preset


def test_rodelagents_extra_keys_and_nulls_are_dropped() -> None:
    assert parse(id="7", plugins=[], emoji="🙂", system=None, messages=None) == parse()


def test_long_and_short_messages_are_equal_and_exported_in_the_short_form() -> None:
    line = "从现在开始，你叫小明。"
    short = parse(messages=[{"role": "User", "content": line}])
    long = parse(messages=[{"role": "user", "content": [{"type": "Text", "text": line}]}])

    assert short == long
    assert json.loads(export_preset(long))["messages"] == [{"role": "user", "content": line}]


@pytest.mark.parametrize(
    ("given_text", "address"),
    [
        ("https://example.com/a.png", "https://example.com/a.png"),
        ("data:image/gif;base64,R0lGOD", "data:image/gif;base64,R0lGOD"),
        ("/9j/4AAQ", "data:image/jpeg;base64,/9j/4AAQ"),
    ],
)
def test_image_may_be_a_link_a_data_uri_or_base64(given_text: str, address: str) -> None:
    image = {"type": "image_url", "text": given_text, "detail": "high"}
    preset = parse(messages=[{"role": "user", "content": [image]}])

    (part,) = preset.messages[0].content
    assert (part.type, part.image_url, part.detail) == ("image", address, "high")
    exported = json.loads(export_preset(preset))["messages"][0]["content"]
    assert exported == [{"type": "image", "text": given_text, "detail": "high"}]


@pytest.mark.parametrize(("text", "problem"), TABLES["texts"])
def test_syntax_and_key_errors_state_file_line_and_nearest_key(text: str, problem: str) -> None:
    assert read_problem(text) == problem


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        *TABLES["values"],
        ({"stop_sequences": ["x"] * 10000}, "stop_sequences: "),
        ({"parameters": {"max_tokens": 10**9}}, "parameters.max_tokens: must be between 0 and 1e+"),
        ({"parameters": {"stop": ["x"] * 257}}, "parameters.stop: should have at most 256 items"),
        (
            {"parameters": {"logit_bias": {str(token): 1 for token in range(40_000)}}},
            "parameters: must be at most 262,144 characters long; is `logit_bias` too large?",
        ),
    ],
)
def test_errors_state_the_invalid_value(keys: dict[str, object], problem: str) -> None:
    assert f"nova.json, line 1: {problem}" in read_problem(json.dumps(LEAST | keys))


def test_load_reports_all_broken_files_at_once(tmp_path: Path) -> None:
    write(tmp_path, a="{", b='{"name": 1}')

    with pytest.raises(PresetError) as raised:
        load_presets(tmp_path)

    assert "a.json, line 1" in str(raised.value)
    assert "b.json, line 1" in str(raised.value)


def test_empty_or_missing_directory_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(PresetError, match="put a preset there"):
        load_presets(tmp_path)
    with pytest.raises(PresetError, match="TROUPE_PRESETS_DIR"):
        load_presets(tmp_path / "absent")


def test_find_preset_ignores_case_and_suggests_the_nearest() -> None:
    presets = {"Nova": parse(name="Nova")}

    assert find_preset(presets, " ＮＯＶＡ ").name == "Nova"
    with pytest.raises(PresetError, match="no preset 'nora'; did you mean 'Nova'"):
        find_preset(presets, "nora")


@pytest.mark.parametrize("name", ["OpenAI Gpt4 示例", "Phi3 Q4 预设", "兰亭", "Ада", "🎭 troupe"])
def test_names_may_be_in_any_script(name: str) -> None:
    assert parse(name=name).name == name


@pytest.mark.parametrize(("name", "problem"), TABLES["names"])
def test_names_unusable_in_commands_or_files_are_rejected(name: str, problem: str) -> None:
    assert problem in read_problem(json.dumps(LEAST | {"name": name}))


def test_names_with_path_separators_are_rejected() -> None:
    names = attack_texts("path_traversal")

    accepted = {name for name in names if find_name_problem(name) is None}

    # A symbolic link is a matter of the folder, not of its name.
    assert accepted == {"symlink_to_root.gguf"}


@given(st.dictionaries(st.sampled_from(["temperature", "top_p", "seed"]), st.sampled_from([0, 1])))
def test_export_parses_back_to_the_same_preset(parameters: dict[str, object]) -> None:
    preset = parse(
        parameters=parameters,
        messages=[{"role": "assistant", "content": "hi", "time": 5}],
        wake={"words": ["nova"], "chance": 0.5},
        fallbacks=[{"provider": "openai"}],
    )

    assert parse_preset(export_preset(preset), "again") == preset


@pytest.mark.parametrize(
    "case",
    [case for case in golden("rodel_templates") if case["input"]["op"].endswith("json_loads")],
    ids=lambda case: case["id"],
)
def test_examples_in_rodelagents_documentation_are_parsed(case: dict[str, Any]) -> None:
    """Code blocks are whole presets or single messages; one has a trailing comma."""
    block = case["input"]["text"]
    if '"role"' in block:
        block = json.dumps(LEAST | {"messages": [json.loads(block)]})

    preset = parse_preset(block, case["id"])

    assert parse_preset(export_preset(preset), "again") == preset


BOOK = {"entries": {"0": {"uid": 0, "key": ["dragon"], "content": "It sleeps."}}}
PLAYER = {"name": "nora", "provider": "p", "model": "m"}


def test_lorebook_may_be_inline_or_a_file(tmp_path: Path) -> None:
    (tmp_path / "lore").mkdir()
    for path in ("world.json", "lore/world.json"):
        (tmp_path / path).write_text(json.dumps(BOOK))
        (tmp_path / "nora.json").write_text(json.dumps({**PLAYER, "lorebook": path}))

        preset = load_presets(tmp_path)["nora"]

        assert preset == Preset.model_validate({**PLAYER, "lorebook": BOOK})
        assert preset.parsed_lorebook is not None
        assert preset.parsed_lorebook.entries[0].content == "It sleeps."


@pytest.mark.parametrize(
    ("lorebook", "said"),
    [
        ("../world.json", "'../world.json' is outside"),
        ("/etc/passwd", "'/etc/passwd' is outside"),
        ("none.json", "none.json cannot be read"),
        ({"entries": [{"content": 5}]}, "lorebook: .*entry 1: `content` must be text"),
    ],
)
def test_lorebook_errors_state_the_problem(tmp_path: Path, lorebook: object, said: str) -> None:
    (tmp_path / "nora.json").write_text(json.dumps({**PLAYER, "lorebook": lorebook}))

    with pytest.raises(PresetError, match=said):
        load_presets(tmp_path)

"""Modelfiles are parsed as by Ollama, and become presets that render the same prompts."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bot.errors import PresetError, TemplateError
from bot.importers.modelfile import (
    modelfile_from_preset,
    modelfile_notes,
    parse_modelfile,
    preset_from_modelfile,
)
from bot.prompting.presets.files import export_preset, parse_preset
from bot.prompting.presets.preset import Preset
from bot.templates import JinjaTemplate, StringTemplate
from tests.shared_data import golden

CASES = golden("modelfile")
TABLES = json.loads((Path(__file__).parent / "conversion.json").read_text("utf-8"))
ROLE_TEMPLATES = ("system_template", "user_template", "assistant_template", "end_template")


def cases(op: str, outcome: str) -> list[Any]:
    return [
        pytest.param(case, id=case["id"])
        for case in CASES
        if case["input"]["op"] == op and outcome in case
    ]


def import_data(template: str) -> Preset:
    return preset_from_modelfile(f'FROM x\nTEMPLATE """{template}"""', "nova", "x.gguf")


def prompt(preset: Preset, messages: list[dict[str, str]]) -> str:
    """Render with a preset's template or string templates, as a local backend does."""
    if isinstance(preset.template, str):
        return JinjaTemplate(preset.template).render(messages)
    given_templates: Any = [preset.parameters.get(key) for key in ROLE_TEMPLATES]
    return StringTemplate(*given_templates).render(messages)


def problem_with(text: str) -> str:
    with pytest.raises(PresetError) as raised:
        preset_from_modelfile(text, "nova", "x.gguf")
    return str(raised.value)


@pytest.mark.parametrize("case", cases("parse_modelfile", "expected"))
def test_parser_returns_the_same_commands_as_ollama(case: dict[str, Any]) -> None:
    modelfile = parse_modelfile(case["input"]["modelfile"])

    expected = case["expected"]
    assert modelfile.commands == [(item["name"], item["args"]) for item in expected["commands"]]
    assert modelfile.text == expected["formatted"]


SYNTAX_ERRORS = [
    case
    for case in cases("parse_modelfile", "error")
    if case.id != "parse:requires"  # a command since v0.14
]


@pytest.mark.parametrize("case", SYNTAX_ERRORS)
def test_syntax_errors_have_the_same_text_as_in_ollama(case: dict[str, Any]) -> None:
    with pytest.raises(PresetError) as raised:
        parse_modelfile(case["input"]["modelfile"])

    assert str(raised.value) == case["error"]["message"]


@pytest.mark.parametrize("case", cases("render_go_template", "expected"))
def test_imported_template_renders_the_same_prompt_as_ollama(case: dict[str, Any]) -> None:
    preset = import_data(case["input"]["template"])

    assert prompt(preset, case["input"]["messages"]) == case["expected"]


@pytest.mark.parametrize("case", cases("render_go_template", "error"))
def test_template_errors_have_the_same_text_as_in_go(case: dict[str, Any]) -> None:
    with pytest.raises(TemplateError) as raised:
        import_data(case["input"]["template"])

    assert str(raised.value) == case["error"]["message"]


def test_migration_example_in_rodels_document_is_converted() -> None:
    """The document's preset has no `end_template`, and its `num_ctx` limits the answer instead.

    See docs/sources.md#rodel and #ollama.
    """
    (case,) = [
        case for case in golden("rodel_templates") if case["id"] == "seed:modelfile_migration"
    ]
    given_input = case["input"]

    preset = preset_from_modelfile(
        given_input["modelfile"], given_input["name"], given_input["model"]
    )

    exported = json.loads(export_preset(preset))
    assert exported.pop("template").startswith("{%-")  # with the `<s>` that the vector drops
    assert exported["parameters"].pop("end_template") == "<|assistant|>\n"
    assert exported.pop("max_input_tokens") == 3072
    assert case["expected"]["parameters"].pop("max_tokens") == 4096
    assert exported == case["expected"]


def test_template_becomes_string_templates_if_they_render_the_same() -> None:
    preset = import_data(
        "{{ range .Messages }}<|{{ .Role }}|>\n{{ .Content }}</s>\n{{ end }}<|assistant|>\n"
    )

    assert preset.template is None
    assert dict(preset.parameters) == {
        "system_template": "<|system|>\n{{system}}</s>",
        "user_template": "<|user|>\n{{user}}</s>",
        "assistant_template": "<|assistant|>\n{{assistant}}</s>",
        "end_template": "<|assistant|>\n",
    }


def test_other_commands_are_imported_or_listed_in_notes() -> None:
    text, keys, notes = TABLES["commands"]

    preset = preset_from_modelfile(text, "nova", "nova.gguf")

    assert json.loads(export_preset(preset)) == keys
    assert modelfile_notes(parse_modelfile(text)) == notes


def test_num_ctx_limits_the_prompt_and_never_the_answer() -> None:
    preset = preset_from_modelfile("FROM x\nPARAMETER num_ctx 4096", "nova", "x")

    assert preset.max_input_tokens == 3072
    assert preset.max_output_tokens is None
    assert preset.parameters == {}
    assert "PARAMETER num_ctx 4096\n" in modelfile_from_preset(preset)


def test_commands_for_ollamas_engine_are_listed_in_notes() -> None:
    text = """FROM qwen3
DRAFT ./assistant.gguf
RENDERER qwen3-coder
PARSER "qwen3-coder"
REQUIRES 0.14.0
PARAMETER draft_num_predict 4
PARAMETER repeat_last_n -1
"""
    modelfile = parse_modelfile(text)

    assert modelfile.commands[1:5] == [
        ("draft", "./assistant.gguf"),
        ("renderer", "qwen3-coder"),
        ("parser", "qwen3-coder"),
        ("requires", "0.14.0"),
    ]
    assert parse_modelfile(modelfile.text) == modelfile
    assert preset_from_modelfile(text, "nova", "qwen3").parameters == {"repeat_last_n": 4096}
    [note] = modelfile_notes(modelfile)
    assert note.startswith("DRAFT, PARSER, RENDERER, REQUIRES, PARAMETER draft_num_predict omitted")


@pytest.mark.parametrize(("line", "problem"), TABLES["parameters"])
def test_invalid_parameter_is_reported(line: str, problem: str) -> None:
    found = problem_with(f"FROM x\n{line}")
    assert found.startswith(problem)
    assert ("did you mean" in found) == ("did you mean" in problem)


def test_preset_survives_export_and_import() -> None:
    preset = parse_preset(json.dumps(TABLES["preset"]), "nova.json")
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "{{user}}"}]

    back = preset_from_modelfile(modelfile_from_preset(preset), preset.name, preset.model)

    kept = {"name", "provider", "model", "system", "messages", "stop_sequences"}
    assert back.model_dump(include=kept) == preset.model_dump(include=kept)
    assert prompt(back, [*messages, messages[0]]) == prompt(preset, [*messages, messages[0]])


@pytest.mark.parametrize(("keys", "problem"), TABLES["exports"])
def test_export_rejects_what_a_modelfile_cannot_express(keys: dict[str, Any], problem: str) -> None:
    preset = Preset(**{"name": "nova", "provider": "local", "model": "x", **keys})

    with pytest.raises(PresetError, match=r"preset 'nova'.*") as raised:
        modelfile_from_preset(preset)

    assert problem in str(raised.value)


@given(st.text('FROMSYTEPAL fromsg"\n\r\t #x:_1', max_size=60))
def test_any_text_is_parsed_or_rejected(text: str) -> None:
    try:
        commands = parse_modelfile(text).commands
    except PresetError:
        return

    assert any(command.name == "model" for command in commands)


@given(st.text(st.characters(exclude_categories=["C", "Z"]) | st.sampled_from(' "\n'), min_size=1))
def test_system_text_survives_a_round_trip(system: str) -> None:
    preset = Preset(name="nova", provider="local", model="x", system=system)
    try:
        text = modelfile_from_preset(preset)
    except PresetError:
        assert '"""' in system
        return

    assert preset_from_modelfile(text, "nova", "x").system == system

"""SillyTavern's instruct and context templates render the same prompts after import."""

import asyncio
import itertools
import json
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from bot.chat.prompt import Message, Role, TemplateNames
from bot.cli.render import PromptView, render_preset
from bot.errors import PresetError
from bot.importers.preset_files import ImportedPreset, preset_from_text
from bot.prompting.compose.compose import choose_template
from bot.prompting.macros import Macros, convert_story_string
from bot.prompting.presets.files import export_preset, parse_preset
from bot.prompting.presets.preset import Preset
from bot.settings import Settings
from bot.templates import JinjaTemplate
from bot.templates.renderer import ModelTemplate, Renderer
from tests.backends.tiny_gguf import Vocabulary, write

TABLES = json.loads((Path(__file__).parent / "sillytavern.json").read_text("utf-8"))
CHATML = TABLES["chatml"]
CONVERSATION = [
    {"role": "system", "content": "SYS"},
    {"role": "user", "content": "one {{user}}"},
    {"role": "assistant", "content": "two"},
    {"role": "user", "content": "three"},
]


def import_data(data: dict[str, Any]) -> ImportedPreset:
    return preset_from_text(json.dumps(data), Path("t.json"))


def render_prompt(preset: Preset, messages: list[dict[str, str]] = CONVERSATION) -> str:
    return JinjaTemplate(str(preset.template)).render(messages, add_generation_prompt=True)


def test_instruct_template_becomes_an_equivalent_jinja_template() -> None:
    result = import_data(CHATML)

    assert result.notes == []
    assert render_prompt(result.preset) == (
        "<|im_start|>system\nSYS<|im_end|>\n<|im_start|>user\none {{user}}<|im_end|>\n"
        "<|im_start|>assistant\ntwo<|im_end|>\n<|im_start|>user\nthree<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert result.preset.stop_sequences == ("<|im_end|>", "<|im_start|>user")


def test_instruct_sequences_appear_in_their_places_in_the_prompt() -> None:
    result = import_data(TABLES["llama"])

    assert render_prompt(result.preset) == (
        "[INST] <<SYS>>\nSYS\n<</SYS>>\n[INST] one {{user}} [/INST] two </s>[INST] three [/INST]>>"
    )
    greeted = [{"role": "assistant", "content": "hi"}, {"role": "system", "content": "note"}]
    assert render_prompt(result.preset, greeted) == (
        "[INST] Begin. [/INST] 🙂\"'\\ hi </s>[INST] note [/INST]>>"
    )


def test_names_behavior_is_imported_as_user_name_in_message() -> None:
    modes = {
        mode: import_data({**CHATML, "names_behavior": mode}).preset.user_name_in_message
        for mode in ("none", "force", "always")
    }
    assert modes == {"none": "not_add", "force": "default", "always": "add"}
    old = {key: value for key, value in CHATML.items() if key != "names_behavior"}
    assert import_data({**old, "names": True}).preset.user_name_in_message == "add"
    assert (
        import_data({**old, "names_force_groups": False}).preset.user_name_in_message == "not_add"
    )


@cache
def settings_with_a_model() -> Settings:
    """Return settings with a model whose file contains no template."""
    folder = Path(tempfile.mkdtemp())
    file = write(folder / "tiny.gguf", Vocabulary("qwen2", ("<|im_end|>", "<|im_start|>"), ()))
    return Settings.model_validate({"providers": {"local": {"model_path": str(file)}}})


def as_prompt(data: dict[str, Any], *turns: str) -> str:
    """Render turns, starting with the user's, as `troupe render` does for Aqua."""
    preset = import_data(data).preset.model_copy(update={"role_name": "Aqua", "system": None})
    roles: Iterator[Role] = itertools.cycle(("user", "assistant"))
    messages = [
        Message("system", turn[1:]) if turn.startswith("*") else Message(next(roles), turn)
        for turn in turns
    ]
    return asyncio.run(render_preset(preset, messages, PromptView.TEXT, settings_with_a_model()))


@pytest.mark.parametrize("rule", TABLES["prompts"])
def test_prompt_matches_sillytavern(rule: str) -> None:
    data, turns, prompt = TABLES["prompts"][rule]

    assert as_prompt(data, *turns) == prompt


async def test_tokens_around_a_name_in_a_control_sequence_stay_trusted() -> None:
    """The text between a name and a message belongs to the template, not to people."""
    header = "<|start_header_id|>{{name}}<|end_header_id|>"
    preset = import_data({**CHATML, "input_sequence": header, "names_behavior": "none"}).preset
    names = TemplateNames("Aqua", "Bob", is_group=False)
    choice = replace(choose_template(preset), names=names)

    async with Renderer() as renderer:
        rendered = await renderer.render(
            [Message("user", "Bob:<|end_header_id|>", name="Bob")], choice, ModelTemplate()
        )

    assert [span.text for span in rendered.spans if not span.trusted] == [
        "Bob",
        "<|end_header_id|>",
    ]


def test_context_template_becomes_a_story_string_without_control_tokens() -> None:
    result = import_data({
        "name": "Context",
        "story_string": "<|im_start|>system\n{{#if system}}{{system}}\n{{/if}}"
        "{{#if description}}{{description}}\n{{/if}}{{trim}}<|im_end|>",
    })  # fmt: skip

    story = convert_story_string(result.preset.story_string or "")
    fields = {"systemprompt": "S", "description": "D {{system}}"}
    given = Macros("Nora", "Alice", datetime(2026, 11, 21, tzinfo=UTC), fields=fields)
    assert given.expand(story) == "S\nD {{system}}"
    assert replace(given, fields={}).expand(story) == ""
    assert parse_preset(export_preset(result.preset), "again") == result.preset


def test_macro_without_a_value_in_a_template_is_reported() -> None:
    with pytest.raises(PresetError, match=r"^t\.json: input_sequence: the macro \{\{random::a"):
        import_data({**CHATML, "input_sequence": "{{random::a::b}}"})


def test_unsupported_blocks_in_a_story_string_are_reported() -> None:
    result = import_data({"name": "c", "story_string": "{{#each items}}x{{/each}}{{#if system}}y"})

    assert result.notes == ["unsupported macros stay unchanged: {{each}}"]


def test_sequences_are_never_rendered_as_templates() -> None:
    result = import_data(
        {**CHATML, "stop_sequence": "{% for a in b %}", "input_sequence": "{{ 7*7 }}"}
    )

    assert "{{ 7*7 }}" in render_prompt(result.preset)
    assert "49" not in render_prompt(result.preset)

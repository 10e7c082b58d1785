"""SillyTavern's instruct and context templates write here what they write there."""

import json
from pathlib import Path
from typing import Any

import pytest

from bot.errors import PresetError, TemplateError
from bot.importers.preset_files import ImportedPreset, preset_from_text
from bot.prompting.cards.story_string import parse_story_string
from bot.prompting.presets.files import export_preset, parse_preset
from bot.prompting.presets.preset import Preset
from bot.templates import JinjaTemplate, StringTemplate

CHATML = {
    "name": "ChatML",
    "input_sequence": "<|im_start|>user",
    "output_sequence": "<|im_start|>assistant",
    "system_sequence": "<|im_start|>system",
    "input_suffix": "<|im_end|>\n",
    "output_suffix": "<|im_end|>\n",
    "system_suffix": "<|im_end|>\n",
    "stop_sequence": "<|im_end|>",
    "wrap": True,
    "macro": True,
    "names_behavior": "force",
}
TALK = [
    {"role": "system", "content": "SYS"},
    {"role": "user", "content": "one {{user}}"},
    {"role": "assistant", "content": "two"},
    {"role": "user", "content": "three"},
]


def imported(data: dict[str, Any]) -> ImportedPreset:
    return preset_from_text(json.dumps(data), Path("t.json"))


def rendered(preset: Preset, talk: list[dict[str, str]] = TALK) -> str:
    if preset.template:
        return JinjaTemplate(preset.template).render(talk, add_generation_prompt=True)
    return StringTemplate(**preset.parameters).render(talk)  # type: ignore[misc]


def test_a_template_that_string_templates_can_say_becomes_them() -> None:
    made = imported(CHATML)

    assert made.notes == ["it became string templates"]
    assert made.preset.template is None
    assert rendered(made.preset) == (
        "<|im_start|>system\nSYS<|im_end|>\n<|im_start|>user\none {{user}}<|im_end|>\n"
        "<|im_start|>assistant\ntwo<|im_end|>\n<|im_start|>user\nthree<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert made.preset.stop_sequences == ("<|im_end|>", "<|im_start|>user")


def test_any_other_becomes_jinja_that_says_it_exactly() -> None:
    made = imported({
        "name": "Llama",
        "input_sequence": "[INST] ",
        "output_sequence": " ",
        "system_sequence_prefix": "[INST] <<SYS>>\n",
        "system_sequence_suffix": "\n<</SYS>>\n",
        "input_suffix": " [/INST]",
        "output_suffix": " </s>",
        "first_output_sequence": " 🙂\"'\\ ",
        "last_output_sequence": ">>",
        "wrap": False,
        "system_same_as_user": True,
        "user_alignment_message": "Begin.",
        "names": True,
    })  # fmt: skip

    assert made.notes == ["it became a Jinja template"]
    assert rendered(made.preset) == (
        "[INST] <<SYS>>\nSYS\n<</SYS>>\n[INST] one {{user}} [/INST] two </s>[INST] three [/INST]>>"
    )
    greeted = [{"role": "assistant", "content": "hi"}, {"role": "system", "content": "note"}]
    assert rendered(made.preset, greeted) == (
        "[INST] Begin. [/INST] 🙂\"'\\ hi </s>[INST] note [/INST]>>"
    )


def test_names_are_put_before_lines_as_the_template_wants_it() -> None:
    modes = {
        mode: imported({**CHATML, "names_behavior": mode}).preset.user_name_in_message
        for mode in ("none", "force", "always")
    }
    assert modes == {"none": "not_add", "force": "default", "always": "add"}
    old = {key: value for key, value in CHATML.items() if key != "names_behavior"}
    assert imported({**old, "names": True}).preset.user_name_in_message == "add"
    assert imported({**old, "names_force_groups": False}).preset.user_name_in_message == "not_add"


def test_a_context_template_becomes_a_layout_without_control_tokens() -> None:
    made = imported({
        "name": "Context",
        "story_string": "<|im_start|>system\n{{#if system}}{{system}}\n{{/if}}"
        "{{#if description}}{{description}}\n{{/if}}{{trim}}<|im_end|>",
    })  # fmt: skip

    assert made.notes == ["its control tokens are left out: the model's template writes them"]
    story = parse_story_string(made.preset.story_string or "")
    assert story.compose({"system": "S", "description": "D {{system}}"}) == "S\nD {{system}}"
    assert story.compose({}) == ""
    assert parse_preset(export_preset(made.preset), "again") == made.preset


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"input_sequence": "<|im_start|>{{name}}"}, r"input_sequence: the macro \{\{name\}\}"),
        ({"last_input_sequence": "!"}, "last_input_sequence cannot be said here"),
        ({"output_suffix": 5}, "output_suffix must be a text, not int"),
    ],
)
def test_what_an_instruct_template_cannot_say_here_is_named(
    change: dict[str, Any], said: str
) -> None:
    with pytest.raises(PresetError, match=rf"^t\.json: {said}"):
        imported({**CHATML, **change})


@pytest.mark.parametrize(
    ("story", "said"),
    [
        ("{{#each items}}x{{/each}}", r"\{\{#each items\}\} cannot be translated"),
        ("{{lookup a b}}", r"\{\{lookup a b\}\} cannot be translated"),
        ("{{#if system}}x", r"\{\{#if system\}\} is never closed"),
        ("{{#if system}}x{{/unless}}", r"\{\{#if system\}\} is never closed"),
        ("x{{/if}}", r"\{\{/if\}\} closes nothing"),
        ("{{#if system}}" * 99, "nested deeper than 16"),
        ("x" * 50_001, "at most 50000 characters"),
    ],
)
def test_what_a_story_string_cannot_say_here_is_named(story: str, said: str) -> None:
    with pytest.raises(TemplateError, match=said):
        parse_story_string(story)
    with pytest.raises(PresetError, match=rf"^t\.json: .*{said}"):
        imported({"name": "c", "story_string": story})


def test_a_template_in_a_template_is_only_text() -> None:
    made = imported({**CHATML, "stop_sequence": "{% for a in b %}", "input_sequence": "{{ 7*7 }}"})

    assert "{{ 7*7 }}" in rendered(made.preset)
    assert "49" not in rendered(made.preset)

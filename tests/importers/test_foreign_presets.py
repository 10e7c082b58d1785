"""Samplers, prompts, and templates from other programs become presets."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from bot.backends.llama_cpp.sampling import find_parameter_problems
from bot.chat.prompt import Message
from bot.errors import PresetError
from bot.importers.preset_files import ImportedPreset, preset_from_text
from bot.prompting.compose.compose import choose_template
from bot.prompting.presets.files import export_preset, parse_preset
from bot.prompting.presets.preset import Preset
from bot.templates.renderer import ModelTemplate, Renderer

FILES = json.loads((Path(__file__).parent / "foreign_presets.json").read_text("utf-8"))
CHAT_COMPLETION = FILES["chat_completion"]
NORA = Preset.model_validate({
    "name": "nora",
    "provider": "far",
    "model": "big",
    "persona": "Nora mends {{char}}s.",
    "parameters": {"temperature": 1, "user_template": "U {{user}}", "top_p": 1},
})  # fmt: skip


def import_data(data: dict[str, Any], file: str = "Big O.json", **options: Any) -> ImportedPreset:
    result = preset_from_text(json.dumps(data), Path(file), **options)
    assert parse_preset(export_preset(result.preset), "again") == result.preset
    return result


def render_prompt(preset: Preset, *messages: Message) -> str:
    async def render() -> str:
        async with Renderer() as renderer:
            choice = choose_template(preset)
            return (await renderer.render(messages, choice, ModelTemplate())).text

    return asyncio.run(render())


def test_text_completion_preset_becomes_parameters_of_local_models() -> None:
    result = import_data(FILES["textgen"])

    assert result.preset.name == "Big O"
    assert (result.preset.max_output_tokens, result.preset.max_input_tokens) == (300, 7892)
    assert result.preset.parameters == {
        "temperature": 0.9,
        "top_p": 0.95, "top_k": 0, "min_p": 0.05, "typical_p": 1,
        "repeat_penalty": 1.1, "repeat_last_n": 1024, "frequency_penalty": 0,
        "presence_penalty": 0.1,
        "dry_multiplier": 0.8, "dry_base": 1.75, "dry_allowed_length": 2, "dry_penalty_last_n": 0,
        "dry_sequence_breakers": ["\n", ":"],
        "mirostat": 2, "mirostat_tau": 5, "mirostat_eta": 0.1,
    }  # fmt: skip
    assert find_parameter_problems(result.preset.parameters) == []
    assert result.notes == [
        "tfs, samplers (the engine's own is used) omitted: no engine here supports them"
    ]


def test_novel_sampler_limits_the_answer_by_max_length() -> None:
    preset = import_data(FILES["novel"]).preset

    assert (preset.max_output_tokens, preset.max_input_tokens) == (150, 7650)
    assert preset.parameters["presence_penalty"] == 0.005
    assert find_parameter_problems(preset.parameters) == []


def test_samplers_outside_their_range_are_listed_in_notes() -> None:
    result = import_data({"temp": 9, "top_p": 1, "rep_pen": 1, "top_k": -1, "rep_pen_range": 0})

    assert result.preset.parameters == {"top_p": 1, "repeat_penalty": 1}
    assert result.notes == ["temperature 9 is omitted: it must be from 0 to 5"]


def test_chat_completion_preset_keeps_the_prompts_around_the_chat() -> None:
    result = import_data(CHAT_COMPLETION)
    preset = result.preset

    assert (preset.provider, preset.model) == ("local", "default")
    assert [(one.marker, one.role, one.content, one.depth) for one in preset.prompts] == [
        ("main", "system", "Write {{char}}'s reply.", None),
        (None, "user", "Begin.", None),
        ("chatHistory", "system", "", None),
        (None, "assistant", "I think.", 2),
        ("jailbreak", "system", "Stay in character.", None),
    ]
    assert preset.user_name_in_message == "add"
    assert (preset.max_output_tokens, preset.max_input_tokens) == (300, 3795)
    assert "claude-sonnet is omitted" in result.notes[-1]


def test_system_prompt_becomes_system_text() -> None:
    data = {"name": "Neutral", "content": "Write {{char}}.", "post_history": "Now."}
    preset = import_data(data).preset

    assert (preset.name, preset.system) == ("Neutral", "Write {{char}}.")
    assert preset.post_history_instructions == "Now."


def test_sillytavern_master_export_becomes_one_preset() -> None:
    data = {
        "instruct": {"name": "X", "input_sequence": "U:", "output_sequence": "A:", "wrap": True},
        "context": {"story_string": "{{system}}\n{{description}}"},
        "sysprompt": {"name": "S", "content": "Be kind."},
        "preset": {"temp": 0.5, "top_p": 0.9, "rep_pen": 1.1},
        "reasoning": {"prefix": "<think>"},
    }
    preset = import_data(data).preset

    assert (preset.system, preset.story_string) == ("Be kind.", "{{system}}\n{{description}}")
    assert preset.parameters["temperature"] == 0.5
    assert render_prompt(preset, Message("user", "hi")) == "U:\nhi\nA:\n"


@pytest.mark.parametrize(("data", "prompt"), FILES["koboldcpp"])
def test_koboldcpp_adapter_renders_the_same_prompt_as_koboldcpp(
    data: dict[str, Any], prompt: str
) -> None:
    talk = (Message("system", "S"), Message("user", "a"), Message("assistant", "b"))

    assert render_prompt(import_data(data).preset, *talk, Message("user", "c")) == prompt


def test_lmdeploy_template_renders_and_stops_like_lmdeploy() -> None:
    preset = import_data(FILES["lmdeploy"]).preset

    assert preset.name == "your awesome chat template name"
    assert preset.parameters == {"temperature": 0.3}
    assert render_prompt(preset, Message("user", "hi")) == (
        "<|im_start|>system\nYou are a robot.<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert preset.template is not None


def test_file_added_to_a_preset_does_not_change_its_provider_or_model() -> None:
    samplers = import_data({"temp": 0.5, "top_k": 5, "min_p": 0.1}, base=NORA).preset
    chatml = {"name": "X", "input_sequence": "U:", "output_sequence": "A:", "system_prompt": ""}
    template = import_data(chatml, base=samplers).preset
    lore = import_data({"entries": {"0": {"key": ["a"], "content": "b"}}}, base=template).preset

    assert samplers.parameters["user_template"] == "U {{user}}"
    assert (lore.name, lore.provider, lore.model) == ("nora", "far", "big")
    assert lore.persona == NORA.persona
    assert not lore.macros
    assert lore.parameters["temperature"] == 0.5
    assert render_prompt(lore, Message("user", "hi")) == "U:\nhi\nA:\n"
    assert lore.parsed_lorebook is not None


def test_adding_a_complete_preset_to_another_preset_is_an_error() -> None:
    for text in ("FROM llama3.2", '{"name": "x", "provider": "a", "model": "b"}'):
        with pytest.raises(PresetError, match="import it without --into"):
            preset_from_text(text, Path("file"), base=NORA)

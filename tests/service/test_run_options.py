"""One run with another model: whatever the presets say, and without their fallbacks."""

import pytest

from bot.prompting.presets.preset import Preset
from bot.service.options import replace_model
from bot.settings import Settings

PRESET = Preset.model_validate(
    {
        "name": "nora",
        "provider": "a",
        "model": "small",
        "fallbacks": [{"provider": "b", "model": "large"}],
    }
)
SETTINGS = Settings.model_validate(
    {"providers": {"b": {"base_url": "http://127.0.0.1:1/v1"}, "echo": {"kind": "echo"}}}
)


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("huge", ("a", "huge")),
        ("b/huge", ("b", "huge")),
        ("qwen/qwen3", ("a", "qwen/qwen3")),  # no provider is called qwen
        ("b/", ("a", "b/")),
    ],
)
def test_model_of_a_run_replaces_model_and_fallbacks(model: str, expected: tuple[str, str]) -> None:
    changed = replace_model({"nora": PRESET}, model, SETTINGS)["nora"]
    assert (changed.provider, changed.model) == expected
    assert changed.fallbacks == ()


def test_presets_are_unchanged_without_a_model() -> None:
    assert replace_model({"nora": PRESET}, None, SETTINGS) == {"nora": PRESET}


def test_model_without_tools_leaves_out_those_of_the_preset() -> None:
    preset = PRESET.model_copy(update={"tools": ("dice",), "mcp_servers": ("files",)})
    at_service = replace_model({"nora": preset}, "b/huge", SETTINGS)["nora"]
    assert (at_service.tools, at_service.mcp_servers) == (("dice",), ("files",))
    on_machine = replace_model({"nora": preset}, "local/small", SETTINGS)["nora"]
    assert on_machine.calls_tools
    scripted = replace_model({"nora": preset}, "echo/small", SETTINGS)["nora"]
    assert not scripted.calls_tools

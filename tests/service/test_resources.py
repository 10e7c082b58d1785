"""Test the checks at startup: model files, and the engine that runs them."""

import os
from pathlib import Path

import pytest

from bot.backends.llama_cpp.settings import LlamaCppSettings
from bot.backends.openai_compatible.settings import OpenAISettings
from bot.errors import SettingsError
from bot.ports import Backend
from bot.prompting.presets.preset import Preset
from bot.service.backends import add_backends
from bot.service.resources import prepare_models
from bot.settings import Settings
from bot.templates.renderer import Renderer

ONLINE = {"name": "nora", "provider": "online", "model": "large"}
FALLBACK = [{"provider": "mine", "model": "default"}]


def make_settings(folder: Path) -> Settings:
    providers = {
        "online": OpenAISettings(base_url="http://127.0.0.1:1/v1"),
        "mine": LlamaCppSettings(model_path=folder / "nowhere.gguf"),
    }
    return Settings(data_dir=folder, providers=providers)


async def test_missing_model_file_of_a_fallback_is_an_error_at_startup(tmp_path: Path) -> None:
    preset = Preset.model_validate({**ONLINE, "fallbacks": FALLBACK})
    with pytest.raises(SettingsError, match=r"nowhere\.gguf"):
        await prepare_models(make_settings(tmp_path), preset, report=pytest.fail)


async def test_online_preset_needs_no_model_file(tmp_path: Path) -> None:
    await prepare_models(make_settings(tmp_path), Preset.model_validate(ONLINE), report=pytest.fail)
    assert os.listdir(tmp_path) == []


async def test_moderating_provider_needs_no_preset(tmp_path: Path) -> None:
    judge = OpenAISettings(base_url="http://127.0.0.1:1/v1", moderation_model="omni")
    settings = Settings(
        data_dir=tmp_path, providers={**make_settings(tmp_path).providers, "b": judge}
    )
    backends: dict[str, Backend] = {}
    add_backends(backends, settings, [Preset.model_validate(ONLINE)], Renderer())
    assert {name: one.can_moderate for name, one in backends.items()} == {
        "online": False,
        "b": True,
    }
    for one in backends.values():
        await one.close()


async def test_missing_engine_is_an_error_before_its_model_is_downloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bot.backends.llama_cpp.engine.find_spec", lambda _package: None)
    settings = Settings(data_dir=tmp_path, providers={"local": LlamaCppSettings()})
    preset = Preset.model_validate({"name": "nora", "provider": "local", "model": "default"})

    with pytest.raises(SettingsError, match=r"pip install 'troupe-bot\[local\]'"):
        await prepare_models(settings, preset, report=pytest.fail)
    assert os.listdir(tmp_path) == []

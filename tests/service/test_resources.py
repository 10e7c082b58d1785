"""Test what is opened at the start: a missing model file is named before the first message."""

import os
from pathlib import Path

import pytest

from bot.backends.llama_cpp.settings import LlamaCppSettings
from bot.backends.openai_compatible.settings import OpenAISettings
from bot.errors import SettingsError
from bot.prompting.presets.preset import Preset
from bot.service.models import prepare_models
from bot.settings import Settings

ONLINE = {"name": "nora", "provider": "online", "model": "large"}
FALLBACK = [{"provider": "mine", "model": "default"}]


def installed(folder: Path) -> Settings:
    providers = {
        "online": OpenAISettings(base_url="http://127.0.0.1:1/v1"),
        "mine": LlamaCppSettings(model_path=folder / "nowhere.gguf"),
    }
    return Settings(data_dir=folder, providers=providers)


async def test_missing_model_file_of_a_fallback_is_an_error_at_the_start(tmp_path: Path) -> None:
    preset = Preset.model_validate({**ONLINE, "fallbacks": FALLBACK})
    with pytest.raises(SettingsError, match=r"nowhere\.gguf"):
        await prepare_models(installed(tmp_path), preset, progress=pytest.fail)


async def test_online_preset_needs_no_model_file(tmp_path: Path) -> None:
    await prepare_models(installed(tmp_path), Preset.model_validate(ONLINE), progress=pytest.fail)
    assert os.listdir(tmp_path) == []

"""The chosen model becomes the provider `local`, which all shipped presets use."""

import json
from pathlib import Path

import pytest

from bot.backends.openai_compatible.services import KEYLESS_SERVICES, SERVICE_ADDRESSES
from bot.errors import SettingsError
from bot.settings import read_settings
from bot.setup import ModelChoice, find_local_services, try_model
from tests.rigs.fake_openai import FakeOpenAI


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("choice", "kind", "address"),
    [
        (ModelChoice("groq", api_key="k", model="m"), "openai", SERVICE_ADDRESSES["groq"]),
        (ModelChoice("ollama", model="m"), "openai", SERVICE_ADDRESSES["ollama"]),
        (ModelChoice(base_url="http://h:1/v1", model="m"), "openai", "http://h:1/v1"),
        (
            ModelChoice("anthropic", api_key="k", model="m"),
            "anthropic",
            "https://api.anthropic.com/v1",
        ),
        (ModelChoice(model="file"), "llama_cpp", None),
        (ModelChoice(), "llama_cpp", None),
    ],
)
def test_provider_local_has_the_chosen_model(
    choice: ModelChoice, kind: str, address: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in choice.variables.items():
        monkeypatch.setenv(name, value or "")
    local = read_settings().model_dump()["providers"]["local"]
    assert (local["kind"], local.get("base_url"), local["model"]) == (kind, address, choice.model)


async def test_services_on_this_machine_are_found_with_their_chat_models(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in KEYLESS_SERVICES:
        monkeypatch.setitem(SERVICE_ADDRESSES, name, "http://127.0.0.1:1/v1")
    async with FakeOpenAI() as service:
        names = ("m", "nomic-embed-text:latest", "bge-m3:latest", "all-minilm:22m")
        models = [{"id": one} for one in (*names, "text-embedding-multilingual-e5-large")]
        service.models_body = json.dumps({"object": "list", "data": models}).encode()
        monkeypatch.setitem(SERVICE_ADDRESSES, "lmstudio", service.base_url)
        assert await find_local_services() == {"lmstudio": ["m"]}


async def test_incomplete_model_choice_is_a_settings_error() -> None:
    with pytest.raises(SettingsError, match="has no key"):
        await try_model(ModelChoice("groq", model="m"))
    with pytest.raises(SettingsError, match="should be a URL"):
        await try_model(ModelChoice(base_url="localhost", model="m"))

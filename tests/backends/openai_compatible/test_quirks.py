"""Requests are changed to what each well-known service takes."""

import json

import pytest

from bot.backends.openai_compatible.backend import OpenAICompatibleBackend
from bot.backends.openai_compatible.settings import OpenAISettings
from tests.backends.asking import prompt

ASKED = {"temperature": 0.5, "seed": 3, "top_p": 0.9}


async def fields(provider: str, model: str) -> dict[str, object]:
    settings = OpenAISettings.model_validate({"api_key": "sk-x"}).completed(provider)
    backend = OpenAICompatibleBackend(settings, provider)
    question = prompt(model=model, parameters=ASKED, max_output_tokens=100, stop=("\nAnn:",))
    body = json.loads((await backend.describe(question)).text)
    return {name: value for name, value in body.items() if name not in {"messages", "stream"}}


async def test_service_without_quirks_gets_what_the_preset_says() -> None:
    assert await fields("deepseek", "deepseek-chat") == {
        **ASKED,
        "model": "deepseek-chat",
        "max_tokens": 100,
        "stop": ["\nAnn:"],
        "stream_options": {"include_usage": True},
    }


async def test_openai_limits_answers_by_another_name() -> None:
    sent = await fields("openai", "gpt-4o-mini")
    assert sent["max_completion_tokens"] == 100
    assert "max_tokens" not in sent
    assert sent["temperature"] == 0.5


@pytest.mark.parametrize("model", ["o3", "o4-mini", "gpt-5", "gpt-5-nano-2025-08-07"])
async def test_reasoning_models_of_openai_get_no_sampling_parameters(model: str) -> None:
    assert await fields("openai", model) == {
        "model": model,
        "seed": 3,
        "max_completion_tokens": 100,
        "stream_options": {"include_usage": True},
    }


async def test_mistral_is_not_asked_for_usage_and_seeds_by_another_name() -> None:
    assert await fields("mistral_ai", "mistral-small-latest") == {
        "model": "mistral-small-latest",
        "temperature": 0.5,
        "top_p": 0.9,
        "random_seed": 3,
        "max_tokens": 100,
        "stop": ["\nAnn:"],
    }

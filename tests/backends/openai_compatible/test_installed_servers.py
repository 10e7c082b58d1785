"""Two third-party servers, aimock and LiteLLM's proxy, with both API dialects."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from bot.backends.anthropic.backend import AnthropicBackend
from bot.backends.anthropic.settings import AnthropicSettings
from bot.backends.openai_compatible.backend import OpenAICompatibleBackend
from bot.backends.openai_compatible.settings import OpenAISettings
from bot.ports import Backend
from bot.replying.generate import generate_answer
from bot.tools import Toolbox, dice_tool
from tests.backends.asking import ask, prompt
from tests.backends.openai_compatible.installed import (
    free_port,
    install_aimock,
    install_litellm,
    running,
)
from tests.fakes import FakeClock

pytestmark = [pytest.mark.soak, pytest.mark.asyncio(loop_scope="module")]
KEY = "sk-master"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("servers")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def aimock(folder: Path) -> AsyncIterator[int]:
    port = free_port()
    command = [*install_aimock(folder / "aimock"), "--log-level", "warn", "-p", str(port)]
    async with running(command, port, folder / "aimock.log"):
        yield port


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def litellm(folder: Path, aimock: int) -> AsyncIterator[int]:
    port, upstream = free_port(), f"http://127.0.0.1:{aimock}"
    routes = {
        "well": {"model": "openai/well", "api_base": f"{upstream}/v1", "api_key": "sk-up"},
        "claude": {"model": "anthropic/claude-x", "api_base": upstream, "api_key": "sk-up"},
        "away": {"model": "openai/away", "api_base": "http://127.0.0.1:9/v1", "api_key": "sk-up"},
    }
    config = {
        "model_list": [{"model_name": name, "litellm_params": one} for name, one in routes.items()],
        "litellm_settings": {"telemetry": False, "num_retries": 0},
        "general_settings": {"master_key": KEY},
    }
    file = folder / "litellm.yaml"
    file.write_text(json.dumps(config), "utf-8")  # JSON is YAML
    options = ["--config", str(file), "--host", "127.0.0.1", "--port", str(port)]
    command = install_litellm(folder / "litellm")
    async with running([*command, *options], port, folder / "litellm.log"):
        yield port


def connect_openai(port: int, key: str = KEY) -> OpenAICompatibleBackend:
    given = {"base_url": f"http://127.0.0.1:{port}/v1", "api_key": key}
    return OpenAICompatibleBackend(OpenAISettings.model_validate(given), "foreign")


def connect_anthropic(port: int, key: str = KEY) -> AnthropicBackend:
    given = {"base_url": f"http://127.0.0.1:{port}/v1", "api_key": key}
    return AnthropicBackend(AnthropicSettings.model_validate(given), "foreign")


async def check_answers_and_tools(backend: Backend, model: str) -> None:
    answer = await ask(backend, prompt("hello", model=model))
    assert (answer.error, answer.text) == (None, "Hello there, how are you?")
    tools = Toolbox([dice_tool(lambda: 0.5)], FakeClock())
    rolled = await generate_answer(
        *(backend, prompt("roll", model=model), lambda _: None, lambda _: None, FakeClock()),
        tools=tools,
    )
    assert rolled.text == "You rolled eight."
    assert [one.result.splitlines()[1] for one in rolled.tool_calls] == ["> 2d6: 8 (4, 4)"]


@pytest.mark.parametrize("make", [connect_openai, connect_anthropic])
async def test_aimock_answers_and_calls_tools(
    aimock: int, make: type[OpenAICompatibleBackend]
) -> None:
    backend = make(aimock)  # type: ignore[call-arg,arg-type]
    await check_answers_and_tools(backend, "m")
    await backend.close()


@pytest.mark.parametrize("model", ["well", "claude"])
async def test_litellm_answers_and_calls_tools(litellm: int, model: str) -> None:
    backend = connect_openai(litellm)
    await check_answers_and_tools(backend, model)
    assert set(await backend.list_models()) == {"well", "claude", "away"}
    await backend.close()


async def test_litellm_works_with_the_messages_api(litellm: int) -> None:
    backend = connect_anthropic(litellm)
    await check_answers_and_tools(backend, "claude")
    await backend.close()


async def test_litellm_errors_have_specific_messages(litellm: int) -> None:
    for key, model, words in (
        ("sk-wrong", "well", "rejected the API key"),
        (KEY, "nothing", "does not know the model 'nothing'"),
        (KEY, "away", "try again later"),
    ):
        backend = connect_openai(litellm, key)
        answer = await ask(backend, prompt("hello", model=model))
        assert words in answer.error_texts
        await backend.close()

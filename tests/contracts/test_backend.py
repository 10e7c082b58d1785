"""Contract of backends."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import pytest
import pytest_asyncio

from bot.backends.factory import make_backend
from bot.chat.prompt import Delta, FinishReason, Message, Prompt
from bot.errors import BackendUnavailable
from bot.ports import Backend
from bot.settings import read_settings
from bot.templates.renderer import Renderer
from tests.backends.asking import ask
from tests.backends.local_model import WITH_BINDINGS, lend_model
from tests.rigs.fake_anthropic import FakeAnthropic
from tests.rigs.fake_openai import FakeOpenAI
from tests.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.asyncio(loop_scope="module")

KINDS = [
    "echo",
    "openai",
    "anthropic",
    pytest.param("xllamacpp", marks=pytest.mark.service),
    pytest.param("llama_cpp_python", marks=[pytest.mark.service, WITH_BINDINGS]),
]
PROMPT = Prompt(
    messages=(
        Message("system", "You are helpful."),
        Message("user", "What is the capital of France?"),
        Message("assistant", "Paris."),
        Message("user", "And which one is the capital of Italy?"),
    ),
    model="default",
    conversation="telegram:1",
    stop=("\nAnn:",),
    parameters={"temperature": 0, "user_template": "{{ content }}"},
    max_output_tokens=30,
)


@pytest_asyncio.fixture(params=KINDS, scope="module", loop_scope="module")
async def backend(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Backend]:
    folder: Path = tmp_path_factory.mktemp("backend")
    async with FakeOpenAI() as openai, FakeAnthropic() as anthropic, Renderer() as renderer:
        given: dict[str, object] = {"kind": request.param}
        services = {"openai": openai, "anthropic": anthropic}
        if service := services.get(request.param):
            given |= {"base_url": service.base_url, "api_key": "key", "model": "m"}
        elif request.param != "echo":
            given = {
                "kind": "llama_cpp",
                "engine": request.param,
                "threads": 1,
                "context_tokens": 512,
            }
            await lend_model(folder)
        settings = read_settings(providers={"tested": given}).providers["tested"]
        backend = make_backend("tested", settings, folder, renderer)
        yield backend
        await backend.close()
        await backend.close()  # it may be repeated


async def test_answer_is_deltas_and_one_finish(backend: Backend) -> None:
    answer = await ask(backend, PROMPT)

    assert answer.error is None
    assert answer.text
    assert answer.finish is not None
    assert answer.finish.reason in FinishReason
    assert answer.finish.usage.prompt_tokens > 0
    assert answer.finish.usage.output_tokens > 0


async def test_concurrent_answers_do_not_mix(backend: Backend) -> None:
    async with asyncio.TaskGroup() as tasks:
        requests = [tasks.create_task(ask(backend, PROMPT)) for _ in range(5)]

    assert len({task.result().text for task in requests}) == 1


async def test_generator_may_be_closed_at_any_delta(backend: Backend) -> None:
    async with aclosing(backend.generate(PROMPT)) as pieces:
        assert isinstance(await anext(pieces), Delta)

    assert (await ask(backend, PROMPT)).finish is not None


async def test_generation_may_be_cancelled(backend: Backend) -> None:
    task = asyncio.create_task(ask(backend, PROMPT))
    await asyncio.sleep(0)
    task.cancel()
    ended, _ = await asyncio.wait({task}, timeout=PATIENCE_SECONDS)

    assert ended
    assert (await ask(backend, PROMPT)).finish is not None


async def test_check_returns_a_description(backend: Backend) -> None:
    assert await backend.check()


@pytest.mark.parametrize("kind", ["openai", "anthropic", "llama_cpp"])
async def test_check_fails_if_nothing_answers(kind: str, tmp_path: Path) -> None:
    given = {"kind": kind, "base_url": "http://127.0.0.1:9"}
    settings = read_settings(providers={"tested": given}).providers["tested"]
    backend = make_backend("tested", settings, tmp_path, Renderer())

    with pytest.raises(BackendUnavailable):
        await backend.check()

    await backend.close()

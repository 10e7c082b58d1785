"""Contract of backends: the check fails if the service is down."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from bot.backends.factory import make_backend
from bot.contracts import (  # noqa: F401 # pytest runs them
    test_answer_consists_of_deltas_and_one_finish,
    test_check_returns_a_description,
    test_concurrent_answers_do_not_mix,
    test_generation_can_be_cancelled,
    test_generator_can_be_closed_after_any_delta,
)
from bot.errors import BackendUnavailable
from bot.ports import Backend
from bot.settings import read_settings
from bot.templates.renderer import Renderer
from tests.backends.local_model import WITH_BINDINGS, lend_model
from tests.rigs.fake_anthropic import FakeAnthropic
from tests.rigs.fake_openai import FakeOpenAI

pytestmark = pytest.mark.asyncio(loop_scope="module")

KINDS = [
    "echo",
    "openai",
    "anthropic",
    pytest.param("xllamacpp", marks=pytest.mark.service),
    pytest.param("llama_cpp_python", marks=[pytest.mark.service, WITH_BINDINGS]),
]


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


@pytest.mark.parametrize("kind", ["openai", "anthropic", "llama_cpp"])
async def test_check_fails_if_the_service_is_down(kind: str, tmp_path: Path) -> None:
    given = {"kind": kind, "base_url": "http://127.0.0.1:9"}
    settings = read_settings(providers={"tested": given}).providers["tested"]
    backend = make_backend("tested", settings, tmp_path, Renderer())

    with pytest.raises(BackendUnavailable):
        await backend.check()

    await backend.close()

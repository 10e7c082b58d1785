"""llama.cpp's own server over TCP, used like any OpenAI-compatible provider."""

import asyncio
import sys
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from bot.backends.openai_compatible.backend import OpenAICompatibleBackend
from bot.backends.openai_compatible.settings import OpenAISettings
from bot.chat.prompt import Finish, FinishReason, ToolCall, ToolExchange, ToolSpec
from tests.backends.asking import ask, prompt
from tests.backends.local_model import lend_model
from tests.checkout import CHECKOUT

pytestmark = [pytest.mark.service, pytest.mark.asyncio(loop_scope="module")]
CHILD = "tests.backends.llama_server_child"
TEMPLATE = str(CHECKOUT / "bot/templates/families/qwen2.5.jinja")
PARAMETERS = {"type": "object", "properties": {"dice": {"type": "string"}}}
SPEC = ToolSpec("dice", "Roll dice and return each die and the sum.", PARAMETERS)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def base_url(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    model = await lend_model(tmp_path_factory.mktemp("data") / "data")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", CHILD, str(model), "0", "2", "1536", "sk-right", TEMPLATE),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert process.stdout is not None
    line = (await process.stdout.readline()).decode()
    yield f"{line.split()[-1]}/v1"
    process.kill()
    await process.wait()


@pytest_asyncio.fixture(loop_scope="module")
async def backend(base_url: str) -> AsyncIterator[OpenAICompatibleBackend]:
    backend = make_backend(base_url)
    yield backend
    await backend.close()


def make_backend(base_url: str, key: str = "sk-right") -> OpenAICompatibleBackend:
    settings = {"base_url": base_url, "api_key": key, "first_token_seconds": 90, "idle_seconds": 60}
    return OpenAICompatibleBackend(OpenAISettings.model_validate(settings), "llama_server")


async def ask_and_finish(backend: OpenAICompatibleBackend, **parts: object) -> tuple[str, Finish]:
    answer = await ask(backend, prompt("Roll two dice.", max_output_tokens=6, **parts))
    assert answer.error is None
    assert answer.finish is not None
    return answer.text, answer.finish


async def test_answer_is_streamed_with_its_usage(backend: OpenAICompatibleBackend) -> None:
    text, finish = await ask_and_finish(backend)
    assert text
    assert finish.reason in {FinishReason.LENGTH, FinishReason.STOP}
    assert 0 < finish.usage.output_tokens <= 6
    _, again = await ask_and_finish(backend)
    assert again.usage.cached_tokens > finish.usage.prompt_tokens / 2


async def test_closed_idle_connection_causes_no_failure(backend: OpenAICompatibleBackend) -> None:
    for _ in range(3):
        await ask_and_finish(backend)
        assert "answers at" in await backend.check()


async def test_template_gets_tools_calls_and_results(backend: OpenAICompatibleBackend) -> None:
    _, plain = await ask_and_finish(backend)
    _, offered = await ask_and_finish(backend, tools=(SPEC,))
    assert offered.usage.prompt_tokens > plain.usage.prompt_tokens + 50
    exchange = ToolExchange("", (ToolCall("c1", "dice", '{"dice": "2d6"}'),), ("> 2d6: 8",))
    _, after = await ask_and_finish(backend, tool_exchanges=(exchange,))
    assert after.usage.prompt_tokens > plain.usage.prompt_tokens + 10


async def test_interrupted_answer_is_continued(backend: OpenAICompatibleBackend) -> None:
    assert backend.can_continue(prompt())
    text, _ = await ask_and_finish(backend, begun="One, two, three,")
    assert not text.lstrip().startswith("One")


async def test_errors_have_specific_messages(base_url: str) -> None:
    for key, question, words in (
        ("sk-wrong", prompt(), "rejected the API key (401)"),
        ("sk-right", prompt("word " * 5000), "too long for 'm' (400)"),
    ):
        backend = make_backend(base_url, key)
        answer = await ask(backend, question)
        assert words in answer.error_texts
        await backend.close()

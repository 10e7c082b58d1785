"""Tools for local models: offered if the model's template supports them."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs
from typing_extensions import override

from bot.backends.llama_cpp.backend import LlamaCpp
from bot.backends.llama_cpp.engine import EngineConfig, GenerationRequest
from bot.backends.llama_cpp.settings import LlamaCppSettings
from bot.backends.model_files.store import DEFAULT_MODEL_FILE
from bot.chat.prompt import (
    Delta,
    Finish,
    FinishReason,
    Prompt,
    TemplateChoice,
    ToolCall,
    ToolExchange,
    ToolSpec,
)
from bot.templates.renderer import Renderer
from tests.backends import tiny_gguf
from tests.backends.asking import ask, prompt
from tests.backends.fake_engine import FakeEngine

QWEN = TemplateChoice(named="qwen2.5")
GEMMA = TemplateChoice(named="gemma-3")
DICE = ToolSpec("dice", "Roll dice.", {"type": "object", "properties": {}})
CALL = '<tool_call>\n{"name": "dice", "arguments": {"dice": "2d6"}}\n</tool_call>'


class CallingEngine(FakeEngine):
    """Answers with a tool call, one letter at a time."""

    def __init__(self, folder: Path) -> None:
        super().__init__(1, folder)
        self.requests: list[GenerationRequest] = []

    @override
    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Delta | Finish, None]:
        self.requests.append(request)
        for letter in f"Let me see. {CALL}":
            yield Delta(letter)
        yield Finish(FinishReason.STOP)

    def read(self, number: int = -1) -> str:
        """Return a request's prompt as text; each id is a letter."""
        return "".join(map(chr, self.requests[number].prompt_ids))


class Local:
    def __init__(self, backend: LlamaCpp, engines: list[CallingEngine]) -> None:
        self.backend = backend
        self._engines = engines

    @property
    def engine(self) -> CallingEngine:
        [engine] = self._engines
        return engine


@pytest.fixture
def file_name() -> str:
    return "m.gguf"


@pytest.fixture
async def local(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, file_name: str
) -> AsyncIterator[Callable[[], Local]]:
    engines: list[CallingEngine] = []

    @asynccontextmanager
    async def running(start: EngineConfig) -> AsyncIterator[CallingEngine]:
        engines.append(CallingEngine(start.slots_folder))
        yield engines[-1]

    monkeypatch.setattr("bot.backends.llama_cpp.loaded_model.run_engine", running)
    family = tiny_gguf.Vocabulary("qwen2", ("<|im_end|>", "<|im_start|>"), ("<tool_call>",))
    settings = LlamaCppSettings(model_path=tiny_gguf.write(tmp_path / file_name, family), threads=1)
    async with Renderer() as renderer:
        backend = LlamaCpp(settings, tmp_path, renderer)
        yield lambda: Local(backend, engines)
        await backend.close()


def prompt_with(template: TemplateChoice = QWEN, **parts: object) -> Prompt:
    given: dict[str, object] = {"tools": (DICE,), "template": template} | parts
    return prompt("Roll two dice.", model="default", **given)


async def test_call_arrives_with_the_finish_event_and_its_result_is_in_the_next_prompt(
    local: Callable[[], Local],
) -> None:
    backend = local().backend
    answer = await ask(backend, prompt_with())
    assert answer.text == "Let me see. "
    assert answer.finish is not None
    assert answer.finish.tool_calls == (ToolCall("call_0", "dice", '{"dice": "2d6"}'),)
    engine = local().engine
    assert '"description": "Roll dice."' in engine.read()
    assert {"<tool_call>", "</tool_call>"} <= set(engine.requests[0].preserved_tokens)

    exchange = ToolExchange(answer.text, answer.finish.tool_calls, ("> 2d6: 8",))
    await ask(backend, prompt_with(tools=(), tool_exchanges=(exchange,)))
    assert "<tool_response>\n> 2d6: 8\n</tool_response>" in engine.read()


@pytest.mark.parametrize(("file_name", "limit"), [("m.gguf", None), (DEFAULT_MODEL_FILE, 400)])
async def test_only_the_bundled_model_has_its_own_tool_limit(
    local: Callable[[], Local], limit: int | None
) -> None:
    await ask(local().backend, prompt_with())
    await ask(local().backend, prompt_with(max_output_tokens=900))
    assert [one.max_output_tokens for one in local().engine.requests] == [limit, 900]


async def test_no_tools_are_offered_if_the_template_does_not_support_them(
    local: Callable[[], Local],
) -> None:
    backend = local().backend
    assert await backend.calls_tools("default", QWEN)
    assert not await backend.calls_tools("default", GEMMA)
    assert not await backend.calls_tools("default", TemplateChoice())  # ChatML
    assert not await backend.calls_tools("lost", QWEN)
    answer = await ask(backend, prompt_with(GEMMA))
    assert answer.text == f"Let me see. {CALL}"
    assert "Roll dice" not in local().engine.read()


async def test_tokens_are_reserved_for_results(local: Callable[[], Local]) -> None:
    backend = local().backend
    plain = await backend.max_prompt_tokens(prompt_with(tools=()))
    offering = await backend.max_prompt_tokens(prompt_with())
    assert plain is not None
    assert offering is not None
    assert 600 < plain - offering < 1000
    assert await backend.count_tokens(prompt_with()) > await backend.count_tokens(
        prompt_with(tools=())
    )


async def test_overlong_tools_and_results_are_truncated(local: Callable[[], Local]) -> None:
    backend = local().backend
    call = ToolCall("c", "dice", "{}")
    exchange = ToolExchange("", (call,) * 4, ("字" * 4000,) * 4)
    await ask(backend, prompt_with(tool_exchanges=(exchange,) * 2))
    assert local().engine.read().count("[the rest is omitted]") == 8
    assert local().engine.read().count("字") < 700
    long = replace(DICE, description="x" * 12_000)
    with capture_logs() as logs:
        await ask(backend, prompt_with(tools=(long,)))
    assert "xxx" not in local().engine.read()
    assert [line["event"] for line in logs if line["log_level"] == "warning"] == ["tools_too_long"]

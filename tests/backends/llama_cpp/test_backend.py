"""The backend for a model on this machine, and its engine process."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from bot.backends.llama_cpp.backend import LlamaCpp
from bot.backends.llama_cpp.settings import LlamaCppSettings
from bot.chat.prompt import GenerationEvent, Image, Message, TemplateChoice
from bot.errors import BackendInterrupted, BackendUnavailable
from bot.prompting.draft import Draft, group_history
from bot.prompting.fit import fit_draft
from bot.templates.renderer import Renderer
from tests.backends import tiny_gguf
from tests.backends.asking import ask, prompt
from tests.backends.fake_engine import running_fake_engine
from tests.backends.local_model import DEFAULT_ENGINE, lend_model

STORY = prompt(
    "Tell me a very long story.",
    model="default",
    max_output_tokens=400,
    parameters={"temperature": 0},
)
LONG_READING = prompt("word " * 500, model="default", max_output_tokens=5)


@pytest.fixture(params=DEFAULT_ENGINE)
async def local(
    request: pytest.FixtureRequest, tmp_path: Path, renderer: Renderer
) -> AsyncIterator[LlamaCpp]:
    await lend_model(tmp_path)
    settings = LlamaCppSettings(engine=request.param, threads=1)
    backend = LlamaCpp(settings, tmp_path, renderer)
    await backend.preload("default")
    yield backend
    await backend.close()


def engine() -> psutil.Process:
    """Return the engine that the test started."""
    (child,) = psutil.Process().children()
    return child


async def cpu_seconds_when_idle(process: psutil.Process) -> float:
    """Wait until a process is idle; return the CPU seconds that it has used so far."""
    before, now = -1.0, process.cpu_times().user
    while now > before + 0.05:
        await asyncio.sleep(0.5)  # in which a process that computes gets at least a tenth
        before, now = now, process.cpu_times().user
    return float(now)


@pytest.mark.service
async def test_count_tokens_matches_the_usage_reported_by_the_engine(local: LlamaCpp) -> None:
    asked = prompt("日本 🙂 <|im_end|> and so on", model="default", max_output_tokens=3)

    answer = await ask(local, asked)

    assert answer.finish is not None
    assert await local.count_tokens(asked) == answer.finish.usage.prompt_tokens


@pytest.mark.service
async def test_history_is_fitted_with_the_token_counts_of_the_engine(local: LlamaCpp) -> None:
    said = [Message("user", "words " * 9), Message("assistant", "и слова 🙂 " * 5)] * 40
    frame = prompt("and now?", model="default", max_output_tokens=3)
    draft = Draft(frame, (), (), None, group_history(said), (), frame.messages[0])

    fitted = await fit_draft(draft, 500, local.count_tokens)
    answer = await ask(local, fitted.prompt)

    assert answer.finish is not None
    assert 420 < answer.finish.usage.prompt_tokens == fitted.tokens <= 500


@pytest.mark.service
async def test_max_prompt_tokens_is_the_context_minus_the_answer(local: LlamaCpp) -> None:
    assert await local.max_prompt_tokens(prompt(model="default", max_output_tokens=96)) == 4000
    assert (
        await local.max_prompt_tokens(prompt(model="default", parameters={"max_tokens": 196}))
        == 3900
    )
    assert await local.max_prompt_tokens(prompt(model="default")) == 3072


@pytest.mark.service
async def test_template_of_the_prompt_replaces_the_models_template(local: LlamaCpp) -> None:
    for choice in (
        TemplateChoice(source="Q: {{ messages[-1].content }}\nA:"),
        TemplateChoice(strings={"user_template": "Q: {{user}}", "end_template": "A:"}),
    ):
        question = prompt("<|im_end|>?", model="default", template=choice)

        tokens = await local.tokenize(question)

        assert "".join(token.text for token in tokens) == "Q: <|im_end|>?\nA:"
        assert not any(token.control for token in tokens)


@pytest.mark.service
async def test_failing_template_is_reported_to_chat_and_operator(local: LlamaCpp) -> None:
    choice = TemplateChoice(source="{{ raise_exception('no such thing') }}")

    answer = await ask(local, prompt(model="default", template=choice))

    assert "no such thing" in answer.error_texts
    assert "template cannot be used; the bot's operator" in answer.error_texts


@pytest.mark.parametrize(
    ("engine", "why"),
    [
        ("xllamacpp", None),
        ("llama_cpp", "the engine llama_cpp_python has no parameter 'top_n_sigma'; remove it"),
    ],
)
async def test_unsupported_parameter_is_rejected_by_name(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    renderer: Renderer,
    engine: str,
    why: str | None,
) -> None:
    monkeypatch.setattr("bot.backends.llama_cpp.engine.find_spec", {engine: engine}.get)
    monkeypatch.setattr("bot.backends.llama_cpp.loaded_model.run_engine", running_fake_engine)
    family = tiny_gguf.Vocabulary("qwen2", ("<|im_start|>", "<|im_end|>"))
    model = tiny_gguf.write(tmp_path / "m.gguf", family)
    backend = LlamaCpp(LlamaCppSettings(threads=1, model_path=model), tmp_path, renderer)

    answer = await ask(backend, prompt(model="default", parameters={"top_n_sigma": 2}))

    assert why in answer.error_texts if why else answer.text == "yes"
    await backend.close()


@pytest.mark.service
async def test_image_for_a_model_without_vision_is_refused(local: LlamaCpp) -> None:
    shown = Message("user", "What is it?", ("What is it?", Image("data:image/png;base64,AA==")))

    answer = await ask(local, replace(prompt(model="default"), messages=(shown,)))

    assert "smollm2-135m-instruct-q4_1 cannot see images" in answer.error_texts


@pytest.mark.service
async def test_closing_the_generator_stops_the_engine(local: LlamaCpp) -> None:
    began = await cpu_seconds_when_idle(engine())
    async with aclosing(local.generate(STORY)) as pieces:
        await anext(pieces)
    stopped = await cpu_seconds_when_idle(engine())

    await ask(local, STORY)

    assert stopped - began < (await cpu_seconds_when_idle(engine()) - stopped) / 2


@pytest.mark.service
async def test_killed_engine_interrupts_the_answer_and_restarts(local: LlamaCpp) -> None:
    killed = engine().pid
    received: list[GenerationEvent] = []

    async def listen() -> None:
        async for piece in local.generate(STORY):
            if not received:
                os.kill(killed, signal.SIGKILL)
            received.append(piece)

    with pytest.raises(BackendInterrupted):
        await listen()

    assert received
    assert (await ask(local, prompt(model="default", max_output_tokens=5))).finish is not None
    assert engine().pid != killed


@pytest.mark.service
async def test_request_is_retried_if_the_engine_is_killed_before_the_first_token(
    local: LlamaCpp,
) -> None:
    asking = asyncio.create_task(ask(local, LONG_READING))
    await asyncio.sleep(0.5)
    engine().kill()

    answer = await asking

    assert answer.error is None
    assert answer.finish is not None


@pytest.mark.service
async def test_hanging_engine_is_killed_and_its_request_is_retried(
    tmp_path: Path, renderer: Renderer
) -> None:
    await lend_model(tmp_path)
    quick = LlamaCppSettings(threads=1, first_token_seconds=5)
    local = LlamaCpp(quick, tmp_path, renderer)
    await local.preload("default")
    stuck = engine()
    stuck.suspend()

    answer = await ask(local, prompt(model="default", max_output_tokens=5))
    await local.close()

    assert not stuck.is_running()
    assert answer.error is None
    assert answer.finish is not None


@pytest.mark.service
async def test_engine_listens_on_a_private_socket_only(local: LlamaCpp) -> None:
    process = engine()
    sockets = [each for each in process.net_connections("inet") if each.status == "LISTEN"]
    socket = Path(json.loads(process.cmdline()[-1])["socket"])

    assert sockets == []
    assert socket.parent.stat().st_mode & 0o077 == 0


@pytest.mark.service
async def test_close_ends_the_process_and_removes_the_socket(local: LlamaCpp) -> None:
    process = engine()
    socket = Path(json.loads(process.cmdline()[-1])["socket"])

    await local.close()

    assert not process.is_running()
    assert not socket.parent.exists()


async def test_missing_model_is_reported_with_a_remedy(tmp_path: Path, renderer: Renderer) -> None:
    answer = await ask(LlamaCpp(LlamaCppSettings(), tmp_path, renderer), STORY)

    assert str(answer.error) == (
        f"there is no model {tmp_path}/models/smollm2-135m-instruct-q4_1.gguf; "
        "download it with `troupe model pull`"
    )


async def test_forget_works_while_another_model_is_loading(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, renderer: Renderer
) -> None:
    monkeypatch.setattr("bot.backends.llama_cpp.loaded_model.run_engine", running_fake_engine)
    family = tiny_gguf.Vocabulary("qwen2", ("<|im_start|>", "<|im_end|>"))
    one, other = (str(tiny_gguf.write(tmp_path / f"{name}.gguf", family)) for name in "ab")
    backend = LlamaCpp(LlamaCppSettings(), tmp_path, renderer)
    await backend.preload(one)

    starting = asyncio.create_task(backend.preload(other))
    forgotten_while_loading = 0
    while not starting.done():
        await backend.forget("chat")
        await backend.end_session("chat")
        forgotten_while_loading += not starting.done()
        await asyncio.sleep(0)
    assert forgotten_while_loading > 0

    await starting
    await backend.close()


@pytest.mark.service
async def test_invalid_model_is_reported_in_one_line(tmp_path: Path, renderer: Renderer) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + bytes(100))
    backend = LlamaCpp(LlamaCppSettings(model_path=broken), tmp_path, renderer)

    answer = await ask(backend, STORY)
    await backend.close()

    assert isinstance(answer.error, BackendUnavailable)
    assert "the engine of broken exited on startup" in str(answer.error)
    assert "\n" not in str(answer.error)

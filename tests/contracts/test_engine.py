"""Contract of engines for local models, tested with a real small model."""

import asyncio
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from http import HTTPStatus
from pathlib import Path

import psutil
import pytest
import pytest_asyncio
from aiohttp import ClientSession

from bot.backends.llama_cpp.engine import (
    Engine,
    EngineConfig,
    EngineFailed,
    GenerationRequest,
    run_engine,
)
from bot.backends.llama_cpp.settings import LlamaCppSettings
from bot.chat.prompt import Delta, Finish, FinishReason
from bot.errors import BackendUnavailable
from tests.backends.local_model import ENGINES, lend_model
from tests.backends.tiny_gguf import Vocabulary, write
from tests.waiting import wait_until

pytestmark = [pytest.mark.service, pytest.mark.asyncio(loop_scope="module")]

ASKED = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
CONTEXT_TOKENS = 768
STORY_TOKENS = 250
LONG = ASKED.format("The lamp keeper walks along the harbour and counts the ships. " * 40)


@pytest_asyncio.fixture(params=ENGINES, scope="module", loop_scope="module")
async def config(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> EngineConfig:
    folder: Path = tmp_path_factory.mktemp("engine")
    model = await lend_model(folder)
    parallel = 3 if request.param == "xllamacpp" else 1
    settings = LlamaCppSettings(
        engine=request.param, threads=1, context_tokens=CONTEXT_TOKENS, parallel=parallel
    )
    slots_folder = folder / "slots_folder"
    slots_folder.mkdir()
    return EngineConfig(model, "tested", settings, folder, slots_folder)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(config: EngineConfig) -> AsyncIterator[Engine]:
    async with run_engine(config) as engine:
        yield engine


@dataclass
class Answer:
    text: str
    finish: Finish


async def ids(engine: Engine, text: str) -> list[int]:
    (found,) = await engine.tokenize([text], parse_special=True)
    return found


async def ask(
    engine: Engine,
    text: str,
    slot: int | None = None,
    *,
    most: int = 24,
    stop: tuple[str, ...] = ("<|im_end|>",),
    sampling: Mapping[str, object] | None = None,
) -> Answer:
    given = {"temperature": 0} if sampling is None else sampling
    request = GenerationRequest(await ids(engine, text), stop, given, most, slot)
    said, finish = "", None
    async for piece in engine.generate(request):
        match piece:
            case Delta(words):
                said += words
            case Finish():
                finish = piece
            case _:
                raise AssertionError("an engine does not know thoughts from words")
    assert finish is not None
    return Answer(said, finish)


async def test_answer_has_a_finish_reason_and_usage(engine: Engine) -> None:
    answer = await ask(engine, ASKED.format("What is the capital of France?"))

    assert "Paris" in answer.text
    assert answer.finish.reason is FinishReason.STOP
    assert answer.finish.usage.prompt_tokens == 16
    assert answer.finish.usage.output_tokens == 8


async def test_context_and_slots_are_as_configured(engine: Engine, config: EngineConfig) -> None:
    assert await engine.fetch_context_tokens() == CONTEXT_TOKENS
    assert engine.slot_count == config.settings.parallel


async def test_concurrent_answers_do_not_mix(engine: Engine) -> None:
    questions = [ASKED.format(f"What is the capital of {name}?") for name in ("Italy", "Spain")]
    slots = [number % engine.slot_count for number in range(3)]
    alone = [(await ask(engine, question, slots[2])).text for question in questions]

    async with asyncio.TaskGroup() as tasks:
        asked = [
            tasks.create_task(ask(engine, question, slot))
            for question, slot in zip(questions, slots, strict=False)
        ]

    assert [each.result().text.split()[:4] for each in asked] == [
        each.split()[:4] for each in alone
    ]


async def test_next_turn_decodes_only_new_tokens(engine: Engine) -> None:
    turn = ASKED.format("Remember: " + "apple pear plum " * 40)
    first = await ask(engine, turn, 0)

    second = await ask(engine, turn + first.text + "<|im_end|>\n" + ASKED.format("Which?"), 0)

    assert second.finish.usage.cached_tokens >= first.finish.usage.prompt_tokens


async def test_saved_slot_survives_a_restart(config: EngineConfig) -> None:
    async with run_engine(config) as engine:
        read = (await ask(engine, LONG, 0, most=2)).finish.usage.prompt_tokens
        saved = await engine.save_slot(0, "slot.bin")
        await engine.erase_slot(0)
        assert (await ask(engine, LONG, 0, most=2)).finish.usage.cached_tokens == 0

    async with run_engine(config) as engine:
        last = engine.slot_count - 1
        assert await engine.restore_slot(last, "slot.bin") == saved
        answer = await ask(engine, LONG, last, most=2)

    assert saved >= read
    assert answer.finish.usage.cached_tokens == read - 1


@pytest.mark.parametrize("file", ["no such", "broken", "../slot.bin", "/etc/passwd", ""])
async def test_invalid_slot_file_is_refused(
    engine: Engine, config: EngineConfig, file: str
) -> None:
    (config.slots_folder / "broken").write_bytes(b"ggsq" + bytes(1000))

    with pytest.raises(EngineFailed):
        await engine.restore_slot(0, file)

    assert (await ask(engine, ASKED.format("hi"), 0, most=2)).finish is not None


async def story(engine: Engine, asked: str) -> tuple[GenerationRequest, list[int]]:
    """Return a request whose long answer is known, and the tokens of its prompt and answer."""
    prompt = await ids(engine, asked)
    (word,) = await ids(engine, " the")
    sampling = {"temperature": 0, "logit_bias": {str(word): 100}}
    return GenerationRequest(prompt, (), sampling, STORY_TOKENS, 0), prompt + [word] * STORY_TOKENS


async def count_decoded(engine: Engine, tokens: list[int]) -> int:
    """Return how many of the tokens are in the slot; if it was never freed, all but the last."""
    pieces = [piece async for piece in engine.generate(GenerationRequest(tokens, (), {}, 1, 0))]
    assert isinstance(pieces[-1], Finish)
    return pieces[-1].usage.cached_tokens


async def test_closing_the_generator_frees_the_slot(engine: Engine) -> None:
    request, tokens = await story(engine, ASKED.format("hi"))
    async with aclosing(engine.generate(request)) as pieces:
        assert isinstance(await anext(pieces), Delta)

    assert await count_decoded(engine, tokens) < len(tokens) - 1


async def test_cancelling_before_the_first_token_frees_the_slot(engine: Engine) -> None:
    request, tokens = await story(engine, LONG)
    (child,) = psutil.Process().children()
    begun = child.cpu_times().user
    task = asyncio.create_task(anext(engine.generate(request)))
    await wait_until(lambda: child.cpu_times().user > begun + 0.1)  # it reads the prompt
    task.cancel()
    await asyncio.wait({task})

    assert await count_decoded(engine, tokens) < len(tokens) - 1


@pytest.mark.parametrize("stop", ["<reponame>", "capital", "al of"])
async def test_stop_string_ends_the_answer_and_is_removed(engine: Engine, stop: str) -> None:
    always = {
        "temperature": 0,
        "logit_bias": {"4": 100},
    }  # <reponame>, which ends no turn by itself
    sampling = always if stop == "<reponame>" else None

    answer = await ask(
        engine, ASKED.format("What is the capital of France?"), stop=(stop,), sampling=sampling
    )

    assert stop not in answer.text
    assert answer.text in {"", "The ", "The capit"}
    assert answer.finish.reason is FinishReason.STOP


async def test_multibyte_characters_are_not_split(engine: Engine) -> None:
    answer = await ask(engine, ASKED.format("hi"), sampling={"grammar": 'root ::= "🎭 日本語 é"'})

    assert answer.text == "🎭 日本語 é"


@pytest.mark.parametrize("wrong", [{"grammar": "root ::= ("}, {"grammar": "no ::= [a-z]"}])
async def test_invalid_grammar_is_refused(engine: Engine, wrong: dict[str, object]) -> None:
    with pytest.raises(BackendUnavailable):
        await ask(engine, ASKED.format("hi"), sampling=wrong)

    assert engine.restart_count == 0


async def test_prompt_that_fills_the_context_is_reported_to_the_chat(engine: Engine) -> None:
    with pytest.raises(BackendUnavailable) as refused:
        await ask(engine, "word " * CONTEXT_TOKENS * 2)

    assert "/new" in refused.value.notice


async def test_tokenize_parses_control_tokens_on_request(engine: Engine) -> None:
    texts = ["<|im_end|>", "", "🎭", "\0"]

    control, nothing, emoji, zero = await engine.tokenize(texts, parse_special=True)
    (plain, *_) = await engine.tokenize(texts, parse_special=False)

    assert control == [2]
    assert nothing == []
    assert 2 not in plain
    assert len(plain) > 1
    assert len(emoji) > 1
    assert len(zero) == 1
    assert await engine.tokenize([], parse_special=True) == []
    assert await engine.detokenize((await ids(engine, " hello"))[0]) == " hello"


async def test_long_token_is_not_truncated(config: EngineConfig) -> None:
    family = Vocabulary("qwen2", ("<|im_start|>", "<|im_end|>"), added=("-" * 80,))
    model = write(config.data_dir / "tiny.gguf", family)

    async with run_engine(replace(config, model=model)) as engine:
        assert await engine.detokenize(2) == "-" * 80


async def test_engine_restarts_with_empty_slots_after_a_crash(engine: Engine) -> None:
    await ask(engine, LONG, 0, most=2)
    restarts = engine.restart_count
    (child,) = psutil.Process().children()

    child.kill()
    crashed = await engine.has_crashed(restarts)
    await engine.wait_until_ready()
    answer = await ask(engine, LONG, 0, most=2)

    assert crashed
    assert engine.restart_count == restarts + 1
    assert answer.finish.usage.cached_tokens == 0


async def test_engine_on_a_port_answers_only_with_its_key(
    config: EngineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    if config.settings.engine != "xllamacpp":
        pytest.skip("the bindings are for systems with Unix sockets")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    monkeypatch.setattr("bot.runtime.unix_server.HAS_UNIX_SOCKETS", False)
    monkeypatch.setattr("bot.runtime.unix_server._find_free_port", lambda: port)

    async with run_engine(config) as engine, ClientSession() as stranger:
        assert (await ask(engine, ASKED.format("Hi"), 0, most=2)).text
        async with stranger.get(f"http://127.0.0.1:{port}/slots") as response:
            assert response.status == HTTPStatus.UNAUTHORIZED

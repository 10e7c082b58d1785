"""Parsing of streamed messages: events, thinking, usage, and errors."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from bot.backends.anthropic.wire import AnthropicParser
from bot.backends.chat_completions.errors import Endpoint
from bot.backends.chat_completions.streaming import ResponseContext
from bot.chat.prompt import Finish, FinishReason, Usage
from bot.errors import BackendInterrupted, BackendUnavailable
from tests.backends.anthropic.conftest import Connect
from tests.backends.asking import ask, prompt
from tests.backends.streams import read_streams
from tests.rigs.fake_anthropic import (
    PING,
    STOP,
    FakeAnthropic,
    block,
    error,
    error_body,
    event,
    finish,
    signature,
    start,
    text,
    thinking,
)
from tests.rigs.fake_openai import Script
from tests.waiting import BELOW_STALL_SECONDS

QUICK = {"first_token_seconds": 0.2, "idle_seconds": 0.2}


COMPLETE = read_streams(Path(__file__).with_name("streams.txt"))


@pytest.mark.parametrize("name", COMPLETE)
async def test_complete_stream_becomes_an_answer(
    connect: Connect, service: FakeAnthropic, name: str
) -> None:
    service.plays([COMPLETE[name].body])

    answer = await ask(connect())

    assert (answer.error, answer.text) == (None, COMPLETE[name].text)
    assert answer.finish is not None
    assert answer.finish.reason is FinishReason.STOP
    assert len(service.log) == 1


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("end_turn", FinishReason.STOP),
        ("stop_sequence", FinishReason.STOP),
        ("pause_turn", FinishReason.STOP),
        ("max_tokens", FinishReason.LENGTH),
        ("model_context_window_exceeded", FinishReason.LENGTH),
        ("refusal", FinishReason.FILTERED),
    ],
)
async def test_stop_reason_is_translated(
    connect: Connect, service: FakeAnthropic, word: str, reason: FinishReason
) -> None:
    service.plays([start() + block(text("a")) + finish(word) + STOP])

    answer = await ask(connect())

    assert answer.finish == Finish(reason, Usage(5, 0, 4))


@pytest.mark.parametrize(
    ("first", "last", "usage"),
    [
        (
            {"cache_creation_input_tokens": 100, "cache_read_input_tokens": 1000},
            {"output_tokens": 7},
            Usage(1105, 1000, 7, written_tokens=100),
        ),
        (
            {"cache_read_input_tokens": None},
            {"input_tokens": 9, "cache_read_input_tokens": None},
            Usage(9, 0, 4),
        ),
    ],
    ids=["cached", "null, and corrected at the end"],
)
async def test_usage_counts_all_prompt_tokens_and_cached_tokens(
    connect: Connect, service: FakeAnthropic, first: Any, last: Any, usage: Usage
) -> None:
    service.plays([start(**first) + block(text("a")) + finish(**last) + STOP])

    answer = await ask(connect())

    assert answer.finish == Finish(FinishReason.STOP, usage)


async def test_thinking_is_not_part_of_the_answer(connect: Connect, service: FakeAnthropic) -> None:
    thought = block(thinking("Hm", "."), signature(), kind="thinking")
    service.plays([start() + thought + block(text("Hi."), index=1) + finish() + STOP])

    answer = await ask(connect())

    assert ("".join(answer.reasoning), answer.text) == ("Hm.", "Hi.")


async def test_reasoning_tags_in_the_text_of_third_party_models_are_hidden(
    connect: Connect, service: FakeAnthropic
) -> None:
    service.plays([start() + block(text("<think>", "x</think>", "Hello")) + finish() + STOP])

    answer = await ask(connect())
    assert (answer.text, answer.reasoning) == ("Hello", ["x"])


@pytest.mark.usefixtures("is_never_late")
async def test_thinking_extends_the_first_timeout(connect: Connect, service: FakeAnthropic) -> None:
    begin = event("content_block_start", content_block={"type": "thinking", "thinking": ""})
    pings = [step for _ in range(10) for step in (PING, 0.05)]  # a model that hides its thinking
    end = signature() + event("content_block_stop", index=0)
    service.plays([start() + begin, *pings, end + block(text("42"), index=1) + finish() + STOP])

    answer = await ask(connect(**QUICK))

    assert (answer.text, answer.error) == ("42", None)


@pytest.mark.usefixtures("is_never_late")
async def test_pings_alone_do_not_extend_a_timeout(
    connect: Connect, service: FakeAnthropic
) -> None:
    service.plays([start(), *[step for _ in range(100) for step in (PING, 0.05)]])

    async with asyncio.timeout(BELOW_STALL_SECONDS):
        answer = await ask(connect(**QUICK))

    assert "TROUPE_PROVIDERS__CLAUDE__FIRST_TOKEN_SECONDS" in str(answer.error)
    assert await service.ended() == "hung up"


async def test_unstreamed_message_is_parsed(connect: Connect, service: FakeAnthropic) -> None:
    whole = {
        "type": "message",
        "content": [{"type": "thinking", "thinking": "Hm."}, {"type": "text", "text": "plain"}],
        "stop_reason": "end_turn",
        "usage": {"input_tokens": 3, "output_tokens": 2},
    }
    service.plays(Script([json.dumps(whole).encode()], content_type="application/json"))

    answer = await ask(connect())

    assert (answer.text, answer.reasoning, answer.error) == ("plain", ["Hm."], None)
    assert answer.finish == Finish(FinishReason.STOP, Usage(3, 0, 2))


INTERRUPTED = {
    "end": [start() + block(text("par", "tial"))],
    "message_stop without a reason": [start() + block(text("par", "tial")) + STOP],
    "overloaded": [start() + text("par", "tial") + error("overloaded_error")],
    "bad JSON": [start() + text("par", "tial") + b"data: {nope\n\n"],
    "no object": [start() + text("par", "tial") + b"data: [1]\n\n"],
}


@pytest.mark.usefixtures("is_never_late")
@pytest.mark.parametrize("name", INTERRUPTED)
async def test_interrupted_stream_raises_after_its_text(
    connect: Connect, service: FakeAnthropic, name: str
) -> None:
    service.plays(INTERRUPTED[name])

    async with asyncio.timeout(BELOW_STALL_SECONDS):
        answer = await ask(connect(**QUICK))

    assert answer.text == "partial"
    assert isinstance(answer.error, BackendInterrupted)
    assert "SECRET" not in answer.error_texts
    assert len(service.log) == 1, "no retry after the first delta"


REFUSALS = {
    "authentication_error": (
        401,
        "rejected the API key (401); check TROUPE_PROVIDERS__CLAUDE__API_KEY",
    ),
    "permission_error": (403, "rejected the API key (403)"),
    "billing_error": (402, "has no credit left"),
    "not_found_error": (404, "does not know the model 'm' at http://127.0.0.1"),
    "request_too_large": (413, "with /new."),
    "invalid_request_error": (400, "rejected the request (400, invalid_request_error)"),
}


@pytest.mark.parametrize("kind", REFUSALS)
@pytest.mark.parametrize("in_stream", [False, True])
async def test_error_states_the_setting_to_fix(
    connect: Connect, service: FakeAnthropic, kind: str, in_stream: bool
) -> None:
    status, words = REFUSALS[kind]
    service.plays([start() + error(kind)] if in_stream else Script([error_body(kind)], status))

    answer = await ask(connect())

    assert isinstance(answer.error, BackendUnavailable)
    assert words in answer.error_texts
    assert "SECRET" not in answer.error_texts
    assert "CANARY" not in answer.error_texts
    assert len(service.log) == 1


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ("prompt is too long: 210000 tokens > 200000 maximum", "with /new."),
        ("input length and `max_tokens` exceed context limit: 9 > 8", "lower the preset's max_inp"),
        ("Your credit balance is too low to access the Anthropic API", "has no credit left (400"),
        ("Could not process image", "cannot read an image in the prompt (400)"),
        ("`temperature` is deprecated for this model. SECRET", "400, invalid_request_error, temp"),
    ],
)
async def test_bad_request_is_explained(
    connect: Connect, service: FakeAnthropic, message: str, words: str
) -> None:
    service.plays(Script([error_body("invalid_request_error", message)], 400))

    answer = await ask(connect(), prompt(parameters={"temperature": 0.5}))

    assert words in answer.error_texts
    assert "SECRET" not in answer.error_texts
    assert len(service.log) == 1


@pytest.mark.parametrize(
    ("kind", "status"), [("rate_limit_error", 429), ("api_error", 500), ("overloaded_error", 529)]
)
@pytest.mark.parametrize("in_stream", [False, True])
async def test_transient_error_is_retried_twice(
    connect: Connect, service: FakeAnthropic, kind: str, status: int, in_stream: bool
) -> None:
    script = Script([start() + error(kind)]) if in_stream else Script([error_body(kind)], status)
    service.plays(script, script)

    answer = await ask(connect())

    assert answer.text == "Hello there"
    assert len(service.log) == 3


def test_events_may_be_split_anywhere() -> None:
    whole = start() + block(text("Hello 🎉", " there")) + finish() + STOP
    for at in range(len(whole)):
        parser = AnthropicParser(ResponseContext(Endpoint("claude", "http://x/v1"), "m"))
        parsed = [parser.feed(whole[:at]), parser.feed(whole[at:])]
        assert "".join(each.text for each in parsed) == "Hello 🎉 there"
        assert parser.is_done

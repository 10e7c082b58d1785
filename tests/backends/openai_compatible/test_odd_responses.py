"""Unusual responses: errors in odd formats, and answers that are not a stream of chunks."""

import asyncio
import gzip
import json
from contextlib import aclosing
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from bot.backends.chat_completions.errors import Endpoint, RequestFailed
from bot.backends.chat_completions.retries import parse_wait_seconds
from bot.backends.chat_completions.streaming import ResponseContext
from bot.backends.chat_completions.wire import ChatCompletionsParser
from bot.chat.prompt import Finish, FinishReason, RateLimitWait
from bot.errors import BackendInterrupted
from bot.replying.generate import GeneratedAnswer, generate_answer
from bot.runtime.clock import SystemClock
from bot.texts.text import translate
from tests.backends.asking import ask, prompt
from tests.backends.conftest import Connect, FakeClock
from tests.rigs.fake_openai import DONE, STOP, FakeOpenAI, Script, chunk, event, said

SILENCE = Script([30.0])
WAITS = json.loads(Path(__file__).with_name("waits.json").read_text("utf-8"))


def parse_response(
    body: bytes, *, is_streamed: bool = True, size: int = 1 << 20
) -> tuple[str, FinishReason | None, RequestFailed | None]:
    """Parse a response that arrives in pieces; return the text, finish reason, and error."""
    context = ResponseContext(Endpoint("acme", "http://acme/v1"), "m", is_streamed=is_streamed)
    parser = ChatCompletionsParser(context)
    pieces = [parser.feed(body[at : at + size]) for at in range(0, len(body), size)]
    if not parser.is_done:
        pieces.append(parser.parse_end())
    failed = next((one.error for one in pieces if one.error), None)
    return "".join(one.text for one in pieces), parser.finish_reason, failed


VLLM = {
    "object": "error",
    "message": "This model's maximum context length is 4096 tokens.",
    "type": "BadRequestError",
    "code": 400,
}


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (event(VLLM) + DONE, "Start a new one with /new"),
        (b"event: error\n" + event({"message": "overloaded", "code": 503}), ""),
        (b"event:error\n:HTTP_STATUS/400\n"
         + event({"code": "DataInspectionFailed", "message": "-"}),
         "because of its content rules"),
        (event({"base_resp": {"status_code": 1008, "status_msg": "insufficient balance"}}),
         "no credit left"),
        (event({"detail": "Invalid API key"}), "does not accept the bot's key"),
        (b'{"error": "model \\"x\\" not found, try pulling it first"}\n', "does not exist"),
        (b'{\n "error": {\n  "message": "insufficient_quota"\n }\n}\n', "no credit left"),
        (b'error: {"code":400,"message":"the request exceeds the available context size",'
         b'"type":"invalid_request_error"}\n\n', "Start a new one with /new"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("size", [1, 1 << 20])
def test_error_in_an_unusual_form_gets_the_usual_message(body: bytes, told: str, size: int) -> None:
    text, reason, failed = parse_response(body, size=size)
    assert (text, reason) == ("", None)
    assert failed is not None
    assert told in failed.notice
    assert failed.is_retryable is (told == "")


@pytest.mark.parametrize("size", [1, 1 << 20])
def test_error_line_of_ollama_within_a_stream_interrupts_it(size: int) -> None:
    body = said("Hel", "lo") + b'{"error":"an error was encountered while running the model"}\n'
    text, reason, failed = parse_response(body, size=size)
    assert (text, reason) == ("Hello", None)
    assert "returned status 502" in str(failed)


def test_web_page_instead_of_events_is_reported() -> None:
    _, _, failed = parse_response(b"<html><body>Log in, SECRET</body></html>")
    assert "sent a web page; check TROUPE_PROVIDERS__ACME__BASE_URL" in str(failed)


ANSWER = json.dumps({
    "choices": [{"message": {"content": "Hello"}, "finish_reason": "stop"}]
}).encode()  # fmt: skip


@pytest.mark.parametrize(
    ("body", "is_streamed"),
    [
        (ANSWER, False),
        (b"\xef\xbb\xbf" + ANSWER, False),
        (ANSWER, True),
        (json.dumps(json.loads(ANSWER), indent=1).encode(), True),
        (said("Hel", "lo") + STOP + DONE, False),
        (b": hello\n\n" + said("Hello") + STOP + DONE, False),
        (b"data: null\n\ndata: []\n\ndata:\n\n" + said("Hello") + STOP + DONE, True),
    ],
)
def test_answer_with_an_unexpected_content_type_is_read(body: bytes, is_streamed: bool) -> None:
    assert parse_response(body, is_streamed=is_streamed) == ("Hello", FinishReason.STOP, None)


@pytest.mark.parametrize("finish", ["null", "None", "", None, False])
def test_null_finish_reason_does_not_end_the_answer(finish: object) -> None:
    body = chunk("Hel", finish=finish) + chunk("lo", finish=finish)
    assert parse_response(body + STOP + DONE) == ("Hello", FinishReason.STOP, None)
    text, reason, failed = parse_response(body + DONE)
    assert (text, reason) == ("Hello", None)
    assert failed is not None


def test_incomplete_answer_outside_of_events_is_an_error() -> None:
    lines = b"\n".join(
        json.dumps({"choices": [{"delta": {"content": text}}]}).encode() for text in "ab"
    )
    text, reason, failed = parse_response(lines + b"\n" + ANSWER + b"\n")
    assert (text, reason) == ("", None)
    assert failed is not None
    text, reason, failed = parse_response(said("one") + ANSWER + b"\n")
    assert (text, reason) == ("one", None)
    assert failed is not None


def test_endless_lines_outside_events_are_not_kept_in_memory() -> None:
    lines = b"nothing of an event, over and over\n" * 40_000
    _, _, failed = parse_response(lines, size=10_000)
    assert "sent an event of more than" in str(failed)


async def test_compressed_response_is_not_unpacked(connect: Connect, service: FakeOpenAI) -> None:
    bomb = gzip.compress(b"data: " + b"a" * 20_000_000)
    service.plays(*[Script([bomb], headers={"Content-Encoding": "gzip"})] * 3)
    answer = await ask(connect())
    assert "sent a compressed response" in answer.error_texts


@pytest.mark.parametrize(("value", "seconds"), [*WAITS["retry-after"], ("9" * 5000, 86_400.0)])
def test_retry_after_is_parsed_in_any_form_and_capped_at_a_day(value: str, seconds: float) -> None:
    assert parse_wait_seconds(value, 1_800_000_000.0) == seconds


@pytest.mark.parametrize(("headers", "body"), WAITS["responses that ask for 20 seconds"])
async def test_wait_requested_by_the_service_is_respected_and_announced(
    connect: Connect,
    service: FakeOpenAI,
    clock: FakeClock,
    headers: dict[str, str],
    body: str,
) -> None:
    service.plays(Script([body.encode()], status=429, headers=headers))
    events = []
    with capture_logs() as logs:
        async with aclosing(connect().generate(prompt())) as pieces:
            events = [piece async for piece in pieces]
    assert isinstance(events[0], RateLimitWait)
    assert 20 <= clock.slept[0] == events[0].seconds < 20.6
    assert isinstance(events[-1], Finish)
    [logged] = [one for one in logs if one["event"] == "request_retried"]
    assert "status 429" in logged["reason"]
    assert logged["seconds"] == round(clock.slept[0], 1)


@pytest.mark.parametrize(
    ("wait", "told"), [("45", "in 45 s."), ("240", "in 4 min."), ("10800", "in 3 h.")]
)
async def test_error_states_the_wait_requested_by_the_service(
    connect: Connect, service: FakeOpenAI, wait: str, told: str
) -> None:
    service.plays(Script([b"{}"], status=429, headers={"Retry-After": wait}))
    answer = await ask(connect())
    assert answer.error is not None
    assert translate(answer.error.notice, "en").endswith(told)
    assert f"asks you to wait {wait} s" in str(answer.error)


@pytest.mark.parametrize(
    ("status", "message", "told"),
    [
        (429, "Rate limit exceeded: free-models-per-day. Add 10 credits", "its daily limit"),
        (429, "Rate limit reached on requests per day (RPD): Limit 200", "its daily limit"),
        (429, "Rate limit reached on requests per min (RPM): Limit 3", "busy right now"),
        (413, "Payload", "Start a new one with /new"),
    ],
)
async def test_daily_limit_and_oversized_request_have_specific_messages(
    connect: Connect, service: FakeOpenAI, status: int, message: str, told: str
) -> None:
    body = json.dumps({"error": {"message": message}}).encode()
    service.plays(*[Script([body], status=status)] * 3)
    assert told in (await ask(connect())).error_texts


async def test_fallback_is_used_without_waiting_for_a_silent_provider_again(
    connect: Connect, service: FakeOpenAI, clock: FakeClock
) -> None:
    backend = connect(first_token_seconds=0.5)
    service.plays(SILENCE)
    question = prompt(has_fallback=True)
    assert "no first token within 0.5 s" in (await ask(backend, question)).error_texts
    assert "no first token within 0.5 s" in (await ask(backend, question)).error_texts
    assert len(service.log) == 1
    await clock.sleep(31)
    assert (await ask(backend, question)).text == "Hello there"
    assert len(service.log) == 2


async def test_one_trial_request_detects_that_a_silent_provider_recovered(
    connect: Connect, service: FakeOpenAI, clock: FakeClock
) -> None:
    backend = connect(first_token_seconds=0.2)
    service.plays(SILENCE, SILENCE)
    question = prompt(has_fallback=True)
    await ask(backend, question)
    await clock.sleep(31)
    async with asyncio.TaskGroup() as group:
        for _ in range(20):
            group.create_task(ask(backend, question))
    assert len(service.log) == 2


@pytest.mark.parametrize(
    "broken",
    [
        event({"error": "model runner has unexpectedly stopped"}),
        event({"error": {"code": 502, "message": "Provider disconnected"}, "choices": [
            {"index": 0, "delta": {"content": ""}, "finish_reason": "error"}]}) + DONE,
        DONE,
    ],
)  # fmt: skip
async def test_unusual_stream_end_interrupts_the_answer(
    connect: Connect, service: FakeOpenAI, broken: bytes
) -> None:
    service.plays([said("Hel", "lo") + broken])
    answer = await ask(connect())
    assert (answer.text, type(answer.error)) == ("Hello", BackendInterrupted)


def halves(*deltas: object) -> bytes:
    """Return events whose texts may contain half of a surrogate pair."""
    return b"".join(f"data: {json.dumps(one)}\n\n".encode() for one in deltas)


def delta_event(**fields: object) -> dict[str, object]:
    return {"choices": [{"index": 0, "delta": fields}]}


@pytest.mark.parametrize(
    ("pieces", "whole"),
    [
        (["a\ud83d", "\udc68b"], "a\U0001f468b"),
        (["\ud83d", "\udc68", "\ud83d", "\udc69"], "\U0001f468\U0001f469"),
        (["\ud83d", "", "\udc68"], "\U0001f468"),
        (["a\ud83d", "b"], "a\ufffdb"),
        (["\udc68a", "\ud83d"], "\ufffda\ufffd"),
        (["\ud83d", "\ud83d\udc68"], "\ufffd\U0001f468"),
    ],
)
async def test_character_that_is_split_over_two_events_is_joined(
    connect: Connect, service: FakeOpenAI, pieces: list[str], whole: str
) -> None:
    called = [delta_event(tool_calls=[{"index": 0, "id": "a", "function": {"name": "dice"}}])]
    called += [
        delta_event(tool_calls=[{"index": 0, "function": {"arguments": one}}]) for one in pieces
    ]
    service.plays(
        [
            halves(*(delta_event(reasoning_content=one) for one in pieces)),
            halves(*(delta_event(content=one) for one in pieces)),
            halves(*called) + STOP + DONE,
        ],
        [
            halves(
                *({"content": one, "stop": False} for one in pieces), {"content": "", "stop": True}
            )
        ],
    )
    answer = await ask(connect())
    assert (answer.text, "".join(answer.reasoning)) == (whole, whole)
    assert answer.finish is not None
    assert [one.arguments for one in answer.finish.tool_calls] == [whole]
    assert answer.finish.attached == {"reasoning_content": whole}
    assert (await ask(connect())).text == whole  # in the form of llama.cpp's own server


async def test_reasoning_before_a_lone_end_tag_is_retracted_and_later_held_back(
    connect: Connect, service: FakeOpenAI
) -> None:
    thoughts = said("The user ", "says hi.\n", "I should greet.\n</th", "ink>\n")
    script = [thoughts[:-40], 0.05, thoughts[-40:] + said("\nHel", "lo!") + STOP + DONE]
    service.plays(script, script, [said("Just ", "so.") + STOP + DONE])
    backend = connect()
    shown: list[str] = []

    async def collect_answer() -> GeneratedAnswer:
        shown.clear()
        return await generate_answer(
            *(backend, prompt("hi"), shown.append, lambda _: None, SystemClock()),
            replace_shown_text=lambda text: shown.__setitem__(slice(None), [f"<replaced>{text}"]),
        )

    first = await collect_answer()
    assert (first.text, first.thoughts) == ("Hello!", "The user says hi.\nI should greet.")
    assert "".join(shown) == "<replaced>Hello!"
    assert (await collect_answer()).text == "".join(shown) == "Hello!"  # never shown from now on
    assert (await collect_answer()).text == "".join(shown) == "Just so."  # it did not think


async def test_reasoning_tags_are_ignored_if_the_service_separates_reasoning(
    connect: Connect, service: FakeOpenAI
) -> None:
    alone = [said("Hm.\n</think>\nHello") + STOP + DONE]
    separate = [chunk(reasoning="Hm.") + said("Use </think> here.") + STOP + DONE]
    service.plays(alone, separate)
    backend = connect()
    assert (await ask(backend)).text == "Hello"
    assert (await ask(backend)).text == "Use </think> here."

"""Every provider failure becomes a specific error within the time limit."""

import asyncio
import gzip
import time
from itertools import chain
from pathlib import Path

import pytest
from pydantic import SecretStr

from bot.backends.chat_completions import streaming
from bot.backends.openai_compatible.settings import OpenAISettings
from bot.chat.prompt import Delta, Finish, FinishReason
from bot.errors import BackendInterrupted, BackendUnavailable
from tests.attacks import attacks
from tests.backends.asking import ask, prompt
from tests.backends.conftest import Connect, FakeClock
from tests.backends.streams import read_streams
from tests.rigs.fake_openai import CUT, DONE, STOP, FakeOpenAI, Script, chunk, event, said
from tests.waiting import BELOW_STALL_SECONDS, wait_until

OVERLOADED = event({"error": {"message": "SECRET overloaded", "code": "overloaded"}})
COMMENTS = [step for _ in range(300) for step in (b": OPENROUTER PROCESSING\n\n", 0.02)]
QUICK = {"first_token_seconds": 0.2, "idle_seconds": 0.2}


def bytewise(whole: bytes) -> list[bytes | float]:
    return list(chain.from_iterable((whole[i : i + 1], 0.0001) for i in range(len(whole))))


STREAMS = read_streams(Path(__file__).with_name("streams.txt"))
COMPLETE = [name for name, each in STREAMS.items() if not each.interrupted]


@pytest.mark.parametrize("name", COMPLETE)
@pytest.mark.parametrize("size", [7, 1 << 20])
async def test_unusual_but_complete_stream_is_read_as_an_answer(
    connect: Connect, service: FakeOpenAI, name: str, size: int
) -> None:
    body, text, reasoning, _ = STREAMS[name]
    service.plays([body[at : at + size] for at in range(0, len(body), size)])

    answer = await ask(connect())

    assert (answer.error, answer.text) == (None, text)
    if reasoning:
        assert answer.reasoning == [reasoning]
    assert answer.finish is not None
    assert answer.finish == Finish(FinishReason.STOP, answer.finish.usage)
    assert 0 <= answer.finish.usage.output_tokens < 10**9
    assert len(service.log) == 1


SLOW = {
    "split inside characters": (bytewise(said("héllo 🎉 日本") + STOP + DONE), "héllo 🎉 日本"),
    "CRLF": ([(said("a", "b") + STOP + DONE).replace(b"\n", b"\r\n")], "ab"),
    "no DONE and a reset": ([said("a") + STOP, 0.05, CUT], "a"),
    "no DONE and an open connection": ([said("a") + STOP, 60], "a"),
    "many tiny chunks": ([said(*["x"] * 20_000), STOP + DONE], "x" * 20_000),
}


@pytest.mark.parametrize("name", SLOW)
async def test_answer_does_not_depend_on_how_its_chunks_arrive(
    connect: Connect, service: FakeOpenAI, name: str
) -> None:
    steps, text = SLOW[name]
    service.plays(steps)

    answer = await ask(connect(first_token_seconds=60, idle_seconds=60))

    assert (answer.error, answer.text) == (None, text)
    assert len(service.log) == 1


INTERRUPTED = {
    **{name: ([each.body], each.text) for name, each in STREAMS.items() if each.interrupted},
    "error event": ([said("par", "tial"), OVERLOADED], "partial"),
    "reset": ([said("abc"), 0.05, b'data: {"id":"c1","obj', 0.05, CUT], "abc"),
    "deep JSON": ([said("abc") + b'data: {"x":' + b"[" * 9999 + b"\n\n" + STOP + DONE], "abc"),
    "stall": ([said(*["x"] * 50), 60], "x" * 50),
    "stall behind keep-alives": ([said("abc"), *COMMENTS], "abc"),
    "stall behind empty deltas": ([said("abc")] + [said(""), 0.02] * 300, "abc"),
    "a line without end": ([said("abc"), 0.05, b"data: " + b"x" * (5 * 1024 * 1024)], "abc"),
}


@pytest.mark.usefixtures("is_never_late")
@pytest.mark.parametrize("name", INTERRUPTED)
async def test_interrupted_stream_raises_after_its_text(
    connect: Connect, service: FakeOpenAI, name: str
) -> None:
    steps, text = INTERRUPTED[name]
    service.plays(steps)

    async with asyncio.timeout(BELOW_STALL_SECONDS):
        answer = await ask(connect(**QUICK))

    assert answer.text == text
    assert answer.finish is None
    assert isinstance(answer.error, BackendInterrupted)
    assert "SECRET" not in answer.error_texts
    assert len(service.log) == 1, "no retry after the first delta"


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 529])
async def test_transient_status_is_retried_twice(
    connect: Connect, service: FakeOpenAI, clock: FakeClock, status: int
) -> None:
    service.plays(Script([b"<html>SECRET</html>"], status), Script([b""], status))

    answer = await ask(connect())

    assert answer.text == "Hello there"
    assert len(service.log) == 3
    assert 0 <= clock.slept[0] <= 0.5
    assert 0 <= clock.slept[1] <= 1


BEFORE_THE_FIRST_TOKEN = {
    "reset": [CUT],
    "reset after the headers": [b": hi\n\n", CUT],
    "error event": [OVERLOADED],
    "end": [b": hi\n\n"],
    "DONE": [DONE],
    "web page": None,
    "gzip": [gzip.compress(bytes(10_000_000))],
}


@pytest.mark.parametrize("name", BEFORE_THE_FIRST_TOKEN)
async def test_request_is_attempted_at_most_three_times(
    connect: Connect, service: FakeOpenAI, name: str
) -> None:
    steps = BEFORE_THE_FIRST_TOKEN[name]
    page = Script([b"<html>please log in</html>"], content_type="text/html")
    service.plays(*[Script(steps) if steps else page for _ in range(5)])

    answer = await ask(connect())

    assert isinstance(answer.error, BackendUnavailable)
    assert len(service.log) == 3
    assert "SECRET" not in answer.error_texts


@pytest.mark.parametrize(
    "noise", [None, b"", b"nonsense\r\n\r\n", b"HTTP/1.1 200\r\nX: " + b"x" * 100_000]
)
async def test_error_for_a_non_http_response_states_the_address(
    connect: Connect, noise: bytes | None
) -> None:
    async def talk(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(noise or b"")
        writer.close()

    async with await asyncio.start_server(talk, "127.0.0.1", 0) as server:
        port = 9 if noise is None else server.sockets[0].getsockname()[1]  # nobody is at port 9
        answer = await ask(connect(base_url=f"http://127.0.0.1:{port}"))

    assert isinstance(answer.error, BackendUnavailable)
    assert f"cannot be reached at http://127.0.0.1:{port}" in str(answer.error)


LOADING = [
    '{"error":{"code":503,"message":"Loading model","type":"unavailable_error"}}',
    '{"error":"Model meta/llama is currently loading","estimated_time":20.0}',
]


@pytest.mark.parametrize("body", LOADING)
async def test_request_waits_for_a_server_that_is_loading(
    connect: Connect, service: FakeOpenAI, clock: FakeClock, body: str
) -> None:
    service.plays(*[Script([body.encode()], status=503)] * 20)
    answer = await ask(connect(first_token_seconds=300))
    assert (answer.text, len(service.log)) == ("Hello there", 21)
    assert sum(clock.slept) == 20


async def test_server_that_never_finishes_loading_is_reported_as_loading(
    connect: Connect, service: FakeOpenAI
) -> None:
    service.plays(*[Script([LOADING[0].encode()], status=503)] * 5)
    answer = await ask(connect(first_token_seconds=0.5))
    assert "still loading the model" in answer.error_texts
    assert "try again in a few minutes" in answer.error_texts


@pytest.mark.parametrize(
    ("provider", "address", "seconds"),
    [
        ("ollama", None, (300, 600)),
        ("vllm", "https://gpu.example.com/v1", (300, 600)),
        ("mine", "http://192.168.1.7:5000/v1", (300, 600)),
        ("mine", "http://gpu-box:5000/v1", (300, 600)),
        ("mine", "https://api.example.com/v1", (30, 180)),
        ("deepseek", None, (30, 180)),
    ],
)
def test_local_servers_get_time_to_load_their_model(
    provider: str, address: str | None, seconds: tuple[float, float]
) -> None:
    given = OpenAISettings(base_url=address, api_key=SecretStr("sk-x"))
    found = given.with_defaults(provider)
    assert (found.first_token_seconds, found.total_seconds) == seconds
    own = given.model_copy(update={"first_token_seconds": 7}).with_defaults(provider)
    assert own.first_token_seconds == 7


@pytest.mark.usefixtures("is_never_late")
@pytest.mark.parametrize(
    "steps",
    [[60], [b": headers\n\n", 60], COMMENTS, [said(""), 60], [chunk(reasoning_content="hm"), 60]],
    ids=["no headers", "headers only", "comments for ever", "an empty delta", "reasoning"],
)
async def test_first_token_timeout_is_not_retried(
    connect: Connect, service: FakeOpenAI, steps: list[object]
) -> None:
    service.plays(steps)

    async with asyncio.timeout(BELOW_STALL_SECONDS):
        answer = await ask(connect(**QUICK))

    assert isinstance(answer.error, BackendUnavailable)
    assert "TROUPE_PROVIDERS__ACME__FIRST_TOKEN_SECONDS" in str(answer.error)
    assert "use another provider or `fallbacks`" in str(answer.error)
    assert len(service.log) == 1
    assert await service.ended() == "hung up"


@pytest.mark.usefixtures("is_never_late")
async def test_reasoning_extends_the_first_timeout(connect: Connect, service: FakeOpenAI) -> None:
    thinking = [step for _ in range(10) for step in (chunk(reasoning_content="hm"), 0.05)]
    service.plays([*thinking, said("42") + STOP + DONE])

    answer = await ask(connect(**QUICK))

    assert (answer.text, answer.error) == ("42", None)


async def test_endless_answer_hits_the_total_timeout(connect: Connect, service: FakeOpenAI) -> None:
    service.plays([step for _ in range(500) for step in (said("x"), 0.02)])

    async with asyncio.timeout(BELOW_STALL_SECONDS):
        answer = await ask(connect(total_seconds=0.3))

    assert isinstance(answer.error, BackendInterrupted)
    assert "TROUPE_PROVIDERS__ACME__TOTAL_SECONDS" in str(answer.error)


async def test_response_beyond_the_size_limit_is_interrupted(
    connect: Connect, service: FakeOpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streaming, "MAX_RESPONSE_BYTES", 100_000)
    service.plays([said("word"), 0.1, *[said("word " * 1000)] * 100])

    answer = await ask(connect())

    assert isinstance(answer.error, BackendInterrupted)


@pytest.mark.usefixtures("is_never_late")
async def test_slow_consumer_causes_no_timeout(connect: Connect, service: FakeOpenAI) -> None:
    service.plays([said("a"), 0.1, said("b"), STOP + DONE])
    backend = connect(**QUICK)

    received = []
    async for piece in backend.generate(prompt()):
        received.append(piece)
        await asyncio.sleep(0.3)

    assert isinstance(received[-1], Finish)


@pytest.mark.parametrize("value", ["86400", "31", "9" * 30, "Fri, 31 Dec 2100 23:59:59 GMT"])
async def test_request_is_not_retried_after_a_long_wait(
    connect: Connect, service: FakeOpenAI, value: str
) -> None:
    service.plays(Script([b""], 429, {"Retry-After": value}))

    answer = await ask(connect())

    assert "The model is busy" in answer.error_texts
    assert len(service.log) == 1


async def test_fallback_does_not_wait_for_a_busy_provider(
    connect: Connect, service: FakeOpenAI, clock: FakeClock
) -> None:
    service.plays(Script([b""], 429, {"Retry-After": "7"}))

    answer = await ask(connect(), prompt(has_fallback=True))

    assert "The model is busy" in answer.error_texts
    assert (len(service.log), clock.slept) == (1, [])


@pytest.mark.parametrize(
    ("status", "body", "calls"),
    [
        (401, b"{}", 2),
        (402, b"{}", 2),
        (404, b"{}", 2),
        (400, b'{"error": {"code": "content_filter"}}', 3),
        (400, b'{"error": {"code": "context_length_exceeded"}}', 3),
    ],
)
async def test_fallback_is_used_at_once_after_a_lasting_error(
    connect: Connect, service: FakeOpenAI, clock: FakeClock, status: int, body: bytes, calls: int
) -> None:
    service.plays(*[Script([body], status) for _ in range(3)])
    backend = connect()
    first = await ask(backend, prompt(has_fallback=True))
    again = await ask(backend, prompt(has_fallback=True))
    assert again.error_texts == first.error_texts
    alone = await ask(backend, prompt())
    assert alone.error_texts == first.error_texts
    assert len(service.log) == calls
    service.scripts.clear()
    await clock.sleep(31)
    assert (await ask(backend, prompt(has_fallback=True))).text == "Hello there"


REFUSALS = {
    401: (b"SECRET", "rejected the API key (401); check TROUPE_PROVIDERS__ACME__API_KEY"),
    403: (b"SECRET", "rejected the API key (403); check TROUPE_PROVIDERS__ACME__API_KEY"),
    402: (b"SECRET", "has no credit left"),
    404: (b"SECRET", "does not know the model 'm' at http://127.0.0.1"),
    400: (b'{"error":{"code":"context_length_exceeded"}}', "with /new."),
    413: (b'{"error":{"type":"exceed_context_size_error"}}', "with /new."),
    422: (b'{"error":{"param":"top_k","message":"SECRET"}}', "rejected the request (422, top_k)"),
    302: (b"SECRET", "correct TROUPE_PROVIDERS__ACME__BASE_URL"),
}


@pytest.mark.parametrize("status", REFUSALS)
async def test_error_for_an_http_status_states_the_setting_to_fix(
    connect: Connect, service: FakeOpenAI, status: int
) -> None:
    body, words = REFUSALS[status]
    service.plays(Script([body], status, {"Location": "http://127.0.0.1:9/"}))

    answer = await ask(connect())

    assert isinstance(answer.error, BackendUnavailable)
    assert words in answer.error_texts
    assert "SECRET" not in answer.error_texts
    assert "CANARY" not in answer.error_texts
    assert len(service.log) == 1


async def test_request_waits_for_the_trial_while_the_breaker_is_open(
    connect: Connect, service: FakeOpenAI, clock: FakeClock
) -> None:
    service.plays(*[Script([b""], 503) for _ in range(20)])
    backend = connect()
    while len(service.log) < 20:
        await ask(backend)
    slept = sum(clock.slept)

    answer = await ask(backend)

    assert answer.text == "Hello there"
    assert len(service.log) == 21
    assert 4 <= sum(clock.slept) - slept <= 8, "it is asked at once"


async def test_waiting_request_fails_if_the_trial_request_of_the_breaker_fails(
    connect: Connect, service: FakeOpenAI, clock: FakeClock
) -> None:
    service.plays(*[Script([b""], 503) for _ in range(20)], Script([0.2, b""], 503))
    backend = connect()
    while len(service.log) < 20:
        await ask(backend)
    await clock.sleep(5)  # a trial is due

    trial = asyncio.create_task(ask(backend))
    await wait_until(lambda: len(service.log) == 21)
    clock.before_sleep = trial
    refused = await ask(backend)

    assert "calls are paused" in str(refused.error)
    assert refused.error is not None
    assert refused.error.notice.startswith("The model's provider has failed several times")
    assert len(service.log) == 21


@pytest.mark.usefixtures("is_never_late")
async def test_suspension_of_this_process_does_not_count_as_a_provider_failure(
    connect: Connect, service: FakeOpenAI
) -> None:
    service.plays([said("a"), 0.1, said("b") + STOP + DONE])
    backend = connect(**QUICK)

    received = []
    async for piece in backend.generate(prompt()):
        if piece == Delta("a"):
            asyncio.get_running_loop().call_soon(time.sleep, 1.5)  # a laptop that sleeps
        received.append(piece)

    assert isinstance(received[-1], Finish)


async def test_request_interrupted_by_a_suspension_is_sent_again(
    connect: Connect, service: FakeOpenAI
) -> None:
    service.plays([60])
    backend = connect(first_token_seconds=1)

    task = asyncio.create_task(ask(backend))
    await wait_until(lambda: service.log)
    time.sleep(3)  # noqa: ASYNC251 -- this process stands still
    answer = await task

    assert answer.text == "Hello there"


async def test_invalid_requests_do_not_open_the_breaker(
    connect: Connect, service: FakeOpenAI
) -> None:
    service.plays(*[Script([b""], 400) for _ in range(30)])
    backend = connect()
    for _ in range(30):
        await ask(backend)

    assert (await ask(backend)).text == "Hello there"


def test_every_listed_llm_fault_has_a_test() -> None:
    listed = {case["id"] for case in attacks("llm_faults")}

    assert listed - TRIED == set()


# What of the list of hostile inputs is covered by which of the tests above.
TRIED = {
    f"LLM-FAULTS-{number:03}"
    for number in (
        *(3, 4, 5, 7),  # silence
        *(6, 9),  # cut short
        *(10, 12, 13, 14, 17, 18, 19, 20, 21, 32, 34, 35, 38),  # odd streams
        *(22, 23, 27, 29, 31),  # statuses
        *(39, 40),  # tests/backends/llama_cpp/test_backend.py
    )
}

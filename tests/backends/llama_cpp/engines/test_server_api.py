"""Requests to an engine's server, and the errors of its connection."""

import asyncio
import json
from collections.abc import AsyncIterator

import httpx2
import pytest
from inline_snapshot import snapshot
from typing_extensions import override

from bot.backends.chat_completions.request import ConnectionFailed, HttpStatusError
from bot.backends.llama_cpp.engines.engine import GenerationRequest
from bot.backends.llama_cpp.engines.server_api import ServerConnection, to_wire
from bot.backends.llama_cpp.sampling import output_limit, to_sampling
from bot.errors import BackendUnavailable
from tests.backends.asking import prompt


class Body(httpx2.AsyncByteStream):
    """Says something, and then dies, hangs or ends."""

    def __init__(self, then: str) -> None:
        self.then = then
        self.closed = False

    @override
    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield b'{"error": '
        if self.then == "dies":
            raise httpx2.ReadError("reset by peer")
        if self.then == "hangs":
            await asyncio.Event().wait()
        yield b"{}}"

    @override
    async def aclose(self) -> None:
        self.closed = True


class Answering(httpx2.AsyncBaseTransport):
    def __init__(self, status: int, body: Body) -> None:
        self.status, self.body = status, body

    @override
    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        assert request.headers["Connection"] == "close"  # or the next one fails now and then
        return httpx2.Response(self.status, stream=self.body)


async def post(status: int, body: Body) -> httpx2.Response:
    transport = Answering(status, body)
    async with httpx2.AsyncClient(transport=transport, base_url="http://engine") as server:
        return await ServerConnection(server).post("/v1/completions", b"{}")


async def test_successful_response_is_returned_unread() -> None:
    body = Body("ends")

    await post(200, body)

    assert not body.closed


async def test_error_response_is_read_and_closed() -> None:
    body = Body("ends")

    with pytest.raises(HttpStatusError) as refused:
        await post(400, body)

    assert refused.value.body == b'{"error": {}}'
    assert body.closed


async def test_crash_while_an_error_is_sent_is_a_failed_connection() -> None:
    body = Body("dies")

    with pytest.raises(ConnectionFailed, match="reset by peer"):
        await post(500, body)

    assert body.closed


async def test_cancelling_while_an_error_is_read_closes_the_connection() -> None:
    body = Body("hangs")

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await post(500, body)

    assert body.closed


def body(stop: tuple[str, ...] = (), **given: object) -> dict[str, object]:
    asked = prompt("hello", **given)
    request = GenerationRequest([1, 2, 3], stop, to_sampling(asked), output_limit(asked))
    decoded: dict[str, object] = json.loads(to_wire(request, "smol"))
    return decoded


def test_request_has_ids_parameters_and_all_stop_strings() -> None:
    stops = ("a", "b", "c", "d", "<|im_end|>")

    assert body(stops, parameters={"temperature": 0.5, "seed": None}) == snapshot(
        {
            "stream_options": {"include_usage": True},
            "temperature": 0.5,
            "stop": ["a", "b", "c", "d", "<|im_end|>"],
            "preserved_tokens": ["a", "b", "c", "d", "<|im_end|>"],
            "model": "smol",
            "prompt": [1, 2, 3],
            "cache_prompt": True,
            "stream": True,
        }
    )


@pytest.mark.parametrize(
    ("limit", "parameters", "expected"),
    [
        (None, {}, None),
        (50, {}, 50),
        (50, {"max_tokens": 20}, 20),
        (50, {"max_completion_tokens": 80}, 50),
        (None, {"max_tokens": 0}, None),
        (None, {"n_predict": 7, "max_tokens": None}, 7),
    ],
)
def test_lowest_output_limit_is_sent(
    limit: int | None, parameters: dict[str, object], expected: int | None
) -> None:
    made = body(max_output_tokens=limit, parameters=parameters)

    assert made.get("max_tokens") == expected
    assert not made.keys() & {"max_completion_tokens", "n_predict"}


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"type": "json_schema", "json_schema": {"schema": {"type": "array"}}}, {"type": "array"}),
        ({"type": "json_object"}, {"type": "object"}),
        ({"type": "text"}, None),
    ],
)
def test_response_format_is_sent_as_a_schema(asked: object, expected: object) -> None:
    made = body(parameters={"response_format": asked})

    assert made.get("json_schema") == expected
    assert "response_format" not in made


def test_several_answers_are_refused() -> None:
    with pytest.raises(BackendUnavailable, match="a chat gets one answer"):
        body(parameters={"n": 2})

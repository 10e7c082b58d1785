"""The way to an engine's server: whatever happens on it ends as one of two errors, and closed."""

import asyncio
from collections.abc import AsyncIterator

import httpx2
import pytest
from typing_extensions import override

from bot.backends.chat_completions.request import ConnectionFailed, HttpStatusError
from bot.backends.llama_cpp.engines.server_connection import ServerConnection


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


async def test_good_answer_is_given_with_its_body_unread() -> None:
    body = Body("ends")

    await post(200, body)

    assert not body.closed


async def test_error_is_read_and_closed() -> None:
    body = Body("ends")

    with pytest.raises(HttpStatusError) as refused:
        await post(400, body)

    assert refused.value.body == b'{"error": {}}'
    assert body.closed


async def test_server_that_dies_while_it_refuses_is_not_reached() -> None:
    body = Body("dies")

    with pytest.raises(ConnectionFailed, match="reset by peer"):
        await post(500, body)

    assert body.closed


async def test_cancelling_while_it_refuses_closes_the_connection() -> None:
    body = Body("hangs")

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await post(500, body)

    assert body.closed

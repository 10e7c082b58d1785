"""Test the time that a caller of the HTTP server has for the head of a request."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from bot.console.server import serve_http
from bot.runtime.tasks import cancel_and_wait
from bot.settings import ConsoleSettings

HEAD_SECONDS = 0.1
HEAD = b"POST /slow HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n"


async def answer_late(request: web.Request) -> web.Response:
    """Take longer than a caller may take for a head."""
    await asyncio.sleep(HEAD_SECONDS * 3)
    return web.Response(text=f"got {await request.text()}")


@asynccontextmanager
async def connected() -> AsyncIterator[socket.socket]:
    """Serve, and connect before the server can notice it."""
    routes = [lambda app: app.router.add_post("/slow", answer_late)]
    async with serve_http(ConsoleSettings(port=0), routes, head_seconds=HEAD_SECONDS) as address:
        host, _, port = address.removeprefix("http://").partition(":")
        with socket.create_connection((host, int(port)), timeout=10) as client:
            yield client


async def received(client: socket.socket) -> bytes:
    """Return all that the server sends until it closes the connection."""
    answer = b""
    while data := await asyncio.to_thread(client.recv, 4096):
        answer += data
    return answer


@pytest.mark.parametrize("sent", [b"P", HEAD[:-1], b"\r\n\r\nP"])
async def test_connection_with_a_part_of_a_head_is_answered_with_408(sent: bytes) -> None:
    async with connected() as client:
        client.sendall(sent)
        assert (await received(client)).startswith(b"HTTP/1.1 408 ")


async def test_head_that_comes_byte_by_byte_has_no_more_time() -> None:
    async def send_slowly() -> None:
        with contextlib.suppress(OSError):  # the server has closed the connection
            for one in HEAD:
                client.sendall(bytes([one]))
                await asyncio.sleep(HEAD_SECONDS / 2)

    async with connected() as client:
        sending = asyncio.create_task(send_slowly())
        assert (await received(client)).startswith(b"HTTP/1.1 408 ")
        await cancel_and_wait([sending])


async def test_connection_without_a_byte_is_closed() -> None:
    async with connected() as client:
        assert await received(client) == b""


async def test_answer_and_body_may_take_longer() -> None:
    async with connected() as client:
        client.sendall(HEAD.replace(b"\r\nHost", b"\r\nConnection: close\r\nHost"))
        await asyncio.sleep(HEAD_SECONDS * 2)
        client.sendall(b"ok")
        answer = await received(client)
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert answer.endswith(b"got ok")


async def test_malformed_head_is_refused_at_once() -> None:
    async with connected() as client:
        client.sendall(b"no head\r\n\r\n")
        assert b" 400 Bad Request\r\n" in await received(client)

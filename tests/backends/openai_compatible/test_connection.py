"""Requests as sent, and services that close connections or never finish."""

import asyncio

import pytest

from bot.backends.openai_compatible.connection import OpenAIConnection
from bot.backends.openai_compatible.settings import OpenAISettings
from tests.backends.asking import ask
from tests.backends.conftest import Connect
from tests.rigs.fake_openai import FakeOpenAI, Script

ANSWER = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n"
    b"keep-alive: timeout=5\r\n\r\n4\r\nwell\r\n0\r\n\r\n"
)


async def answer_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer the first request of each connection, and abort the connection on the second."""
    await reader.readuntil(b"}")
    writer.write(ANSWER)
    await reader.read(1)
    writer.transport.abort()


async def test_request_cut_off_by_a_closing_connection_is_resent() -> None:
    async with await asyncio.start_server(answer_once, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        settings = OpenAISettings(base_url=f"http://127.0.0.1:{port}/v1")
        connection = OpenAIConnection(settings, None)
        said = []
        deadline = asyncio.get_running_loop().time() + 5
        for _ in range(3):
            response = await connection.post("/chat/completions", {"how": "are you?"}, deadline)
            said.append(await response.read_all(deadline, 100))
        await connection.close()

    assert said == [b"well"] * 3


async def list_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """List a model for the first request of each connection, and abort it on the second."""
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b'HTTP/1.1 200 OK\r\ncontent-length: 23\r\n\r\n{"data": [{"id": "m"}]}')
    await reader.read(1)
    writer.transport.abort()


async def test_model_list_cut_off_by_a_closing_connection_is_requested_again() -> None:
    async with await asyncio.start_server(list_once, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        settings = OpenAISettings(base_url=f"http://127.0.0.1:{port}/v1")
        connection = OpenAIConnection(settings, None)
        assert [await connection.list_models() for _ in range(3)] == [["m"]] * 3
        await connection.close()


async def test_query_string_of_the_base_url_is_always_sent(
    connect: Connect, service: FakeOpenAI
) -> None:
    backend = connect(base_url=f"{service.base_url}?team=a%2Fb")

    await ask(backend)
    await backend.check()

    assert service.log[0]["path"] == "/v1/chat/completions?team=a%2Fb"
    assert service.listed[0][0] == "/v1/models?team=a%2Fb"


async def test_requests_do_not_reveal_this_machine_or_its_environment(
    connect: Connect, service: FakeOpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("API_KEY", "ORG_ID", "PROJECT_ID", "BASE_URL", "ADMIN_KEY"):
        monkeypatch.setenv(f"OPENAI_{name}", "http://SECRET")

    await ask(connect(api_key=None))

    assert "SECRET" not in str(service.log[0]["headers"])
    sent = {name.lower(): value for name, value in service.log[0]["headers"].items()}
    assert not [name for name in sent if name.startswith(("x-stainless", "openai-"))]
    assert sent["user-agent"].startswith("troupe/")
    assert sent["accept-encoding"] == "identity"


async def test_endless_error_is_not_read_to_its_end(connect: Connect, service: FakeOpenAI) -> None:
    endless = [b'{"error": {"message": "insufficient_quota"}}', *[b" " * 2**16] * 1000, 60]
    service.plays(Script(endless, status=429))

    answer = await ask(connect())

    assert "no credit left" in answer.error_texts
    assert await service.ended() == "hung up"

"""The HTTP client with servers that answer correctly, incorrectly, or not at all."""

import asyncio
import errno
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import uvloop

from bot.runtime.http_client import ConnectionFailed, HttpClient, HttpResponse, send_only_if
from tests.runtime.http_server import Step, byte_server
from tests.waiting import wait_until

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX-Id: 7\r\n\r\n"
MAX_BYTES = 1_000_000
HEADERS = {"User-Agent": "test", "Content-Type": "application/json"}


def in_seconds(seconds: float) -> float:
    return asyncio.get_running_loop().time() + seconds


@asynccontextmanager
async def client_of(base_url: str, **options: object) -> AsyncIterator[HttpClient]:
    given = {"headers": HEADERS, "connect_seconds": 2.0, "uses_proxy": False, **options}
    client = HttpClient(base_url, **given)  # type: ignore[arg-type]
    try:
        yield client
    finally:
        await client.close()


async def ask(client: HttpClient, body: bytes | None = b"{}", seconds: float = 5) -> HttpResponse:
    return await client.request("POST", "/chat", body, in_seconds(seconds))


async def read(client: HttpClient, seconds: float = 5) -> bytes:
    response = await ask(client, seconds=seconds)
    try:
        return await response.read_all(in_seconds(seconds), MAX_BYTES)
    finally:
        await response.close()


async def test_request_contains_path_headers_and_body() -> None:
    async with byte_server([OK], [OK]) as server, client_of(f"{server.base_url}?v=2") as client:
        assert await read(client) == b"ok"
        await (await client.request("GET", "/models", None, in_seconds(60))).close()

    host = b"127.0.0.1:%d" % server.port
    own = b"Accept-Encoding: identity\r\nUser-Agent: test\r\nContent-Type: application/json\r\n"
    first = b"Host: %b\r\n%bAccept: */*\r\n" % (host, own)
    assert server.requests == [
        b"POST /v1/chat?v=2 HTTP/1.1\r\n%bContent-Length: 2\r\n\r\n{}" % first,
        b"GET /v1/models?v=2 HTTP/1.1\r\n%b\r\n" % first,
    ]


async def test_credentials_in_the_url_are_sent_as_a_header() -> None:
    async with byte_server([OK]) as server:
        base_url = server.base_url.replace("//", "//me:s%40cret@")
        async with client_of(base_url) as client:
            assert await read(client) == b"ok"
    assert b"\r\nAuthorization: Basic bWU6c0BjcmV0\r\n" in server.requests[0]
    assert b"@" not in server.requests[0]


async def test_connection_is_reused_after_a_complete_response() -> None:
    chunked: list[Step] = [CHUNKED + b"2;x=y\r\nok\r\n", 0.01, b"0\r\nTrailer: 1\r\n\r\n"]
    async with byte_server([OK], chunked, [OK]) as server, client_of(server.base_url) as client:
        assert [await read(client) for _ in range(3)] == [b"ok"] * 3

    assert server.connections == 1


@pytest.mark.parametrize("is_connected", [True, False])
async def test_request_is_not_sent_if_the_last_check_before_writing_fails(
    is_connected: bool,
) -> None:
    answers_asked: list[bool] = []

    def may_write() -> bool:
        answers_asked.append(False)
        return False

    async with byte_server([OK], [OK]) as server, client_of(server.base_url) as client:
        if is_connected:
            assert await read(client) == b"ok"
        earlier = len(server.requests)
        with send_only_if(may_write), pytest.raises(ConnectionFailed) as failed:
            await ask(client)
        assert not failed.value.is_request_sent
        assert answers_asked == [False]
        assert len(server.requests) == earlier
        await wait_until(server.hung_up.is_set)
        assert await read(client) == b"ok"  # on another connection


@pytest.mark.parametrize(
    "steps",
    [
        [b"nonsense\r\n\r\n", 5.0],
        [b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nok", 5.0],
        [b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70_000, 5.0],
        [CHUNKED + b"zz\r\nok\r\n", 5.0],
        *([OK[:length], None] for length in (0, 20, -1)),
        [CHUNKED + b"5\r\nok", None],
    ],
    ids=range(8),
)
async def test_malformed_or_truncated_response_raises_connection_failed(steps: list[Step]) -> None:
    async with byte_server(steps) as server, client_of(server.base_url) as client:
        with pytest.raises(ConnectionFailed) as failed:
            await read(client)

    assert failed.value.is_request_sent
    assert not failed.value.was_connection_idle


async def test_error_reports_that_an_idle_connection_was_closed() -> None:
    async with byte_server([OK], [None]) as server, client_of(server.base_url) as client:
        await read(client)
        with pytest.raises(ConnectionFailed) as failed:
            await read(client)

    assert failed.value.was_connection_idle


async def test_every_wait_ends_at_the_deadline() -> None:
    async with (
        byte_server([5.0], [CHUNKED + b"2\r\nok\r\n", 5.0]) as server,
        client_of(server.base_url) as client,
    ):
        with pytest.raises(TimeoutError):
            await ask(client, seconds=0.05)
        response = await ask(client)
        assert await response.read(in_seconds(60)) == b"ok"
        with pytest.raises(TimeoutError):
            await response.read(in_seconds(0.05))
        await response.close()
        await wait_until(server.hung_up.is_set)


def test_data_that_arrived_in_time_is_read_after_the_deadline() -> None:
    """The event loop is busy while the data arrives, until after the deadline."""

    async def read_late() -> bytes:
        loop = asyncio.get_running_loop()
        with socket.create_server(("127.0.0.1", 0)) as server:
            address = f"http://127.0.0.1:{server.getsockname()[1]}"
            async with client_of(address) as client:
                asking = asyncio.create_task(ask(client))
                server.setblocking(False)
                connection, _ = await loop.sock_accept(server)
                with connection:
                    await loop.sock_recv(connection, 65_536)
                    await loop.sock_sendall(connection, CHUNKED)
                    response = await asking
                    deadline = in_seconds(0.05)
                    reading = asyncio.create_task(response.read(deadline, 0.04))
                    await asyncio.sleep(0)
                    await asyncio.sleep(0)
                    connection.send(b"2\r\nok\r\n")
                    while loop.time() <= deadline + 0.05:
                        time.sleep(0.01)  # noqa: ASYNC251 # the loop is busy
                    return await reading

    assert uvloop.run(read_late()) == b"ok"


async def test_closing_the_client_ends_requests_in_progress() -> None:
    async with (
        byte_server([5.0], [CHUNKED + b"2\r\nok\r\n", 5.0], [OK]) as server,
        client_of(server.base_url) as client,
    ):
        asking = asyncio.create_task(ask(client))
        await wait_until(lambda: len(server.requests) == 1)
        response = await ask(client)
        assert await response.read(in_seconds(60)) == b"ok"
        reading = asyncio.create_task(response.read(in_seconds(60)))
        await asyncio.sleep(0)

        await client.close()

        for ended in (asking, reading):
            with pytest.raises(ConnectionFailed):
                await ended
        assert await read(client) == b"ok"  # it may be used again


async def test_data_that_arrives_during_a_pause_is_read_in_one_call() -> None:
    trickle: list[Step] = [b"1\r\nx\r\n", 0.002]
    steps: list[Step] = [CHUNKED, *trickle * 50, b"0\r\n\r\n"]
    async with byte_server(steps) as server, client_of(server.base_url) as client:
        response = await ask(client)
        reads = []
        while data := await response.read(in_seconds(60), 0.1):
            reads.append(data)

    assert b"".join(reads) == b"x" * 50
    assert len(reads) < 10


async def test_error_reports_that_a_request_was_not_sent() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    for address in (f"http://127.0.0.1:{port}", "http://", "nonsense", "ftp://x", "http://x:y"):
        async with client_of(address) as client:
            with pytest.raises(ConnectionFailed) as failed:
                await ask(client)
            assert not failed.value.is_request_sent


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ConnectionRefusedError(errno.ECONNREFUSED, "Connect call failed ('::1', 1)"), "refused"),
        (
            socket.gaierror(socket.EAI_AGAIN, "try again"),
            "the host name cannot be resolved right now",
        ),
        (socket.gaierror(socket.EAI_NONAME, "unknown"), "the host name is unknown"),
        (OSError("Multiple exceptions"), "Multiple exceptions"),
    ],
)
async def test_error_describes_why_the_connection_failed(
    monkeypatch: pytest.MonkeyPatch, error: OSError, told: str
) -> None:
    async def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", fail)
    async with client_of("http://models.example") as client:
        with pytest.raises(ConnectionFailed, match=f"models.example:80 .*{told}") as caught:
            await ask(client)
    assert "Errno" not in str(caught.value)


async def test_header_with_a_line_break_is_refused() -> None:
    async with (
        byte_server([OK]) as server,
        client_of(server.base_url, headers={"X": "a\r\nY: secret"}) as client,
    ):
        with pytest.raises(ConnectionFailed, match="control character") as failed:
            await ask(client)
        assert not failed.value.is_request_sent
        assert "secret" not in str(failed.value)
        assert server.requests == []


async def test_proxy_gets_the_full_url(monkeypatch: pytest.MonkeyPatch) -> None:
    async with byte_server([OK]) as proxy:
        monkeypatch.setenv("http_proxy", f"http://me:secret@127.0.0.1:{proxy.port}")
        monkeypatch.setenv("no_proxy", "other.example")
        async with client_of("http://api.example/v1", uses_proxy=True) as client:
            assert await read(client) == b"ok"

    assert proxy.requests[0].startswith(b"POST http://api.example/v1/chat HTTP/1.1\r\n")
    assert b"\r\nProxy-Authorization: Basic bWU6c2VjcmV0\r\n" in proxy.requests[0]


async def test_servers_listed_in_no_proxy_are_reached_directly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    async with byte_server([OK]) as server, client_of(server.base_url, uses_proxy=True) as client:
        assert await read(client) == b"ok"


async def test_tls_connections_use_a_tunnel_through_the_proxy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with byte_server([b"HTTP/1.1 403 Forbidden\r\n\r\n"]) as proxy:
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{proxy.port}")
        monkeypatch.setenv("no_proxy", "")
        key = {"Authorization": "Bearer key"}
        async with client_of("https://api.example/v1", headers=key, uses_proxy=True) as client:
            with pytest.raises(ConnectionFailed, match="status 403"):
                await ask(client)

    assert proxy.requests[0].startswith(b"CONNECT api.example:443 HTTP/1.1\r\n")
    assert b"key" not in proxy.requests[0]

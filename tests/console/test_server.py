"""The HTTP server: health, metrics, port, certificate, and time limits for request heads."""

import asyncio
import contextlib
import json
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from cryptography import x509

from bot.console.server import Probe, make_health_routes, serve_http
from bot.errors import SettingsError, StoreError
from bot.runtime.tasks import cancel_and_wait
from bot.settings import ConsoleSettings
from tests.certificates import make_certificate
from tests.waiting import PATIENCE_SECONDS

ANY_PORT = ConsoleSettings(port=0)


async def ok() -> str | None:
    return None


async def disconnected() -> str | None:
    return "not connected"


async def hanging() -> str | None:
    await asyncio.sleep(60)
    return None


async def broken() -> str | None:
    raise StoreError("postgresql://bot:secret@db/chat is down")


async def get(address: str) -> tuple[int, str]:
    async with aiohttp.ClientSession() as client, client.get(address) as response:
        return response.status, await response.text()


@pytest.mark.parametrize(
    ("probe", "status", "shown"),
    [
        (ok, 200, "ok"),
        (disconnected, 503, "not connected"),
        (hanging, 503, "no answer within 0.05 s"),
        (broken, 503, "StoreError"),  # its text has an address
    ],
)
async def test_readyz_reports_the_result_of_each_probe(
    probe: Probe, status: int, shown: str
) -> None:
    notices = ["provider 'x' does not answer this worker"]
    routes = make_health_routes(
        {"part": probe}, list_notices=lambda: notices, probe_timeout_seconds=0.05
    )
    async with serve_http(ANY_PORT, [routes]) as address:
        alive, _ = await get(f"{address}/healthz")
        found, text = await get(f"{address}/readyz")

    assert (alive, found) == (200, status)
    assert json.loads(text) == {
        "ready": status == 200,
        "parts": {"part": shown},
        "notices": notices,
    }


async def test_probe_that_cannot_be_cancelled_is_not_waited_for() -> None:
    may_end = asyncio.Event()

    async def probe() -> str | None:
        try:
            await asyncio.Event().wait()
        finally:
            await may_end.wait()
        return None

    routes = make_health_routes({"database": probe}, probe_timeout_seconds=0.05)
    async with serve_http(ANY_PORT, [routes]) as address:
        status, text = await get(f"{address}/readyz")
        may_end.set()

    assert status == 503
    assert "no answer within" in text


async def test_metrics_are_in_prometheus_format() -> None:
    async with serve_http(ANY_PORT, [make_health_routes({})]) as address:
        status, text = await get(f"{address}/metrics")

    assert status == 200
    assert "# TYPE python_info gauge" in text


async def test_port_in_use_error_names_the_setting() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

        with pytest.raises(SettingsError, match=f"{port}.*TROUPE_CONSOLE__PORT"):
            async with serve_http(ConsoleSettings(port=port), [make_health_routes({})]):
                pytest.fail("it listens")


async def test_next_free_port_is_used_if_the_default_port_is_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        usual = taken.getsockname()[1]
        console = ConsoleSettings.model_construct(set(), host="127.0.0.1", port=usual)
        async with serve_http(console, [make_health_routes({})]) as address:
            assert int(address.rpartition(":")[2]) != usual
            assert (await get(f"{address}/healthz"))[0] == 200


async def test_port_is_free_after_shutdown() -> None:
    async with serve_http(ANY_PORT, [make_health_routes({})]) as address:
        port = int(address.rpartition(":")[2])
        await get(f"{address}/healthz")

    async with serve_http(ConsoleSettings(port=port), [make_health_routes({})]) as again:
        assert again == address


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    files = tmp_path / "tls.crt", tmp_path / "tls.key"
    for file, content in zip(files, make_certificate("first"), strict=True):
        file.write_bytes(content)
    return files


async def served_name(address: str) -> str:
    """Connect, and return the name in the server's certificate."""
    trusting = ssl.create_default_context()
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    host, _, port = address.removeprefix("https://").partition(":")
    _, writer = await asyncio.open_connection(host, int(port), ssl=trusting)
    shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    [name] = x509.load_der_x509_certificate(shown).subject
    return str(name.value)


async def test_certificate_is_served_only_if_it_matches_its_key(
    files: tuple[Path, Path],
) -> None:
    settings = ConsoleSettings(port=0, tls_certificate=files[0], tls_key=files[1])
    async with serve_http(settings, []) as address:
        assert await served_name(address) == "first"
    await asyncio.to_thread(files[1].write_bytes, make_certificate("other")[1])
    with pytest.raises(SettingsError, match="TROUPE_CONSOLE__TLS_CERTIFICATE"):
        async with serve_http(settings, []):
            pass


HEAD_SECONDS = 0.1
HEAD = b"POST /slow HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n"


async def answer_late(request: web.Request) -> web.Response:
    """Respond after more than the time limit for a request head."""
    await asyncio.sleep(HEAD_SECONDS * 3)
    return web.Response(text=f"got {await request.text()}")


@asynccontextmanager
async def connect_client() -> AsyncIterator[socket.socket]:
    """Run a server, and yield a connected socket."""
    routes = [lambda app: app.router.add_post("/slow", answer_late)]
    async with serve_http(
        ConsoleSettings(port=0), routes, header_timeout_seconds=HEAD_SECONDS
    ) as address:
        host, _, port = address.removeprefix("http://").partition(":")
        with socket.create_connection((host, int(port)), timeout=PATIENCE_SECONDS) as client:
            yield client


async def read_until_closed(client: socket.socket) -> bytes:
    """Return everything that the server sends until it closes the connection."""
    answer = b""
    while data := await asyncio.to_thread(client.recv, 4096):
        answer += data
    return answer


@pytest.mark.parametrize(
    ("sent", "answer"),
    [
        (b"P", b" 408 "),
        (HEAD[:-1], b" 408 "),
        (b"\r\n\r\nP", b" 408 "),
        (b"no head\r\n\r\n", b" 400 "),
    ],
)
async def test_incomplete_or_malformed_request_head_is_refused(sent: bytes, answer: bytes) -> None:
    async with connect_client() as client:
        client.sendall(sent)
        assert answer in (await read_until_closed(client)).partition(b"\r\n")[0]


async def test_request_head_sent_byte_by_byte_gets_no_extra_time() -> None:
    async def send_slowly() -> None:
        with contextlib.suppress(OSError):  # the server has closed the connection
            for one in HEAD:
                client.sendall(bytes([one]))
                await asyncio.sleep(HEAD_SECONDS / 2)

    async with connect_client() as client:
        sending = asyncio.create_task(send_slowly())
        assert (await read_until_closed(client)).startswith(b"HTTP/1.1 408 ")
        await cancel_and_wait([sending])


async def test_silent_connection_is_closed() -> None:
    async with connect_client() as client:
        assert await read_until_closed(client) == b""


async def test_response_and_body_may_take_longer_than_the_head() -> None:
    async with connect_client() as client:
        client.sendall(HEAD.replace(b"\r\nHost", b"\r\nConnection: close\r\nHost"))
        await asyncio.sleep(HEAD_SECONDS * 2)
        client.sendall(b"ok")
        answer = await read_until_closed(client)
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert answer.endswith(b"got ok")

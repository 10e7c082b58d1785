"""Untrusted URLs: only public servers are contacted, and their responses are limited."""

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import structlog.testing

from bot.errors import SettingsError
from bot.media.fetching import (
    FetchFailed,
    FetchRefused,
    PublicFetcher,
    is_public_address,
    parse_public_url,
)
from bot.settings import read_settings
from tests.attacks import GzipZeros, expand, with_ours

HEAD = "HTTP/1.1 {} \r\n"
MAX_BYTES = 1000
Reply = Callable[[str, asyncio.StreamWriter], Awaitable[None]]


class Canary:
    """A server on this machine that counts connections."""

    def __init__(self) -> None:
        self.connections = 0
        self.requests: list[str] = []
        self.writers: list[asyncio.StreamWriter] = []
        self.reply: Reply | None = None
        self.port = 0

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.writers.append(writer)
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            self.requests.append(head)
            if self.reply is not None:
                await self.reply(head.split(" ")[1], writer)
            writer.close()
            await writer.wait_closed()

    async def wait_closed(self) -> None:
        """Stop responses in progress, and wait until the server is closed."""
        for writer in self.writers:
            writer.transport.abort()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


@pytest.fixture
async def canary() -> AsyncIterator[Canary]:
    found = Canary()
    server = await asyncio.start_server(found.answer, "127.0.0.1", 0)
    found.port = server.sockets[0].getsockname()[1]
    yield found
    server.close()
    await found.wait_closed()


def make_trusting_fetcher(canary: Canary) -> PublicFetcher:
    """Return a fetcher that may connect to the canary on this machine."""
    return PublicFetcher(lambda _address: True, allowed_ports={canary.port})


def with_canary_port(canary: Canary, address: str) -> str:
    """Return a URL with its port replaced by the canary's."""
    head, slashes, rest = address.partition("//")
    server, slash, path = rest.partition("/")
    return f"{head}{slashes}{re.sub(r'(?<!:):[0-9]+$', '', server)}:{canary.port}{slash}{path}"


async def send_response(status: str, headers: Mapping[str, str], body: bytes, writer: Any) -> None:
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    writer.write((HEAD.format(status) + lines + "\r\n").encode() + body)
    await writer.drain()


def reply_with(status: str, headers: Mapping[str, str], body: bytes = b"") -> Reply:
    async def reply(_path: str, writer: asyncio.StreamWriter) -> None:
        await send_response(status, headers, body, writer)

    return reply


OURS = json.loads(Path(__file__).with_name("addresses.json").read_text("utf-8"))


@pytest.mark.parametrize(("title", "given"), with_ours("ssrf", OURS))
async def test_hostile_url_reaches_no_server(canary: Canary, title: str, given: Any) -> None:
    if isinstance(given, dict) and "config" in given:
        for address in given["config"].values():
            with pytest.raises(SettingsError, match="is a link-local address"):
                read_settings(providers={"x": {"kind": "openai", "base_url": address}})
        return
    if isinstance(given, dict):
        await check_response_is_bounded(canary, given)
        return
    for address in (given, with_canary_port(canary, given)):
        with structlog.testing.capture_logs() as logs, pytest.raises(FetchFailed) as failed:
            await PublicFetcher(allowed_ports={80, 443, canary.port}).fetch(address, MAX_BYTES)
        assert "\n" not in str(failed.value)
        if isinstance(failed.value, FetchRefused):
            assert [one["event"] for one in logs] == ["ssrf_blocked"]
        else:
            assert "the host name is unknown" in str(failed.value) or "cannot be resolved" in str(
                failed.value
            )
    assert canary.connections == 0


@pytest.mark.parametrize("address", ["http://127.0.0.1/", "http://[::ffff:127.0.0.1]/x?y=1"])
async def test_canary_server_is_reached_if_the_check_is_off(canary: Canary, address: str) -> None:
    """The tests above would fail without the check: the canary is reachable."""
    canary.reply = reply_with("200 OK", {}, b"found")
    fetcher = make_trusting_fetcher(canary)

    assert await fetcher.fetch(with_canary_port(canary, address), MAX_BYTES) == b"found"

    assert canary.connections == 1


@pytest.mark.parametrize("address", ["8.8.8.8", "2606:4700:4700::1111"])
def test_address_on_the_internet_counts_as_public(address: str) -> None:
    assert is_public_address(address)


@pytest.mark.parametrize(
    ("address", "asked"),
    [
        ("https://Example.COM/a.png#top", "https://example.com/a.png"),
        ("http://cdn.example.com:80/a?b=c", "http://cdn.example.com:80/a?b=c"),
        ("https://xn--bcher-kva.example/", "https://xn--bcher-kva.example/"),
        ("http://8.8.8.8/", "http://8.8.8.8/"),
    ],
)
def test_url_is_requested_in_canonical_form(address: str, asked: str) -> None:
    assert parse_public_url(address).geturl() == asked


async def check_response_is_bounded(canary: Canary, given: Mapping[str, Any]) -> None:
    """Check that the size and time of a response are limited, for one case of attacks.json."""
    body = expand(given["body"])

    async def reply(_path: str, writer: asyncio.StreamWriter) -> None:
        await send_response("200 OK", given.get("headers", {}), b"", writer)
        if isinstance(body, GzipZeros):
            writer.writelines(part for part, _ in zip(body, range(50), strict=False))
        elif body == "infinite":
            while True:
                writer.write(bytes(10_000))
                await writer.drain()
        elif body.startswith("1 byte"):
            while not writer.is_closing():
                writer.write(b"x")
                await asyncio.sleep(0.01)
        else:
            writer.write(body.encode())
        await writer.drain()

    canary.reply = reply
    fetcher = PublicFetcher(lambda _address: True, allowed_ports={canary.port}, timeout_seconds=0.5)
    found: bytes | None = None
    with contextlib.suppress(FetchFailed):
        found = await fetcher.fetch(f"http://127.0.0.1:{canary.port}/a.png", MAX_BYTES)
    if body == "infinite":
        assert found == bytes(MAX_BYTES)
    elif isinstance(body, str) and not body.startswith("1 byte"):
        assert found == body.encode()
    else:
        assert found is None
    assert canary.connections == 1


async def test_redirect_to_this_machine_is_refused(canary: Canary) -> None:
    """The first server's address is allowed, but the redirect target's is not."""
    target = f"http://127.0.0.2:{canary.port}/secret"
    canary.reply = reply_with("302 Found", {"Location": target})
    fetcher = PublicFetcher(lambda address: address == "127.0.0.1", allowed_ports={canary.port})

    with pytest.raises(FetchRefused, match=r"127\.0\.0\.2"):
        await fetcher.fetch(f"http://127.0.0.1:{canary.port}/", MAX_BYTES)

    assert canary.connections == 1


@pytest.mark.parametrize("target", ["file:///etc/passwd", "//[::1]:6379/", "http://localhost/", ""])
async def test_redirect_target_is_checked_like_the_first_url(canary: Canary, target: str) -> None:
    canary.reply = reply_with("301 Moved", {"Location": target})
    fetcher = PublicFetcher(lambda address: address == "127.0.0.1", allowed_ports={canary.port})

    with pytest.raises(FetchFailed):
        await fetcher.fetch(f"http://127.0.0.1:{canary.port}/", MAX_BYTES)

    assert canary.connections == (1 if target else 4)


async def test_up_to_three_relative_redirects_are_followed(canary: Canary) -> None:
    async def reply(path: str, writer: asyncio.StreamWriter) -> None:
        step = int(path.removeprefix("/"))
        if step == 3:
            await send_response("200 OK", {}, b"there", writer)
        else:
            await send_response("302 Found", {"Location": f"{step + 1}"}, b"", writer)

    canary.reply = reply
    fetcher = make_trusting_fetcher(canary)
    address = f"http://127.0.0.1:{canary.port}"

    assert await fetcher.fetch(f"{address}/0", MAX_BYTES) == b"there"
    with pytest.raises(FetchFailed, match="more than 3 times"):
        await fetcher.fetch(f"{address}/-1", MAX_BYTES)


async def test_request_contains_no_cookies_and_no_credentials(canary: Canary) -> None:
    canary.reply = reply_with("200 OK", {"Set-Cookie": "a=b"}, b"x")
    fetcher = make_trusting_fetcher(canary)
    for _ in range(2):
        await fetcher.fetch(f"http://127.0.0.1:{canary.port}/a%0d%0ab?c=d", MAX_BYTES)

    for head in canary.requests:
        assert head.startswith("GET /a%0d%0ab?c=d HTTP/1.1\r\n")
        names = {line.partition(":")[0] for line in head.splitlines()[1:] if line}
        assert names == {"Host", "User-Agent", "Accept", "Accept-Encoding", "Connection"}


async def test_error_contains_the_response_status(canary: Canary) -> None:
    canary.reply = reply_with("404 Not Found", {}, b"no")
    with pytest.raises(FetchFailed, match="the server answered with status 404"):
        await make_trusting_fetcher(canary).fetch(f"http://127.0.0.1:{canary.port}/", MAX_BYTES)

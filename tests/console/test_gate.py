"""Requests are refused with their reason: the host, the scope, the query, the body.

tests/console/test_every_route.py asks every route of the service.
"""

import asyncio
from urllib.parse import urlsplit

import pytest

from bot.chat.access import Scope
from tests.support.console import ConsoleUnderTest


async def test_wrong_scope_is_named(console: ConsoleUnderTest) -> None:
    headers = await console.bearer(Scope.READ)

    refused = await console.client.get("/api/v1/tokens", headers=headers)

    assert refused.status == 403
    assert await refused.json() == {"error": "This token lacks the scope operate."}


@pytest.mark.parametrize("limit", ["0", "many", "1001"])
async def test_wrong_value_of_a_query_is_named(console: ConsoleUnderTest, limit: str) -> None:
    headers = await console.bearer(Scope.READ)

    refused = await console.client.get(f"/api/v1/audit?limit={limit}", headers=headers)

    assert refused.status == 422
    assert "limit" in (await refused.json())["error"]


@pytest.mark.parametrize(
    ("header", "status"),
    [
        (b"Authorization: Bearer \xff\xe9", b"401"),
        (b"Authorization: Bearer", b"401"),
        (b"Cookie: troupe_session=\xff\xe9", b"401"),
        (b"Cookie: troupe_session=", b"401"),
        (b"Origin: http://\xff\xe9", b"403"),
    ],
)
async def test_header_that_is_no_utf8_is_refused_and_raises_nothing(
    console: ConsoleUnderTest, header: bytes, status: bytes
) -> None:
    assert await send_raw(console, b"GET /api/v1/audit", header) == status


async def test_csrf_token_that_is_no_utf8_is_refused(console: ConsoleUnderTest) -> None:
    await console.log_in()
    [session] = [one.value for one in console.client.session.cookie_jar]

    refused = await send_raw(
        console,
        b"POST /logout",
        f"Origin: {console.origin}".encode(),
        f"Cookie: troupe_session={session}".encode(),
        b"X-CSRF-Token: \xff\xe9",
    )

    assert refused == b"403"
    assert (await console.client.get("/access")).status == 200


async def send_raw(console: ConsoleUnderTest, request: bytes, *headers: bytes) -> bytes:
    """Send bytes that no client sends; return the status."""
    address = urlsplit(console.origin)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    fixed = (b"Host: " + address.netloc.encode(), b"Content-Length: 0", b"Connection: close")
    writer.write(b"\r\n".join([request + b" HTTP/1.1", *fixed, *headers, b"", b""]))
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer.split()[1]


_FORM = "application/x-www-form-urlencoded"
_UNREADABLE = [
    *((body, {}) for body in ("[" * 100_000, '{"token":' * 50_000, "{", '"\\ud800"', "NaN", "")),
    ("xxxx", {"Content-Encoding": "gzip"}),
    ("xxxx", {"Content-Encoding": "gzip", "Content-Type": _FORM}),
    ("token=x", {"Content-Type": f"{_FORM}; charset=nonsense"}),
]


@pytest.mark.parametrize(("body", "more"), _UNREADABLE)
async def test_body_that_cannot_be_read_is_refused(
    console: ConsoleUnderTest, body: str, more: dict[str, str]
) -> None:
    headers = {"Origin": console.origin, "Content-Type": "application/json", **more}

    refused = await console.client.post("/login", data=body.encode(), headers=headers)

    assert refused.status == 422


@pytest.mark.parametrize(
    "head",
    [b"Content-Disposition: form-data; name=x\r\nContent-Transfer-Encoding: foo", b"X:" * 9000],
)
async def test_part_of_a_form_that_cannot_be_read_is_refused(
    console: ConsoleUnderTest, head: bytes
) -> None:
    headers = await console.bearer(Scope.READ)
    given = {**headers, "Content-Type": "multipart/form-data; boundary=a"}
    body = b"--a\r\n" + head + b"\r\n\r\nx\r\n--a--\r\n"

    refused = await console.client.post("/logout", data=body, headers=given)

    assert refused.status == 422

"""Refused requests with reasons, permissions, and the language of pages and errors.

tests/console/test_every_route.py checks every route of the service.
"""

import asyncio
import json
from urllib.parse import urlsplit

import pytest

from bot.chat.access import ApiScope
from bot.storage.chat_settings import SqlChatSettings
from bot.storage.operation import AuditLog
from tests.support.console import ConsoleUnderTest


@pytest.mark.parametrize(
    ("path", "status", "told"),
    [
        ("tokens", 403, "This token lacks the scope operate."),
        *((f"audit?limit={limit}", 422, "limit") for limit in ("0", "many", "1001")),
    ],
)
async def test_refusal_states_its_reason(
    console: ConsoleUnderTest, path: str, status: int, told: str
) -> None:
    headers = await console.bearer(ApiScope.READ)
    refused = await console.client.get(f"/api/v1/{path}", headers=headers)
    assert (refused.status, told in (await refused.json())["error"]) == (status, True)


@pytest.mark.parametrize(
    ("header", "status"),
    [
        (b"Authorization: Bearer \xff\xe9", b"401"),
        (b"Authorization: Bearer", b"401"),
        (b"Cookie: %s=\xff\xe9", b"401"),
        (b"Cookie: %s=", b"401"),
        (b"Origin: http://\xff\xe9", b"403"),
    ],
)
async def test_header_in_invalid_utf8_is_refused_without_an_exception(
    console: ConsoleUnderTest, header: bytes, status: bytes
) -> None:
    header = header.replace(b"%s", f"troupe_session_{console.client.port}".encode())
    assert await send_raw(console, b"GET /api/v1/audit", header) == status


async def test_csrf_token_in_invalid_utf8_is_refused(console: ConsoleUnderTest) -> None:
    await console.log_in()
    [session] = console.client.session.cookie_jar

    refused = await send_raw(
        console,
        b"POST /logout",
        f"Origin: {console.origin}".encode(),
        f"Cookie: {session.key}={session.value}".encode(),
        b"X-CSRF-Token: \xff\xe9",
    )

    assert refused == b"403"
    assert (await console.client.get("/access")).status == 200


async def send_raw(console: ConsoleUnderTest, request: bytes, *headers: bytes) -> bytes:
    """Send raw bytes that no HTTP client would send; return the status."""
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
async def test_malformed_body_is_refused(
    console: ConsoleUnderTest, body: str, more: dict[str, str]
) -> None:
    headers = {"Origin": console.origin, "Content-Type": "application/json", **more}

    refused = await console.client.post("/login", data=body.encode(), headers=headers)

    assert refused.status == 422


@pytest.mark.parametrize(
    "head",
    [b"Content-Disposition: form-data; name=x\r\nContent-Transfer-Encoding: foo", b"X:" * 9000],
)
async def test_malformed_form_part_is_refused(console: ConsoleUnderTest, head: bytes) -> None:
    headers = await console.bearer(ApiScope.READ)
    given = {**headers, "Content-Type": "multipart/form-data; boundary=a"}
    body = b"--a\r\n" + head + b"\r\n\r\nx\r\n--a--\r\n"

    refused = await console.client.post("/logout", data=body, headers=given)

    assert refused.status == 422


async def test_token_can_be_revoked_on_the_page_and_by_api(console: ConsoleUnderTest) -> None:
    headers = await console.bearer(ApiScope.READ)
    await console.bearer(ApiScope.PRESETS)
    operator = await console.bearer(ApiScope.OPERATE, ApiScope.READ)
    await console.log_in()

    shown = await console.send_form("/access/revoke", "/access", name="read")
    revoked = await console.client.delete("/api/v1/tokens/presets", headers=operator)
    again = await console.client.delete("/api/v1/tokens/presets", headers=operator)

    assert shown.url.path == "/access"
    assert "revoke token read" in await shown.text()
    assert (await console.client.get("/api/v1/audit", headers=headers)).status == 401
    assert (revoked.status, again.status) == (200, 404)
    entry, _ = json.loads(await console.page("/api/v1/audit", **operator))["entries"]
    assert (entry["who"], entry["action"], entry["subject"]) == (
        *("token operate-read", "revoke token", "presets"),
    )


async def test_audit_page_shows_what_an_admin_changed_in_a_group(console: ConsoleUnderTest) -> None:
    settings = SqlChatSettings(console.database, console.clock)
    for value in ("<nora>", "fox"):
        await settings.set("telegram:-5", "preset", value, "telegram:9", is_audited=True)
    await console.log_in()
    page = await console.page("/access")
    assert "<td>telegram:9</td><td>set preset telegram:-5</td>" in page
    assert '<td class="people">&lt;nora&gt;</td><td class="people">fox</td>' in page


async def test_audit_log_hides_token_names_from_read_tokens(console: ConsoleUnderTest) -> None:
    reader = await console.bearer(ApiScope.READ)
    operator = await console.bearer(ApiScope.OPERATE, ApiScope.READ)
    audit = AuditLog(console.database, console.clock)
    for who, action, subject in (
        ("token deploy-bot", "publish", "nora v2"),
        ("command line", "add token", "deploy-bot"),
        ("token operate-read", "revoke token", "deploy-bot"),
        ("token read", "log out", "session"),
    ):
        await audit.record(who, action, subject)

    told = []
    for headers in (reader, operator):
        page = await console.page("/access", **headers)
        entries = json.loads(await console.page("/api/v1/audit", **headers))
        told.append([(one["who"], one["subject"]) for one in entries["entries"]])
        assert ("deploy-bot" in page) == (headers is operator)
        assert ("<td>operate-read</td>" in page) == (headers is operator)  # the list of tokens

    assert told[0] == [
        ("token read", "session"),
        ("token", ""),
        ("command line", ""),
        ("token", "nora v2"),
    ]
    assert told[1][-1] == ("token deploy-bot", "nora v2")


async def test_language_and_theme_follow_the_browser_until_they_are_chosen(
    console: ConsoleUnderTest,
) -> None:
    for accepted, language in (("zh-CN,zh;q=0.9,en;q=0.8", "zh"), ("de-DE", "en"), ("", "en")):
        shown = await console.page("/login", **{"Accept-Language": accepted})
        assert f'<html lang="{language}"' in shown
    answer = await console.client.post(
        "/look",
        data={"language": "zh", "theme": "dark", "back": "/login"},
        headers={"Origin": console.origin},
    )
    page = await answer.text()

    assert answer.url.path == "/login"
    assert '<html lang="zh" data-theme="dark">' in page
    assert "登录 Troupe" in page


@pytest.mark.parametrize(
    "back",
    [
        *("https://evil.example", "//evil.example", "/\\evil.example", "/\t/evil.example"),
        *("/\n/evil.example", "/\r\\evil.example", " //evil.example", "/\x00/evil.example"),
    ],
)
async def test_redirects_stay_on_this_site(console: ConsoleUnderTest, back: str) -> None:
    answer = await console.client.post(
        "/look",
        data={"theme": "dark", "back": back},
        headers={"Origin": console.origin},
        allow_redirects=False,
    )

    assert answer.headers["Location"] == "/"

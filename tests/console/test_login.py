"""Login with a one-time token, sessions, and the headers of every response."""

import asyncio
import re
from pathlib import Path

import pytest
from pydantic import SecretStr

from bot.chat.access import ApiScope
from bot.settings import ConsoleSettings
from tests.support.console import ConsoleUnderTest, hidden_fields

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'nonce-…'; connect-src 'self';"
    " img-src 'self' data:; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)


async def status(console: ConsoleUnderTest, **headers: str) -> int:
    """Request a page that requires a login; return the status."""
    return (await console.client.get("/access", headers=headers)).status


async def test_one_time_token_logs_in_once(console: ConsoleUnderTest) -> None:
    token = await console.login_token()

    assert (await console.send_token(token)).status == 303
    assert await status(console) == 200
    console.client.session.cookie_jar.clear()
    assert (await console.send_token(token)).status == 401
    assert await status(console) == 401


async def test_links_and_sessions_expire(console: ConsoleUnderTest) -> None:
    token = await console.login_token()
    await console.log_in()
    await console.clock.advance(600)
    assert (await console.send_token(token)).status == 401
    assert await status(console) == 200

    await console.clock.advance(12 * 3600)

    assert await status(console) == 401


async def test_session_is_a_cookie_for_this_site_and_stored_as_a_hash(
    console: ConsoleUnderTest,
) -> None:
    answer = await console.log_in()
    cookie = answer.headers["Set-Cookie"]

    name = f"troupe_session_{console.client.port}"  # other consoles of this host have other names
    assert cookie.startswith(f"{name}=")
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(cookie.split("; "))
    rows = await console.database.read(
        lambda c: c.exec_driver_sql("SELECT * FROM console_token").all()
    )
    assert len(rows) == 1
    assert answer.cookies[name].value not in str(rows)


async def test_wrong_tokens_are_rate_limited_without_locking_anybody_out(
    console: ConsoleUnderTest,
) -> None:
    token = await console.login_token()
    statuses = [(await console.send_token("wrong")).status for _ in range(6)]
    assert statuses == [401] * 5 + [429]
    assert (await console.send_token(token)).status == 303

    await console.clock.advance(60)

    assert (await console.send_token("wrong")).status == 401


async def test_revoking_ends_sessions_and_unused_links(console: ConsoleUnderTest) -> None:
    unused = await console.login_token()
    await console.log_in()

    assert await console.tokens.end_all_sessions() == 1

    assert await status(console) == 401
    assert (await console.send_token(unused)).status == 401


async def test_log_out_needs_the_csrf_token_and_ends_the_session(
    console: ConsoleUnderTest,
) -> None:
    name = f"troupe_session_{console.client.port}"
    session = (await console.log_in()).cookies[name].value
    csrf = hidden_fields(await (await console.client.get("/access")).text())["csrf"]
    found = []
    for fields in ({}, {"csrf": csrf}):
        answer = await console.client.post(
            "/logout", data=fields, headers={"Origin": console.origin}, allow_redirects=False
        )
        found.append((answer.status, await status(console, Cookie=f"{name}={session}")))

    assert found == [(403, 200), (303, 401)]


@pytest.mark.parametrize("path", ["/access", "/login", "/static/console.css", "/api/v1/audit"])
async def test_every_response_has_the_content_security_policy(
    console: ConsoleUnderTest, path: str
) -> None:
    seen = set()
    for headers in ({}, await console.bearer(ApiScope.READ)):
        answer = await console.client.get(path, headers=headers)
        policy = answer.headers["Content-Security-Policy"]
        assert "nonce-" not in policy or policy not in seen, "each page has a nonce of its own"
        seen.add(policy)
        expected = POLICY if "nonce-" in policy else POLICY.replace(" 'nonce-…'", "")
        assert re.sub(r"nonce-[\w-]{22}", "nonce-…", policy) == expected


BEHIND_PROXY = ConsoleSettings(
    port=0, host="192.0.2.5", trusted_proxy="127.0.0.1", url="https://127.0.0.1"
)
PROXY_ELSEWHERE = ConsoleSettings(port=0, trusted_proxy="192.0.2.7")
WITH_TOKEN = ConsoleSettings(port=0, token=SecretStr("a-token-of-20-letters"))


@pytest.mark.parametrize("console_settings", [BEHIND_PROXY])
async def test_cookie_behind_a_proxy_is_secure_and_host_only(console: ConsoleUnderTest) -> None:
    cookie = (await console.log_in()).headers["Set-Cookie"]

    assert cookie.startswith("__Host-troupe=")
    assert "Secure" in cookie.split("; ")


@pytest.mark.parametrize("console_settings", [PROXY_ELSEWHERE])
async def test_only_the_configured_proxy_may_connect(console: ConsoleUnderTest) -> None:
    assert (await console.client.get("/login")).status == 403


@pytest.mark.parametrize("console_settings", [WITH_TOKEN])
async def test_token_from_the_settings_has_every_scope(console: ConsoleUnderTest) -> None:
    for token, status in (("a-token-of-20-letters", 200), ("another-token-of-20", 401)):
        headers = {"Authorization": f"Bearer {token}"}
        assert (await console.client.get("/api/v1/tokens", headers=headers)).status == status


def test_short_token_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 20"):
        ConsoleSettings(token=SecretStr("short"))


class TestTokenFile:
    """The API token from a file that is replaced while the console runs."""

    @pytest.fixture
    def file(self, tmp_path: Path) -> Path:
        file = tmp_path / "token"
        file.write_text("the-first-token-of-the-file\n", encoding="utf-8")
        return file

    @pytest.fixture
    def console_settings(self, file: Path) -> ConsoleSettings:
        return ConsoleSettings(port=0, token_file=file)

    @pytest.mark.parametrize(
        ("content", "lets_in"),
        [
            ("the-second-token-of-the-file\n", "second"),
            ("too-short\n", "first"),
            ("the-second-token-of-the-file and another\n", "first"),
        ],
    )
    async def test_new_token_in_the_file_is_accepted_and_the_old_token_refused(
        self, console: ConsoleUnderTest, file: Path, content: str, lets_in: str
    ) -> None:
        async def statuses() -> dict[str, int]:
            found = {}
            for name in ("first", "second"):
                headers = {"Authorization": f"Bearer the-{name}-token-of-the-file"}
                found[name] = (await console.client.get("/api/v1/tokens", headers=headers)).status
            return found

        assert await statuses() == {"first": 200, "second": 401}
        await asyncio.to_thread(file.write_text, content, encoding="utf-8")
        await console.clock.advance(6)
        assert await statuses() == {"first": 401, "second": 401} | {lets_in: 200}

    @pytest.mark.parametrize("content", ["", "too-short", "the-first-token-of-the-file x"])
    def test_token_file_must_contain_exactly_one_token(self, file: Path, content: str) -> None:
        file.write_text(content, encoding="utf-8")
        with pytest.raises(ValueError, match="should contain exactly one token"):
            ConsoleSettings(token_file=file)

    def test_token_and_token_file_cannot_both_be_set(self, file: Path) -> None:
        with pytest.raises(ValueError, match="both set"):
            ConsoleSettings(token=SecretStr("a-token-of-20-letters"), token_file=file)


@pytest.mark.parametrize("host", ["192.0.2.5", "::", "console.example"])
def test_pages_beyond_loopback_require_https_or_a_proxy(host: str) -> None:
    with pytest.raises(ValueError, match=r"TLS_CERTIFICATE.*TRUSTED_PROXY.*PAGES=false"):
        ConsoleSettings(host=host)

    assert not ConsoleSettings(host=host, pages=False).pages
    assert ConsoleSettings(host=host, trusted_proxy="10.0.0.1").is_https


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_pages_on_loopback_require_neither_https_nor_a_proxy(host: str) -> None:
    assert ConsoleSettings(host=host).is_loopback

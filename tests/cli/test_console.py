"""`troupe console`: links to log in, sessions, tokens of the API."""

import asyncio
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bot.chat.access import Scope
from bot.cli.app import app
from bot.console.login import token_digest
from bot.console.server import published_address
from bot.errors import UserError
from bot.runtime.clock import SystemClock
from bot.storage.database import open_database
from bot.storage.operation import AuditLog
from bot.storage.tokens import ConsoleTokens


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def console(*words: str) -> str:
    result = CliRunner().invoke(app, ["console", *words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout.strip()


def test_link_is_to_the_running_service_and_logs_in_once(folder: Path) -> None:
    (folder / "data").mkdir()
    with published_address(folder / "data", "http://127.0.0.1:8713"):
        link = console("url")
    address, _, token = link.partition("#")

    async def use_twice() -> list[bool]:
        async with open_database("sqlite:///data/troupe.db") as database:
            tokens = ConsoleTokens(database, SystemClock())
            return [await tokens.use_login(token_digest(token)) for _ in range(2)]

    assert address == "http://127.0.0.1:8713/login"
    assert asyncio.run(use_twice()) == [True, False]


def test_link_without_a_service_names_the_remedy() -> None:
    with pytest.raises(UserError, match="no console runs on data; start one with `troupe run`"):
        CliRunner().invoke(app, ["console", "url"], catch_exceptions=False)


@pytest.mark.parametrize(
    "scopes", [("--scope", "read", "--scope", "operate"), ("--scope", "operate, read")]
)
def test_tokens_are_added_listed_and_revoked(scopes: tuple[str, ...]) -> None:
    token = console("token", "add", "backup", *scopes)

    async def find() -> tuple[Scope, ...]:
        async with open_database("sqlite:///data/troupe.db") as database:
            found = await ConsoleTokens(database, SystemClock()).find_api_token(token_digest(token))
            assert found is not None
            return found.scopes

    assert token.startswith("troupe_")
    assert asyncio.run(find()) == (Scope.OPERATE, Scope.READ)
    assert console("token", "list") == "backup: operate, read"
    with pytest.raises(UserError, match="there is no scope 'oparate'; did you mean operate"):
        console("token", "add", "other", "--scope", "read,oparate")
    with pytest.raises(UserError, match="there is a token 'backup' already"):
        CliRunner().invoke(
            app, ["console", "token", "add", "backup", "--scope", "read"], catch_exceptions=False
        )
    assert console("token", "revoke", "backup") == "revoked backup"
    assert console("token", "list") == ""
    with pytest.raises(UserError, match="there is no token 'backup'"):
        CliRunner().invoke(app, ["console", "token", "revoke", "backup"], catch_exceptions=False)

    async def audited() -> list[tuple[str, str, str]]:
        async with open_database("sqlite:///data/troupe.db") as database:
            entries = await AuditLog(database).newest(10)
            return [(one.action, one.subject, one.after) for one in entries]

    assert asyncio.run(audited()) == [
        *(("revoke token", "backup", ""), ("add token", "backup", "operate, read"))
    ]


def test_revoking_tells_how_many_sessions_ended() -> None:
    async def add() -> None:
        async with open_database("sqlite:///data/troupe.db") as database:
            tokens = ConsoleTokens(database, SystemClock())
            for digest in ("a", "b"):
                await tokens.add_session(digest, SystemClock().now() + 60)

    Path("data").mkdir()
    asyncio.run(add())

    assert console("revoke") == "ended 2 sessions"
    assert console("revoke") == "ended 0 sessions"

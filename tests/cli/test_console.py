"""`troupe console`: login links, sessions, and API tokens."""

from pathlib import Path

import pytest

from bot.chat.access import ApiScope
from bot.console.login import hash_token
from bot.console.server import publish_console_address
from bot.errors import UserError
from bot.runtime.clock import SystemClock
from bot.storage.database import Database
from bot.storage.operation import AuditLog
from bot.storage.tokens import ConsoleTokens
from tests.cli.command import read_audit_log, troupe, use_database


def console(*words: str) -> str:
    return troupe("console", *words).strip()


def test_link_opens_the_running_service_and_works_once(folder: Path) -> None:
    (folder / "data").mkdir()
    with publish_console_address(folder / "data", "http://127.0.0.1:8713"):
        link = console("url")
    address, _, token = link.partition("#")

    async def use_twice(database: Database) -> list[bool]:
        tokens = ConsoleTokens(database, SystemClock())
        return [await tokens.use_login(hash_token(token)) for _ in range(2)]

    assert address == "http://127.0.0.1:8713/login"
    assert use_database(use_twice) == [True, False]


def test_console_link_suggests_a_remedy_if_the_service_is_not_running() -> None:
    with pytest.raises(
        UserError, match="no console is running with data in data; start `troupe run`"
    ):
        console("url")


@pytest.mark.parametrize(
    "scopes", [("--scope", "read", "--scope", "operate"), ("--scope", "operate, read")]
)
def test_tokens_are_added_listed_and_revoked(scopes: tuple[str, ...]) -> None:
    token = console("token", "add", "backup", *scopes)

    found = use_database(
        lambda database: ConsoleTokens(database, SystemClock()).find_api_token(hash_token(token))
    )
    assert token.startswith("troupe_")
    assert found is not None
    assert found.scopes == (ApiScope.OPERATE, ApiScope.READ)
    assert console("token", "list") == "backup: operate, read"
    console("token", "add", "ci", "--scope", "say", "--channel", "telegram:-100")
    assert console("token", "list") == "backup: operate, read\nci: say, telegram:-100"
    with pytest.raises(UserError, match="'12' is not a channel; write it as telegram:-1001234"):
        console("token", "add", "other", "--scope", "say", "--channel", "12")
    console("token", "revoke", "ci")
    with pytest.raises(UserError, match="there is no scope 'oparate'; did you mean operate"):
        console("token", "add", "other", "--scope", "read,oparate")
    with pytest.raises(UserError, match="the token 'backup' already exists"):
        console("token", "add", "backup", "--scope", "read")
    assert console("token", "revoke", "backup") == "revoked backup"
    assert console("token", "list") == ""
    with pytest.raises(UserError, match="there is no token 'backup'"):
        console("token", "revoke", "backup")

    assert read_audit_log() == [
        ("command line", "add token", "backup"),
        ("command line", "add token", "ci"),
        ("command line", "revoke token", "ci"),
        ("command line", "revoke token", "backup"),
    ]
    [*_, added] = use_database(lambda database: AuditLog(database, SystemClock()).newest(10))
    assert added.after == "operate, read"


def test_revoking_reports_how_many_sessions_ended() -> None:
    async def add(database: Database) -> None:
        tokens = ConsoleTokens(database, SystemClock())
        for digest in ("a", "b"):
            await tokens.add_session(digest, SystemClock().now() + 60)

    use_database(add)

    assert console("revoke") == "ended 2 sessions"
    assert console("revoke") == "ended 0 sessions"

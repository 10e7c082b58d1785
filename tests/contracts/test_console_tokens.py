"""Contract of the console's tokens and audit log, on SQLite and on PostgreSQL."""

from bot.chat.access import ApiScope, ApiToken, AuditEntry
from bot.runtime.clock import SystemClock
from bot.storage.operation import AuditLog
from bot.storage.retention import delete_expired
from bot.storage.tokens import ConsoleTokens
from tests.fakes import FakeClock
from tests.support.store import Store


async def test_one_time_token_is_used_once_and_expires(store: Store) -> None:
    clock = FakeClock()
    tokens = ConsoleTokens(store.database, clock)
    for digest in ("a", "b"):
        await tokens.add_login(digest, clock.now() + 600)

    assert [await tokens.use_login("a") for _ in range(2)] == [True, False]
    await clock.advance(600)
    assert not await tokens.use_login("b")


async def test_ending_one_or_all_sessions_keeps_api_tokens(store: Store) -> None:
    clock = FakeClock()
    tokens = ConsoleTokens(store.database, clock)
    api_token = ApiToken("backup", (ApiScope.OPERATE, ApiScope.READ), clock.now(), ("discord:1",))
    assert await tokens.add_api_token("t", api_token)
    assert not await tokens.add_api_token("u", api_token)
    for digest in ("a", "b", "c"):
        await tokens.add_session(digest, clock.now() + 60)

    await tokens.end_session("a")
    assert [await tokens.has_session(digest) for digest in ("a", "b")] == [False, True]
    assert await tokens.end_all_sessions() == 2
    assert not await tokens.has_session("b")

    assert await tokens.find_api_token("t") == api_token
    assert await tokens.find_api_token("b") is None
    assert list(await tokens.api_tokens()) == [api_token]
    assert [await tokens.revoke_api_token("backup") for _ in range(2)] == [True, False]


async def test_audit_log_is_listed_newest_first(store: Store) -> None:
    clock = FakeClock()
    audit = AuditLog(store.database, clock)
    entries = []
    for _ in range(3):
        await clock.advance(1)
        entries.append(AuditEntry(clock.now(), "session", "set preset", "telegram:5"))
        await audit.record("session", "set preset", "telegram:5")

    assert list(await audit.newest(2)) == [entries[2], entries[1]]


async def test_audit_log_contains_the_old_and_new_value_of_a_setting(store: Store) -> None:
    audit, by, scope = AuditLog(store.database, SystemClock()), "telegram:9", "telegram:-5"
    for value in ("nora", "fox\nnora", "fox\nnora", None):
        await store.chat_settings.set(scope, "preset", value, by, is_audited=True)
    await store.chat_settings.set(f"{by}@{scope}", "persona", "A tall knight.", by)

    entries = [(one.action, one.before, one.after) for one in await audit.newest(9)]
    assert entries[::-1] == [
        ("set preset", "", "nora"),
        ("set preset", "nora", "fox\nnora"),
        ("reset preset", "fox\nnora", ""),
    ]
    assert {(one.who, one.subject) for one in await audit.newest(9)} == {(by, scope)}


async def test_audit_log_entries_are_deleted_after_a_year_and_a_month(store: Store) -> None:
    audit, now = AuditLog(store.database, SystemClock()), SystemClock().now()
    for days in (401, 399):
        then = FakeClock(now - days * 86_400)
        await AuditLog(store.database, then).record("session", "set preset", str(days))
    assert await delete_expired(store.database, SystemClock(), 14) == 1
    assert [one.subject for one in await audit.newest(9)] == ["399"]

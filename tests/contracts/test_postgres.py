"""Test PostgreSQL: addresses, transaction poolers, timeouts, connection limits, frozen servers."""

import asyncio
import contextlib
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable
from configparser import ConfigParser
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import asyncpg
import pytest
from sqlalchemy import Connection

from bot.errors import StoreError
from bot.runtime.clock import SystemClock
from bot.storage.database import Database, open_database, parse_url
from bot.storage.inbox import SqlInbox
from bot.storage.postgres import COMMAND_TIMEOUT_SECONDS, to_dsn
from bot.storage.statements import Statement, Unit
from tests.checkout import CHECKOUT
from tests.postgres import create_postgres_database, frozen_postgres
from tests.samples import make_incoming
from tests.support.store import answer_in
from tests.waiting import PATIENCE_SECONDS

_LIMITS = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout")
_MAX_CONNECTIONS = 8
_LOCK = "SELECT key FROM lane FOR UPDATE"
_SLEEP = "SELECT pg_sleep(300)"
_COUNT_OTHERS = (
    "SELECT count(*) FROM pg_stat_activity "
    "WHERE datname = current_database() AND pid <> pg_backend_pid() "
    "AND backend_type = 'client backend'"
)
_UNITS = 200


@pytest.fixture
async def url(postgres_folder: str) -> str:
    return await create_postgres_database(postgres_folder)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("//me:p%40s@a:1,b:2/db", {"host": "a:1,b:2"}),
        ("//a,[::1]:2/db?target_session_attrs=primary", {"host": "a,[::1]:2"}),
        ("//me@/db?host=a:1&host=b:2", {"host": "a:1,b:2"}),
        ("//me@a/db?ssl=true", {"sslmode": "require"}),
        ("//me@a/db?ssl=verify-full", {"sslmode": "verify-full"}),
        ("//me@a/db?sslmode=prefer", {"sslmode": "prefer"}),
    ],
)
def test_database_address_is_translated_for_the_driver(
    given: str, expected: dict[str, str]
) -> None:
    dsn = urlsplit(to_dsn(parse_url(f"postgresql+asyncpg:{given}")))
    query = {name: values[0] for name, values in parse_qs(dsn.query).items()}
    assert dsn.scheme == "postgresql"
    assert dsn.path == "/db"
    assert query | expected == query
    assert "p%40s" in dsn.netloc or "p%40s" not in given


@pytest.mark.service
async def test_second_host_is_used_if_the_first_is_unreachable(url: str) -> None:
    several = url.replace("?host=", "?target_session_attrs=primary&host=127.0.0.1:1,")
    async with open_database(several) as database:
        await answer_in(database, 1)


@pytest.mark.service
@pytest.mark.parametrize("query", ["sslmode=disable", "sslmode=prefer", "ssl=disable"])
async def test_sslmode_is_applied_by_both_pools(url: str, query: str) -> None:
    async with open_database(f"{url}&{query}") as database:
        await answer_in(database, 1)


@pytest.mark.service
async def test_invalid_address_is_reported_in_one_line(url: str) -> None:
    for wrong in (f"{url}&sslmode=nonsense", url.replace("/t", "/missing")):
        with pytest.raises(StoreError, match="TROUPE_DATABASE_URL"):
            async with open_database(wrong):
                pass


@pytest.mark.service
@pytest.mark.parametrize(
    ("given", "remedy"),
    [
        ("postgres@/nowhere", "create it with `createdb nowhere` as its owner, or correct"),
        ("nobody@/postgres", "correct the user or the password in"),
    ],
)
async def test_missing_database_is_reported(postgres_folder: str, given: str, remedy: str) -> None:
    with pytest.raises(StoreError) as raised:
        async with open_database(f"postgresql+asyncpg://{given}?host={postgres_folder}"):
            pytest.fail("it opened")
    assert remedy in str(raised.value)
    assert "TROUPE_DATABASE_URL" in str(raised.value)


async def test_both_pools_set_statement_lock_and_idle_timeouts(url: str) -> None:
    async with open_database(url) as database:
        assert await _limits(database) == [["20s", "5s", "10s"]] * 2


async def test_transactions_work_through_a_transaction_pooler(
    url: str, postgres_folder: str
) -> None:
    async with running_pgbouncer(postgres_folder, url) as pooled, open_database(pooled) as database:
        for number in range(_UNITS // 40):
            async with asyncio.TaskGroup() as group:
                for each in range(8):  # five units each
                    group.create_task(answer_in(database, number * 8 + each))
        assert (await _limits(database))[0] == ["20s", "5s", "10s"]


async def _limits(database: Database) -> list[list[str]]:
    """Return the limits in both pools: for units of work, and for functions with a connection."""

    def unit() -> Unit[list[str]]:
        values = []
        for name in _LIMITS:
            values.append((yield Statement(f"SHOW {name}").query())[0][0])
        return values

    def read(connection: Connection) -> list[str]:
        return [connection.exec_driver_sql(f"SHOW {name}").scalar_one() for name in _LIMITS]

    return [await database.run(unit), await database.read(read)]


@contextlib.asynccontextmanager
async def running_pgbouncer(postgres_folder: str, url: str) -> AsyncIterator[str]:
    """Run PgBouncer with three connections to a database; yield the URL of PgBouncer."""
    program = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
    if program is None:
        pytest.skip("no pgbouncer on this machine")
    with tempfile.TemporaryDirectory(prefix="troupe-pgb-") as name:
        folder = Path(name)
        os.chmod(name, 0o777)  # noqa: S103 # the pooler makes its socket there as another user
        settings = ConfigParser(interpolation=None)
        settings.read(CHECKOUT / "deploy/pgbouncer.ini")
        settings["databases"] = {urlsplit(url).path[1:]: f"host={postgres_folder} user=postgres"}
        settings["pgbouncer"].update(
            {"listen_addr": "", "unix_socket_dir": name, "auth_type": "any"}
            | {"default_pool_size": "3"}
        )
        with (folder / "pgbouncer.ini").open("w") as file:
            settings.write(file)
        # It refuses to run as root, and only the server's own user may enter its folder.
        as_user = ("-u", Path(postgres_folder).owner()) if os.getuid() == 0 else ()  # noqa: ASYNC240
        process = await asyncio.create_subprocess_exec(
            *(program, "-q", *as_user, str(folder / "pgbouncer.ini"))
        )
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                while not (folder / ".s.PGSQL.6432").exists():
                    assert process.returncode is None
                    await asyncio.sleep(0.02)
            yield url.replace(postgres_folder, f"{folder}&port=6432&pgbouncer=true")
        finally:
            if process.returncode is None:
                process.terminate()
            await process.wait()


# --- limits and servers that stand still -------------------------------------------------------


@contextlib.asynccontextmanager
async def silent_server() -> AsyncIterator[str]:
    """Run a server that accepts connections and never responds."""
    writers: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        await reader.read()

    with tempfile.TemporaryDirectory(prefix="troupe-pg-") as folder:
        async with await asyncio.start_unix_server(serve, Path(folder) / ".s.PGSQL.5432"):
            yield folder
            for writer in writers:
                writer.close()
                with contextlib.suppress(ConnectionError):
                    await writer.wait_closed()


@contextlib.asynccontextmanager
async def connected(url: str) -> AsyncIterator[asyncpg.Connection]:
    """Open a separate connection, outside the process under test."""
    connection = await asyncpg.connect(to_dsn(parse_url(url)))
    try:
        yield connection
    finally:
        await connection.close()


async def fail(work: Awaitable[object], reason: str | None = None) -> None:
    with pytest.raises(StoreError, match=reason):
        await work


def running(sql: str) -> Unit[None]:
    yield Statement(sql).query()


@pytest.mark.service
async def test_connection_to_a_silent_server_times_out() -> None:
    async with silent_server() as folder:
        opening = open_database(f"postgresql+asyncpg://postgres@/t?host={folder}")
        await fail(opening.__aenter__(), "TROUPE_DATABASE_URL")


@pytest.mark.service
async def test_slow_statement_times_out(url: str) -> None:
    def sleep(connection: Connection) -> None:
        connection.exec_driver_sql(_SLEEP)

    async with open_database(url) as database, asyncio.TaskGroup() as group:
        for work in (
            *(database.run(lambda: running(_SLEEP)), database.read(sleep)),
            database.write(sleep),
        ):
            group.create_task(fail(work))


@pytest.mark.service
async def test_transaction_stops_waiting_for_a_lock_at_the_limit(url: str) -> None:
    async with open_database(url) as database, connected(url) as other:
        await answer_in(database, 1)
        async with other.transaction():
            await other.execute(_LOCK)
            await fail(database.run(lambda: running(_LOCK)), "lock timeout")


@pytest.mark.service
async def test_process_has_at_most_eight_connections_under_load(url: str) -> None:
    counts = [0]
    async with (
        open_database(url) as database,
        connected(url) as watcher,
        asyncio.TaskGroup() as group,
    ):
        works = [group.create_task(answer_in(database, number)) for number in range(100)]
        works += [
            group.create_task(database.run_readonly(lambda: running("SELECT pg_sleep(0.01)")))
            for _ in range(100)
        ]
        while not all(one.done() for one in works):
            counts.append(await watcher.fetchval(_COUNT_OTHERS))
    assert max(counts) == _MAX_CONNECTIONS


@pytest.mark.service
async def test_cancelled_statement_ends_early(url: str, postgres_folder: str) -> None:
    async with open_database(url) as database:
        store = SqlInbox(database, SystemClock())
        await store.receive([make_incoming()], {})
        with frozen_postgres(Path(postgres_folder)):
            waiting = [
                asyncio.create_task(store.receive([make_incoming()], {})),
                asyncio.create_task(database.ping()),
            ]
            await asyncio.wait(waiting, timeout=0.1)
            for task in waiting:
                task.cancel()
            done, _ = await asyncio.wait(waiting, timeout=COMMAND_TIMEOUT_SECONDS)
            assert done == set(waiting)
            assert all(task.cancelled() for task in waiting)
        await store.receive([make_incoming(key="5:2")], {})


@pytest.mark.service
async def test_database_closes_while_the_server_is_frozen(url: str, postgres_folder: str) -> None:
    async with (
        contextlib.AsyncExitStack() as stack,
        asyncio.timeout(COMMAND_TIMEOUT_SECONDS),
        open_database(url) as database,
    ):
        await database.ping()
        await SqlInbox(database, SystemClock()).receive([make_incoming()], {})
        stack.enter_context(frozen_postgres(Path(postgres_folder)))

"""Units of work over asyncpg: prepared statements, a bounded pool, time limits everywhere."""

import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar

import asyncpg
from typing_extensions import override

from bot.storage.encryption.codec import TextCodec
from bot.storage.engine.encoding import arguments, decoded
from bot.storage.engine.failures import to_store_error
from bot.storage.engine.statements import Query, Rows, StartUnit, Unit

T = TypeVar("T")
MAX_CONNECTIONS = 6
"""Of 8 in a process: two are SQLAlchemy's."""
CONNECT_SECONDS = 5.0
COMMAND_SECONDS = 20.0
_CANCEL_SECONDS = 2.0
"""How long a server may take to end a statement that nobody waits for any more."""
_CLOSE_SECONDS = 2.0
"""How long it may take to end a connection."""
_SERVER_LIMITS = {
    "statement_timeout": "20s",
    "lock_timeout": "5s",
    # a stopped process must not hold a row's lock for ever
    "idle_in_transaction_session_timeout": "10s",
}
_SET_LIMITS = "; ".join(f"SET LOCAL {name} = '{limit}'" for name, limit in _SERVER_LIMITS.items())

FAILURES = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)
"""The last one where the server ends a connection in the middle of a statement."""


class _Connection(asyncpg.Connection):  # type: ignore[misc]
    """Closes soon also where the server stands still: a process ends connections one by one."""

    @override
    async def close(self, *, timeout: float | None = None) -> None:
        with contextlib.suppress(TimeoutError):  # then it is aborted
            await super().close(timeout=timeout or _CLOSE_SECONDS)


def connect_options(
    *, behind_pgbouncer: bool, password: Callable[[], str] | None = None
) -> dict[str, Any]:
    """Return what asyncpg is told besides the address.

    A pooler in transaction mode refuses settings at connect, and would hand a prepared statement to
    another client. The password is asked for at each connect.
    """
    limits: dict[str, Any] = {
        "timeout": CONNECT_SECONDS,
        "command_timeout": COMMAND_SECONDS,
        "connection_class": _Connection,
        "password": password,
    }
    if behind_pgbouncer:
        return {**limits, "statement_cache_size": 0}
    return {**limits, "server_settings": {**_SERVER_LIMITS, "application_name": "troupe"}}


class AsyncpgPool:
    """Runs units in transactions of a small pool.

    Args:
        dsn: `postgresql://user@host1:5432,host2:5432/name?target_session_attrs=primary`.
        codec: encodes the texts of units; None: none is encrypted.
        behind_pgbouncer: the address is that of a pooler in transaction mode.
        password: returns the password for a new connection; None: it is in the address.
    """

    def __init__(
        self,
        dsn: str,
        codec: TextCodec | None = None,
        *,
        behind_pgbouncer: bool = False,
        password: Callable[[], str] | None = None,
    ) -> None:
        self._codec = codec or TextCodec()
        self._behind_pgbouncer = behind_pgbouncer
        self._pool = asyncpg.create_pool(
            dsn,
            min_size=0,
            max_size=MAX_CONNECTIONS,
            reset=_keep,
            **connect_options(behind_pgbouncer=behind_pgbouncer, password=password),
        )
        self._opened = False

    async def run(self, start: StartUnit[T]) -> T:
        """Run a unit in a transaction and commit it.

        Raises:
            StoreError: the server refused it; nothing of the unit was written.
            OSError: the server is away.
            TimeoutError: it took too long; whether it was committed is not known.
        """
        if not self._opened:
            await self._pool
            self._opened = True
        try:
            async with self._acquired() as connection:
                unit = start()
                try:
                    return await self._run(connection, unit, next(unit))
                except StopIteration as ended:
                    value: T = ended.value
                    return value
                except asyncpg.InternalClientError:
                    connection.terminate()  # asyncpg has lost track of what the server is doing
                    raise
                finally:
                    unit.close()
        except FAILURES as error:
            raise to_store_error(error) from None

    @contextlib.asynccontextmanager
    async def _acquired(self) -> AsyncIterator[Any]:
        """Lend a connection; it is closed where the server takes too long to cancel a statement.

        asyncpg alone would wait for that as long as for the statement: for a server that stands
        still, another 20 s.
        """
        connection = await self._pool.acquire()
        try:
            yield connection
        finally:
            with contextlib.suppress(TimeoutError):  # asyncpg has closed it
                await self._pool.release(connection, timeout=_CANCEL_SECONDS)

    async def _run(self, connection: Any, unit: Unit[T], query: Query) -> T:
        if query.is_whole_unit and not self._behind_pgbouncer:
            return await _finish(connection, unit, query, self._codec)
        async with connection.transaction():
            if self._behind_pgbouncer:
                await connection.execute(_SET_LIMITS)
            return await _finish(connection, unit, query, self._codec)

    async def close(self) -> None:
        if self._opened:
            await self._pool.close()


async def _keep(_connection: object) -> None:
    """Skip the round trip by which asyncpg resets a connection: units change nothing of it."""


async def _finish(connection: Any, unit: Unit[T], query: Query, codec: TextCodec) -> T:
    """Run a unit from its first query to its end."""
    try:
        while True:
            query = unit.send(await _rows_of(connection, query, codec))
    except StopIteration as ended:
        value: T = ended.value
        return value


async def _rows_of(connection: Any, query: Query, codec: TextCodec) -> Rows:
    sql = query.statement.compiled("postgresql")
    if query.many:
        rows = [arguments(sql, values, codec) for values in query.many]
        await connection.executemany(sql.text, rows)
        return ()
    found: Rows = await connection.fetch(sql.text, *arguments(sql, query.values, codec))
    return decoded(found, sql, codec)

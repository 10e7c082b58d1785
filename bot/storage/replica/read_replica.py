"""Read from a hot standby of PostgreSQL what may be a few seconds old, else from the primary."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from importlib import import_module  # noqa: TID251 # as in bot/storage/sql/database.py
from typing import Any, TypeVar

import structlog
from sqlalchemy import Connection, select, text
from sqlalchemy.exc import ArgumentError
from typing_extensions import override

from bot.errors import SettingsError, StoreError
from bot.ports import Clock
from bot.runtime.tasks import abandon, finish_within
from bot.storage.encryption.codec import TextEncryption
from bot.storage.engine.statements import DialectName, StartUnit
from bot.storage.replica.replay_lag import PRIMARY_POSITION, ReplayLag
from bot.storage.sql.bots import read_installation_id
from bot.storage.sql.connections import ConnectionPool, UnitOfWork
from bot.storage.sql.database import Database, parse_url
from bot.storage.sql.tables import first_bot
from bot.telemetry.metrics import READ_REPLICA_LAG, READ_REPLICA_UNUSED

T = TypeVar("T")
_log = structlog.get_logger(__name__)
_CHECK_EVERY_SECONDS = 1.0
_CHECK_SECONDS = 2.0
"""How long a server may take to answer a check."""
_PAGE_CONNECTIONS = 3
"""One more is for the check: long queries of pages must not keep it waiting."""
# After a failover the standby is the primary: then both addresses may lead to the same server.
_REPLAYED = text(
    "SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn()"
    " ELSE pg_current_wal_flush_lsn() END - '0/0'::pg_lsn"
)
_INSTALLATION = select(first_bot.c.account).where(first_bot.c.platform == "")


class ReadReplica(Database):
    """Reads from a standby while that is near enough, else from the primary; writes to the primary.

    Args:
        connections: to the standby.
        primary: the database.
        installation: its id, so that no other installation is shown.
        max_lag_seconds: how old what is read may be.
        clock: measures the age.
    """

    def __init__(
        self,
        connections: ConnectionPool,
        primary: Database,
        installation: str,
        max_lag_seconds: float,
        clock: Clock,
    ) -> None:
        super().__init__(connections, primary.codec)
        self._primary = primary
        self._installation = installation
        self._max_lag_seconds = max_lag_seconds
        self._clock = clock
        self._lag = ReplayLag()
        self._written_at = float("-inf")
        self._complete_at = float("-inf")
        self._page_connections = asyncio.Semaphore(_PAGE_CONNECTIONS)
        self._silence: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done while the standby does not answer."""
        self.problem: str | None = "it was not asked yet"
        """Why everything is read from the primary; None: it is not."""

    @property
    @override
    def dialect(self) -> DialectName:
        return self._primary.dialect

    @override
    async def run(self, start: StartUnit[T]) -> T:
        return await self._primary.run(start)

    @override
    async def write(self, unit: UnitOfWork[T]) -> T:
        return await self._primary.write(unit)

    @override
    async def load_data_keys(self, encryption: TextEncryption) -> None:
        await self._primary.load_data_keys(encryption)

    @override
    async def migrate(self) -> None:
        await self._primary.migrate()

    @override
    async def read(self, unit: UnitOfWork[T]) -> T:
        """Run a function that only reads; raises `StoreError` if the primary fails, too.

        What waits for a standby that stands still is read from the primary when a check has found
        that out; a long query on one that answers checks is waited for.
        """
        if self.problem is None and self._complete_at >= self._written_at:
            try:
                return await self._read_unless_silent(unit)
            except StoreError as error:  # also a data key that only the primary can look up
                _log.info("read_replica_failed", reason=str(error))
        return await self._primary.read(unit)

    async def _read_unless_silent(self, unit: UnitOfWork[T]) -> T:
        reading = asyncio.ensure_future(self._read_standby(unit))
        try:
            either: set[asyncio.Future[Any]] = {reading, self._silence}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if reading.done():
                return reading.result()
        finally:
            abandon(reading)
        raise StoreError("it does not answer")

    async def _read_standby(self, unit: UnitOfWork[T]) -> T:
        async with self._page_connections:
            return await super().read(unit)

    def note_change(self) -> None:
        """Read from the primary until the standby has what was written up to now."""
        self._written_at = self._clock.monotonic()

    async def watch(self) -> None:
        """Measure every second how far the standby is behind, until cancelled."""
        while True:
            await self._clock.sleep(_CHECK_EVERY_SECONDS)
            await self.check()

    async def check(self) -> None:
        """Measure once, and decide where to read; a change of that is logged."""
        with contextlib.suppress(StoreError, TimeoutError):
            # While the primary is away, nothing is written that could be missing here.
            started = self._clock.monotonic()
            position = await finish_within(_CHECK_SECONDS, self._primary.read(_read_position))
            self._lag.note_primary(started, position)
        try:
            replayed, installation = await finish_within(
                _CHECK_SECONDS, super().read(_read_replayed)
            )
        except (StoreError, TimeoutError) as error:
            self._conclude("it does not answer", str(error))
            if not self._silence.done():
                self._silence.set_result(None)
            return
        if self._silence.done():
            self._silence = asyncio.get_running_loop().create_future()
        if installation != self._installation:
            self._conclude("it is no copy of the database in TROUPE_DATABASE_URL")
            return
        self._conclude(self._judge(replayed))

    def _judge(self, replayed: int) -> str | None:
        """Return why a standby that has replayed so much is not read; None: it is near enough."""
        now = self._clock.monotonic()
        lag = self._lag.measure(now, replayed)
        if lag is None:
            return "the primary does not answer"
        READ_REPLICA_LAG.set(lag.at_least)
        self._complete_at = now - lag.at_most
        if lag.at_most == float("inf"):
            return "it is catching up"
        if lag.at_least > self._max_lag_seconds:
            return f"it is more than {self._max_lag_seconds:g} s behind"
        return None

    def _conclude(self, problem: str | None, reason: str = "") -> None:
        if problem != self.problem:
            if problem is None:
                _log.info("read_replica_used")
            else:
                _log.warning("read_replica_not_used", problem=problem, reason=reason)
        self.problem = problem
        READ_REPLICA_UNUSED.set(problem is not None)


def _read_position(connection: Connection) -> int:
    return int(connection.execute(PRIMARY_POSITION).scalar_one())


def _read_replayed(connection: Connection) -> tuple[int, str | None]:
    replayed = connection.execute(_REPLAYED).scalar_one()
    installation = connection.execute(_INSTALLATION).scalar_one_or_none()
    return int(replayed or 0), installation


@contextlib.asynccontextmanager
async def open_read_replica(
    url: str, primary: Database, max_lag_seconds: float, clock: Clock
) -> AsyncIterator[ReadReplica]:
    """Open the connections to a standby; that it is away is no error.

    Raises:
        SettingsError: the URL is not one of a PostgreSQL.
        StoreError: the primary failed.
    """
    try:
        parsed = parse_url(url)
    except (ArgumentError, ValueError):
        parsed = None
    if parsed is None or parsed.drivername != "postgresql+asyncpg":
        raise SettingsError(
            "TROUPE_DATABASE_READ_URL is not the address of a PostgreSQL; it looks like "
            "postgresql+asyncpg://user@host/name"
        )
    pool: ConnectionPool = import_module("bot.storage.sql.postgres").PostgresPool(
        parsed, primary.codec, core_connections=_PAGE_CONNECTIONS + 1
    )
    try:
        installation = await read_installation_id(primary)
        yield ReadReplica(pool, primary, installation, max_lag_seconds, clock)
    finally:
        await pool.close()

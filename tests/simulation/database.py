"""A database server over a simulated network: SQLite in memory, one unit of work at a time.

A request that has been sent is executed even if its process dies meanwhile. The server's clock
decides when leases expire, as on PostgreSQL.
"""

import asyncio
import random
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from sqlalchemy import StaticPool, create_engine
from typing_extensions import override

from bot.storage.codec import TextCodec
from bot.storage.column_types import attach_codec
from bot.storage.database import create_tables
from bot.storage.sqlite import ConnectionPool, UnitOfWork, run_unit
from bot.storage.statements import DialectName, Query, StartUnit
from tests.simulation.event_loop import SimulatedLoop, current_process, settle
from tests.support.units import through

T = TypeVar("T")
_EPOCH = 1_700_000_000.0


class DatabaseServer:
    """Runs units of work; some of its responses are late or lost.

    If it `trusts_clients`, the clients' clocks decide when leases expire.
    """

    def __init__(
        self, loop: SimulatedLoop, rng: random.Random, *, trusts_clients: bool = False
    ) -> None:
        self.fault_share = 0.0
        """The share of units whose response is lost before or after the commit."""
        self._loop = loop
        self._rng = rng
        self._trusts_clients = trusts_clients
        self._connection = sqlite3.connect(":memory:", isolation_level=None)
        self._connection.execute("PRAGMA foreign_keys=ON")
        self._engine = create_engine(
            "sqlite://",
            creator=lambda: self._connection,
            poolclass=StaticPool,
            pool_reset_on_return=None,
            paramstyle="named",
        )
        for name in ("do_begin", "do_commit", "do_rollback"):
            setattr(self._engine.dialect, name, lambda _connection: None)
        self._engine.dialect.do_execute = self._execute  # type: ignore[method-assign,assignment] # its clock
        attach_codec(self._engine, TextCodec())
        self._in_transaction(lambda: self._with_core(create_tables))

    def now(self) -> float:
        """Return the server's time in Unix seconds."""
        return _EPOCH + self._loop.time()

    async def run(self, start: StartUnit[T]) -> T:
        return await self._ask(
            lambda: run_unit(
                self._connection, lambda: through(self._by_own_clock, start()), TextCodec()
            )
        )

    async def commit(self, unit: UnitOfWork[T]) -> T:
        return await self._ask(lambda: self._with_core(unit))

    async def _ask(self, work: Callable[[], T]) -> T:
        """Run a function in a transaction on the server; request and response take time."""
        client, done = current_process(), self._loop.create_future()
        fate = self._rng.random()
        is_refused = fate < self.fault_share / 2
        is_lost = not is_refused and fate < self.fault_share
        way_back = self._delay()

        def serve() -> None:
            value: T | None = None
            error: Exception | None = None
            try:
                if is_refused:
                    raise sqlite3.OperationalError("the connection was cut")  # noqa: TRY301
                value = self._in_transaction(work)
            except Exception as raised:  # noqa: BLE001 # it is the client's
                error = raised
            if is_lost:
                error = sqlite3.OperationalError("the answer was lost")
            self._loop.within(client, way_back, lambda: settle(done, error, value))

        self._loop.outside(self._delay(), serve)
        result: T = await done
        return result

    def _delay(self) -> float:
        return (
            self._rng.uniform(0.1, 2) if self._rng.random() < 0.01 else self._rng.uniform(0, 0.01)
        )

    def _in_transaction(self, work: Callable[[], T]) -> T:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            value = work()
        except BaseException:
            self._connection.rollback()
            raise
        self._connection.commit()
        return value

    def _with_core(self, unit: UnitOfWork[T]) -> T:
        with self._engine.connect() as connection:
            return unit(connection)

    def _by_own_clock(self, query: Query) -> Query:
        """Set the `now` of a query to the server's time."""
        if self._trusts_clients:
            return query
        value_rows = tuple(
            {**values, "now": self.now()} if "now" in values else values
            for values in query.value_rows
        )
        if "now" not in query.values:
            return replace(query, value_rows=value_rows)
        return replace(query, value_rows=value_rows, values={**query.values, "now": self.now()})

    def _execute(self, cursor: Any, statement: str, values: Any, _context: Any = None) -> None:
        if isinstance(values, dict) and "now" in values and not self._trusts_clients:
            values = {**values, "now": self.now()}
        cursor.execute(statement, values)


class SimulatedConnections(ConnectionPool):
    """One process's connections to the server."""

    dialect: DialectName = "sqlite"

    def __init__(self, server: DatabaseServer) -> None:
        self._server = server

    @override
    async def run(self, start: StartUnit[T]) -> T:
        return await self._server.run(start)

    @override
    async def read(self, unit: UnitOfWork[T]) -> T:
        return await self._server.commit(unit)

    @override
    async def commit(self, unit: UnitOfWork[T]) -> T:
        return await self._server.commit(unit)

    @override
    async def close(self) -> None:
        await asyncio.sleep(0)

"""Measure what it costs to delete expired rows: seconds, and CPU of the process and the server.

    python -m tests.bench.retention --rows 100000
    python -m tests.bench.retention --database sqlite

So many answered messages, sent rows of the outbox and receipts are made, all of them expired, and
deleted as the service does every hour.
"""

import argparse
import asyncio
import contextlib
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
from sqlalchemy import Connection, insert

from bot.runtime.clock import SystemClock
from bot.storage.database import Database, open_database
from bot.storage.retention import delete_expired
from bot.storage.tables import inbox, outbox, receipt
from tests.postgres import create_postgres_database, running_postgres

_DAY = 86_400.0
_AT_ONCE = 5000
_RECEIPT = b"x" * 1500  # about what the compressed receipt of a short prompt takes


def _make_rows(connection: Connection, numbers: range, now: float) -> int:
    """Insert expired rows: a message of 15 days, its outbox row, a receipt of 401 days."""
    keys = {number: f"telegram:{number % 1000}" for number in numbers}
    common = {"platform": "telegram", "bot_id": ""}
    messages = [
        {**common, "external_key": f"m{n}", "conversation": key, "kind": "said"}
        | {"received_at": now - 15 * _DAY, "state": "done"}
        for n, key in keys.items()
    ]
    sent = [
        {**common, "turn": f"telegram:m{n}", "part": 0, "op": "send", "chat": str(n % 1000)}
        | {"lane": key, "text": "", "state": "sent", "external_id": str(n), "attempts": 1}
        | {"started_at": now - 15 * _DAY}
        for n, key in keys.items()
    ]
    receipts = [
        {"conversation": key, "turn": f"telegram:m{n}", "at": now - 401 * _DAY}
        | {"content": _RECEIPT}
        for n, key in keys.items()
    ]
    for table, rows in ((inbox, messages), (outbox, sent), (receipt, receipts)):
        connection.execute(insert(table), rows)
    return len(numbers)


def _cpu_of_server(data: Path | None) -> float:
    """Return the CPU seconds of a server and its connections; 0 without one."""
    if data is None:
        return 0.0
    server = psutil.Process(int((data / "postmaster.pid").read_text().split()[0]))
    times = [one.cpu_times() for one in (server, *server.children())]
    return float(sum(one.user + one.system for one in times))


async def measure(url: str, rows: int, data: Path | None) -> None:
    """Fill a database, delete everything, and print what that took."""
    clock, own = SystemClock(), psutil.Process()
    async with open_database(url) as database:
        await _fill(database, rows, clock.now())
        before, of_server, began = own.cpu_times(), _cpu_of_server(data), time.monotonic()
        deleted = await delete_expired(database, clock, receipt_days=14)
        seconds, after = time.monotonic() - began, own.cpu_times()
        cpu = after.user + after.system - before.user - before.system
        served = _cpu_of_server(data) - of_server
    sys.stdout.write(
        f"{deleted} rows in {seconds:.1f} s ({deleted / seconds:.0f} a second);"
        f" CPU for 1,000 rows: {1e6 * cpu / deleted:.1f} ms here,"
        f" {1e6 * served / deleted:.1f} ms in the server\n"
    )


async def _fill(database: Database, rows: int, now: float) -> None:
    for start in range(0, rows, _AT_ONCE):
        numbers = range(start, min(rows, start + _AT_ONCE))
        await database.write(lambda c, numbers=numbers: _make_rows(c, numbers, now))  # type: ignore[misc]


@contextlib.asynccontextmanager
async def _database(kind: str) -> AsyncIterator[tuple[str, Path | None]]:
    if kind == "sqlite":
        with tempfile.TemporaryDirectory() as folder:
            yield f"sqlite:///{Path(folder) / 'troupe.db'}", None
        return
    with running_postgres() as socket:
        yield await create_postgres_database(socket), Path(socket)


async def _run(kind: str, rows: int) -> None:
    async with _database(kind) as (url, data):
        await measure(url, rows, data)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--database", choices=("postgresql", "sqlite"), default="postgresql")
    parser.add_argument("--rows", type=int, default=100_000)
    given = parser.parse_args()
    asyncio.run(_run(given.database, given.rows))


if __name__ == "__main__":
    main()

"""Measure workers while thousands of answers are streamed: the event loop, CPU, and SQL.

    python -m tests.bench.roles.streams --turns 2000 --workers 4

Half of the chats are private, half are groups; all on Telegram, at the rates that it allows a bot,
so that answers are shown while they grow as often as one bot may. Counted is a window in which all
of them are being streamed. `late` is by the clock, and includes waiting for a core on a busy
machine; `CPU at once` is how long the loop computed without looking at its timers (2 ms too long at
most), which is the share that is ours. Statements are counted by pg_stat_statements.
"""

import argparse
import asyncio
import json
import re
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import asyncpg

from tests.bench.roles.installation import (
    Installation,
    cpu_seconds,
    running_installation,
    server_cpu_seconds,
)
from tests.bench.roles.measured_loop import TIMER_SECONDS
from tests.bench.roles.scaling import AnswerTimes
from tests.bench.roles.sleeping_model import AnswerPlan
from tests.support.service_process import ServiceProcess
from tests.waiting import wait_until

_LAG_FILE = "loop.jsonl"
_PATIENCE_SECONDS = 600.0
_SETTLE_SECONDS = 5.0
_FUNCTION_CALL = re.compile(r"_[0-9a-f]{8,}\(")


class Statements:
    """What the database's server was asked since the last look."""

    def __init__(self, connection: asyncpg.Connection) -> None:
        self._connection = connection

    async def take(self) -> Counter[str]:
        """Return how often each statement was executed, and count anew."""
        rows = await self._connection.fetch(
            "SELECT query, sum(calls)::bigint AS calls FROM pg_stat_statements"
            " JOIN pg_database ON oid = dbid WHERE datname = current_database()"
            " AND query !~ 'pg_stat_statements' GROUP BY query"
        )
        await self._connection.execute("SELECT pg_stat_statements_reset()")
        return Counter({" ".join(row["query"].split()): row["calls"] for row in rows})


def is_read(query: str) -> bool:
    """Return whether a statement only reads: no function of the service, whose name has a hash."""
    return query.startswith(("SELECT", "WITH")) and not _FUNCTION_CALL.search(query)


def report_statements(name: str, counts: Mapping[str, int], seconds: float) -> None:
    """Print how many there were a second, and which reads."""
    reads = Counter({query: calls for query, calls in counts.items() if is_read(query)})
    print(  # noqa: T201
        f"{name}: {reads.total() / seconds:.1f} SQL reads a second,"
        f" {(sum(counts.values()) - reads.total()) / seconds:.1f} other statements a second"
    )
    for query, calls in Counter(counts).most_common(12):
        kind = "read " if is_read(query) else "other"
        print(f"    {calls / seconds:6.2f} {kind} {query[:150]}")  # noqa: T201


def loop_times(service: ServiceProcess, began: float) -> Iterator[tuple[float, float]]:
    """Yield how late timers since a moment were, and the CPU time meanwhile, in seconds."""
    for line in (service.folder / _LAG_FILE).read_text().splitlines():
        measured = json.loads(line)
        if measured["at"] >= began:
            yield from zip(measured["late"], measured["cpu"], strict=True)


def report_loops(services: Sequence[ServiceProcess], began: float) -> None:
    """Print percentiles of each event loop since a moment."""
    for service in services:
        times = list(loop_times(service, began))
        late, cpu = ([1000 * one[index] for one in times] for index in (0, 1))
        print(  # noqa: T201
            f"{service.folder.name}: late p50 {_percentile(late, 50):.1f}"
            f" p99 {_percentile(late, 99):.1f} most {max(late):.1f} ms;"
            f" CPU at once p99 {_percentile(cpu, 99):.1f} most {max(cpu):.1f} ms"
            f" ({len(times)} timers of {1000 * TIMER_SECONDS:.0f} ms)"
        )


def _percentile(values: Sequence[float], percent: int) -> float:
    return statistics.quantiles(values, n=100)[percent - 1]


async def measure(options: argparse.Namespace) -> None:
    """Start everything, stream, and print the figures of the window."""
    pieces = int(options.stream_seconds / options.seconds_between)
    plan = AnswerPlan(pieces, options.seconds_between)
    async with running_installation(plan, streams=True, counts_statements=True) as installation:
        connection = await asyncpg.connect(installation.dsn)
        try:
            await connection.execute("CREATE EXTENSION pg_stat_statements")
            await _measure(installation, Statements(connection), options)
        finally:
            await connection.close()


async def _measure(
    installation: Installation, statements: Statements, options: argparse.Namespace
) -> None:
    measured = (sys.executable, "-m", "tests.bench.roles.measured_loop", f"{{}}/{_LAG_FILE}")
    paced = {"TROUPE_DELIVERY__PACING": "strict"}
    async with (
        installation.running("gateway"),
        installation.running("sender", settings=paced),
        installation.running("worker", options.workers, measured, paced) as workers,
    ):
        await asyncio.sleep(_SETTLE_SECONDS)
        await statements.take()
        await asyncio.sleep(options.seconds)
        report_statements("idle", await statements.take(), options.seconds)

        platforms = installation.platforms
        kinds = (platforms.telegram_dm, platforms.telegram_group)
        chats = [kinds[number % 2]() for number in range(options.turns)]
        times = AnswerTimes(installation)
        began = time.monotonic()
        for chat in chats:
            chat.ask("a000")
        async with asyncio.timeout(options.stream_seconds):
            while await installation.model.count_open() < options.turns:  # noqa: ASYNC110
                await asyncio.sleep(0.5)
        taken = time.monotonic() - began
        print(f"all {options.turns} turns were streaming after {taken:.0f} s")  # noqa: T201
        report_statements("starting", await statements.take(), taken)
        await asyncio.sleep(_SETTLE_SECONDS)

        await statements.take()
        calls = len(platforms.telegram.log)
        began, used = time.monotonic(), cpu_seconds(workers)
        served = server_cpu_seconds(installation.postgres)
        await asyncio.sleep(options.seconds)
        seconds = time.monotonic() - began
        streaming = await installation.model.count_open()
        assert streaming == options.turns, f"only {streaming} turns were streaming to the end"
        report_statements("streaming", await statements.take(), seconds)
        report_loops(workers, began)
        print(  # noqa: T201
            f"CPU of a worker {100 * (cpu_seconds(workers) - used) / seconds / len(workers):.0f} %"
            f" of a core, of the database's server"
            f" {100 * (server_cpu_seconds(installation.postgres) - served) / seconds:.0f} %;"
            f" {options.turns / options.seconds_between:.0f} pieces of text a second"
        )
        made = Counter(call["method"] for call in platforms.telegram.log[calls:])
        print(f"calls of Telegram meanwhile: {dict(made)}")  # noqa: T201
        await wait_until(lambda: times.count() >= options.turns, _PATIENCE_SECONDS)
        print(f"all {options.turns} answers were sent after {time.monotonic() - began:.0f} s")  # noqa: T201


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=2000)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=30.0, help="of each window")
    parser.add_argument("--stream-seconds", type=float, default=150.0, help="of an answer")
    parser.add_argument("--seconds-between", type=float, default=0.4, help="pieces of an answer")
    asyncio.run(measure(parser.parse_args()))


if __name__ == "__main__":
    main()

"""Measure how soon a stop and a changed setting reach another process, over PostgreSQL and Valkey.

    python -m tests.bench.signals --rounds 200

One process announces a /stop, or makes a setting (a preset is one); the other one has an answer in
progress, or reads the setting each millisecond as a message would. Times are from the first
process's call to the moment at which the second one acts, by the clock that both have in common.
With `--frozen` the server of signals stands still: then the rows count, which are polled.
"""

import argparse
import asyncio
import contextlib
import os
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import uvloop
from redis.asyncio import Redis

from bot.chat.incoming import Request, Said
from bot.chat.session import Claim, InboxMessage
from bot.runtime.clock import SystemClock
from bot.runtime.tasks import cancel_and_wait
from bot.service.resources import make_chat_settings
from bot.storage.database import open_database
from bot.storage.inbox import SqlInbox
from bot.storage.redis_signals import RedisSignals, open_signals
from bot.turn.signals import ArrivalSignals, MissedSignals, StopRequests
from tests.postgres import create_postgres_database, running_postgres
from tests.samples import make_incoming
from tests.valkey import run_valkey

_SCOPE = "telegram:5"
_CLAIM = Claim(_SCOPE, 1, "bench")
_POLL_SECONDS = 0.001
_GOAL_SECONDS = 0.3


@dataclass(frozen=True)
class Addresses:
    database: str
    redis: str


async def is_no_admin(_: Request) -> bool | None:
    return False


def question(number: int) -> Said:
    return make_incoming("hello", key=f"5:{number * 2}")


def stop(number: int) -> Said:
    return make_incoming("/stop", key=f"5:{number * 2 + 1}")


@contextlib.asynccontextmanager
async def connected_signals(url: str) -> AsyncIterator[RedisSignals]:
    async with open_signals(url) as signals:
        async with asyncio.timeout(20):
            while not signals.is_connected:  # noqa: ASYNC110 # nothing would set an event
                await asyncio.sleep(0.01)
        yield signals


async def listen(addresses: Addresses, rounds: int) -> None:
    """Print the moment at which this process acts on each stop and each setting."""
    async with (
        open_database(addresses.database) as database,
        connected_signals(addresses.redis) as signals,
    ):
        stops = StopRequests(signals, is_no_admin)
        clock = SystemClock()
        missed = MissedSignals(SqlInbox(database, clock), stops, ArrivalSignals(signals), clock)
        settings = make_chat_settings(database, signals, has_remote_signals=True)
        polling = asyncio.create_task(missed.run())
        for number in range(rounds):
            asked = question(number)
            async with stops.answering(_CLAIM, InboxMessage(0, asked, 0), asked) as flag:
                print("ready", flush=True)  # noqa: T201 # the protocol of this bench
                while not flag.requested:  # noqa: ASYNC110 # as a turn would look at it
                    await asyncio.sleep(_POLL_SECONDS)
            print(time.monotonic(), flush=True)  # noqa: T201
            print("ready", flush=True)  # noqa: T201
            while True:
                setting = await settings.resolve([_SCOPE], "preset")
                if setting is not None and setting.value == f"v{number}":
                    break
                await asyncio.sleep(_POLL_SECONDS)
            print(time.monotonic(), flush=True)  # noqa: T201
        await cancel_and_wait([polling])


async def announce(
    addresses: Addresses, rounds: int, freeze: Callable[[], None]
) -> dict[str, list[float]]:
    """Stop and set in turn; return the seconds that each took to reach the other process.

    `freeze` is called once both processes are connected.
    """
    found: dict[str, list[float]] = {"stop": [], "setting": []}
    async with (
        open_database(addresses.database) as database,
        connected_signals(addresses.redis) as signals,
    ):
        inbox, stops = SqlInbox(database, SystemClock()), StopRequests(signals, is_no_admin)
        settings = make_chat_settings(database, signals, has_remote_signals=True)
        command = [sys.executable, "-m", "tests.bench.signals", "--listen"]
        given = [addresses.database, addresses.redis, "--rounds", str(rounds)]
        child = await asyncio.create_subprocess_exec(
            *command, *given, stdout=asyncio.subprocess.PIPE
        )
        assert child.stdout is not None
        for number in range(rounds):
            await child.stdout.readline()
            if number == 0:
                freeze()
            began = time.monotonic()
            await inbox.receive([stop(number)], {})
            stops.announce([stop(number)])
            found["stop"].append(float(await child.stdout.readline()) - began)
            await child.stdout.readline()
            began = time.monotonic()
            await settings.set(_SCOPE, "preset", f"v{number}", "telegram:1")
            found["setting"].append(float(await child.stdout.readline()) - began)
        await child.wait()
    return found


async def server_process(url: str) -> int:
    async with Redis.from_url(url) as client:
        return int((await client.info("server"))["process_id"])


def percentile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


async def measure(rounds: int, *, frozen: bool) -> None:
    with running_postgres() as folder, tempfile.TemporaryDirectory() as data:
        url = await create_postgres_database(folder)
        async with run_valkey(Path(data)) as redis:
            server = await server_process(redis)

            def freeze() -> None:
                if frozen:
                    os.kill(server, signal.SIGSTOP)

            try:
                found = await announce(Addresses(url, redis), rounds, freeze)
            finally:
                os.kill(server, signal.SIGCONT)
    for name, seconds in found.items():
        p50, p99 = (percentile(seconds, share) * 1000 for share in (0.5, 0.99))
        late = sum(one > _GOAL_SECONDS for one in seconds)
        print(  # noqa: T201
            f"{name}: p50 {p50:.1f} ms, p99 {p99:.1f} ms, longest {max(seconds) * 1000:.1f} ms,"
            f" {late} of {len(seconds)} later than 300 ms"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--frozen", action="store_true")
    parser.add_argument("--listen", nargs=2, metavar=("DATABASE", "REDIS"))
    given = parser.parse_args()
    if given.listen:
        uvloop.run(listen(Addresses(*given.listen), given.rounds))
    else:
        uvloop.run(measure(given.rounds, frozen=given.frozen))


if __name__ == "__main__":
    main()

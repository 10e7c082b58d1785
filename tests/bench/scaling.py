"""Compare the throughput of four workers with that of one; the model only sleeps.

    python -m tests.bench.scaling --rounds 2
    python -m tests.bench.scaling --seconds 0 --database postgresql+asyncpg://user:password@host/empty

Workers answer a bounded number of conversations at once (`TROUPE_LIMITS__CONVERSATIONS_AT_ONCE`),
so that the limit is the worker and not the machine. More questions are queued than the workers can
answer at once. The first and last answers are not counted, because some workers may be idle then.
The gateway and the sender are separate processes; platforms and model are on loopback. By default
a PostgreSQL is started without fsync. A database given by `--database` must be empty; its CPU time
is not measured.
"""

import argparse
import asyncio
import contextlib
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path

import psutil

from tests.postgres import create_postgres_database, running_postgres
from tests.support.chats import Platforms, running_platforms
from tests.support.child_launcher import running_launcher
from tests.support.model_server import Model
from tests.support.service_process import Service, preset_json
from tests.support.shapes import Installer
from tests.waiting import wait_until

_PATIENCE_SECONDS = 600.0
_WAVES = 5
"""Questions per conversation slot of a worker; the first and the last are not counted."""


def cpu_seconds(pids: Sequence[int]) -> float:
    trees = [psutil.Process(pid) for pid in pids]
    every = [one for tree in trees for one in (tree, *tree.children(recursive=True))]
    return float(sum(times.user + times.system for times in (one.cpu_times() for one in every)))


async def measure_rate(
    platforms: Platforms,
    processes: dict[str, list[int]],
    workers: Sequence[Service],
    at_once: int,
) -> float:
    """Let the workers answer; print the CPU costs, and return the answers per second."""
    for worker in workers:
        await worker.start_and_wait()
    processes = {"workers": [worker.process.pid for worker in workers], **processes}
    began = {role: cpu_seconds(pids) for role, pids in processes.items()}
    wave, seen = len(workers) * at_once, len(platforms.telegram.log)
    asked = [platforms.telegram_dm().ask() for _ in range(wave * _WAVES)]
    answers = {question.answer for question in asked}

    def sent() -> list[float]:
        calls = platforms.telegram.log[seen:]
        return [call["t"] for call in calls if call["params"].get("text") in answers]

    await wait_until(lambda: len(sent()) >= len(asked), _PATIENCE_SECONDS)
    costs = {role: cpu_seconds(pids) - began[role] for role, pids in processes.items()}
    for worker in workers:
        assert await worker.stop() == 0, worker.log_tail()
    moments = sorted(sent())
    rate = (len(moments) - 2 * wave) / (moments[-wave - 1] - moments[wave - 1])
    shares = ", ".join(f"{role} {1000 * cpu / len(asked):.1f} ms" for role, cpu in costs.items())
    print(  # noqa: T201
        f"{len(workers)} workers: {rate:6.2f} answers a second; CPU a message: {shares}", flush=True
    )
    return rate


async def measure(options: argparse.Namespace) -> None:
    """Measure one worker and several workers in turn; print the rates and their ratio."""
    rates: dict[int, list[float]] = {}
    async with contextlib.AsyncExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        url, database = options.database, list[int]()
        if url is None:
            postgres = stack.enter_context(running_postgres())
            url = await create_postgres_database(postgres)
            database = [int((Path(postgres) / "postmaster.pid").read_text().split()[0])]
        platforms = await stack.enter_async_context(running_platforms())
        model = await stack.enter_async_context(Model())
        model.chunk_count, model.chunk_delays = 1, (options.seconds,)
        launcher = await stack.enter_async_context(running_launcher())
        installed = Installer(platforms, model, launcher, Path(folder)).processes(
            *("gateway", "sender", *(f"worker-{number}" for number in range(options.workers))),
            database_url=url,
            with_valkey=True,
        )
        gateway, sender, *workers = services = await stack.enter_async_context(installed)
        for service in services:
            service.options = ("--role", service.folder.name.partition("-")[0])
            service.settings["TROUPE_LIMITS__CONVERSATIONS_AT_ONCE"] = str(options.at_once)
            del service.settings["TROUPE_DISCORD__TOKEN"]
            service.write_tester(preset_json("tester", busy="queue", stream=False))
        for service in (gateway, sender):
            await service.start_and_wait()
        processes = {
            "gateway": [gateway.process.pid],
            "sender": [sender.process.pid],
            "database": database,
        }
        for _ in range(options.rounds):
            for count in (1, options.workers):
                rate = await measure_rate(platforms, processes, workers[:count], options.at_once)
                rates.setdefault(count, []).append(rate)
    one, several = (statistics.mean(rates[count]) for count in (1, options.workers))
    print(f"{options.workers} workers answer {several / one:.2f} times as much as one")  # noqa: T201


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--at-once", type=int, default=64, help="conversations of a worker")
    parser.add_argument("--seconds", type=float, default=10.0, help="that the model sleeps")
    parser.add_argument("--database", help="an empty one, instead of a new one")
    asyncio.run(measure(parser.parse_args()))


if __name__ == "__main__":
    main()

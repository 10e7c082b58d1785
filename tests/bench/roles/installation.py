"""An installation of several processes: real roles on PostgreSQL, Valkey and loopback platforms."""

import asyncio
import json
import os
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from sqlalchemy import make_url

from bot.storage.postgres import to_dsn
from tests.bench.roles.sleeping_model import AnswerPlan, SleepingModel, running_sleeping_model
from tests.postgres import create_postgres_database, postgres_program, running_postgres
from tests.support.chats import LoopbackPlatforms, running_platforms
from tests.support.service_process import ServiceProcess, each_answered
from tests.valkey import run_valkey

_STOP_SECONDS = 120.0


@dataclass
class Installation:
    """What its processes share, and how they are started."""

    platforms: LoopbackPlatforms
    model: SleepingModel
    postgres: str
    """The folder of the database's server."""
    folder: Path
    settings: dict[str, str]
    """Of every process, beside its own."""
    unused: frozenset[str]
    """Settings of which every process has none."""
    streams: bool
    """Whether answers are shown while they grow."""
    count: int = field(default=0, init=False)
    """How many processes were started."""

    @property
    def dsn(self) -> str:
        """The database, as libpq reads it."""
        return to_dsn(make_url(self.settings["TROUPE_DATABASE_URL"]))

    @asynccontextmanager
    async def running(
        self,
        role: str,
        count: int = 1,
        under: Sequence[str] = (),
        settings: Mapping[str, str] | None = None,
    ) -> AsyncIterator[Sequence[ServiceProcess]]:
        """Run processes of a role within the block; they are ready.

        Args:
            role: of each.
            count: how many.
            under: a command that runs commands; `{}` in it stands for the process's folder.
            settings: added to the environment of each.
        """
        async with AsyncExitStack() as stack:
            services = []
            for _ in range(count):
                self.count += 1
                # It reads nothing of the model but its address.
                service = ServiceProcess(
                    self.folder / f"{role}-{self.count}",
                    self.platforms,
                    self.model,  # type: ignore[arg-type]
                )
                service.settings |= self.settings | dict(settings or {})
                service.options = ("--role", role)
                for name in self.unused:
                    del service.settings[name]
                preset = json.loads(each_answered("tester", "You are a tester."))
                (service.presets / "tester.json").write_text(
                    json.dumps({**preset, "stream": self.streams})
                )
                folder = str(service.folder)
                await service.start(under=[word.format(folder) for word in under])
                stack.push_async_callback(service.kill)
                services.append(service)
            for service in services:
                await service.wait_until_ready()
            yield services
            for service in services:
                assert await service.stop() == 0, service.log_tail()


@asynccontextmanager
async def running_installation(
    plan: AnswerPlan,
    *,
    streams: bool = False,
    only_telegram: bool = True,
    counts_statements: bool = False,
) -> AsyncIterator[Installation]:
    """Run what the processes of an installation share within the block.

    With `counts_statements` the database's server has pg_stat_statements loaded.
    """
    with tempfile.TemporaryDirectory() as name, running_postgres() as postgres:
        if counts_statements:
            await _load_into_server(postgres, "pg_stat_statements")
        async with (
            running_platforms() as platforms,
            running_sleeping_model(plan) as model,
            run_valkey(Path(name)) as valkey,
        ):
            shared = {
                "TROUPE_DATABASE_URL": await create_postgres_database(postgres),
                "TROUPE_REDIS_URL": valkey,
            }
            unused = frozenset({"TROUPE_DISCORD__TOKEN"} if only_telegram else ())
            yield Installation(platforms, model, postgres, Path(name), shared, unused, streams)


async def _load_into_server(folder: str, library: str) -> None:
    """Restart a database's server with a library."""
    with (Path(folder) / "postgresql.auto.conf").open("a") as settings:
        settings.write(f"shared_preload_libraries = '{library}'\n")
    owner = Path(folder).owner() if os.getuid() == 0 else None  # noqa: ASYNC240
    process = await asyncio.create_subprocess_exec(
        *(postgres_program("pg_ctl"), "-D", folder, "-l", os.devnull, "-w", "restart"),
        user=owner,
        stdout=asyncio.subprocess.DEVNULL,
    )
    assert await process.wait() == 0


def cpu_seconds(services: Sequence[ServiceProcess]) -> float:
    """Return the CPU time of processes and of what they started."""
    return sum(_tree_cpu(service.process.pid) for service in services)


def server_cpu_seconds(folder: str) -> float:
    """Return the CPU time of the database's server and of the connections that are open."""
    return _tree_cpu(int((Path(folder) / "postmaster.pid").read_text().split()[0]))


def _tree_cpu(pid: int) -> float:
    process = psutil.Process(pid)
    times = [one.cpu_times() for one in (process, *process.children(recursive=True))]
    return float(sum(one.user + one.system for one in times))

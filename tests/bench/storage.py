"""Measure what an answer costs: CPU of the workers and of the database server, answers a second.

    python -m tests.bench.storage --processes 4 --conversations 1000
    python -m tests.bench.storage --database sqlite --processes 1
    python -m tests.bench.storage --database postgresql+asyncpg://user:password@host/empty

Each worker receives messages of a bot of its own and answers them with the whole service (routing,
prompt, model's stream, receipt, sender), on a platform and with a model that take no time. The
PostgreSQL that it starts does not wait for its disk; one that is named must be empty, and does.
"""

import argparse
import asyncio
import contextlib
import json
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import structlog
import uvloop

from bot.chat.incoming import Incoming
from bot.memory import no_stories
from bot.prompting.presets.preset import Preset
from bot.routing.presets import PresetResolver
from bot.runtime.in_process import InProcessSignals
from bot.runtime.tasks import cancel_and_wait
from bot.service.container import Container
from bot.service.options import RunOptions
from bot.service.resources import Models, Resources, make_chat_settings
from bot.settings import LimitSettings, Settings
from bot.storage.database import Database, open_database, read_revision
from bot.templates.renderer import Renderer
from tests.fakes import FakeBackend, FakeSurface
from tests.postgres import create_postgres_database, running_postgres
from tests.samples import make_incoming
from tests.turn.counted_service import QUIET

_ANSWER = "An answer of about the length that people get to read in a chat. " * 6
_MAX_RECEIVING = 32
_WARM_UP_MESSAGES = 1  # in each conversation: prepared statements, plans, caches
_REPORT_SECONDS = 0.05
_MAX_SECONDS = 300
_NORA = Preset.model_validate({"name": "nora", "provider": "p", "model": "m"})


class WholeService:
    def __init__(self, container: Container, owner: str) -> None:
        self._container = container
        self._cursors = {f"telegram:{owner}": "1"}
        surface = container.platforms["telegram"].surface
        assert isinstance(surface, FakeSurface)
        self._surface = surface

    @property
    def answered(self) -> int:
        return len(self._surface.messages)

    async def receive(self, incoming: Incoming) -> None:
        await self._container.inbox.receive([incoming], self._cursors)
        self._container.conversation_pool.wake([incoming.address.conversation])

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        container = self._container
        jobs = (
            container.conversation_pool.run(),
            container.lane_pool.run(),
            container.worker.keep_leases(),
        )
        tasks = [asyncio.create_task(job) for job in jobs]
        try:
            yield
        finally:
            await cancel_and_wait(tasks)


@contextlib.asynccontextmanager
async def running_worker(database: Database, url: str, owner: str) -> AsyncIterator[WholeService]:
    signals = InProcessSignals()
    chat_settings = make_chat_settings(database, signals, has_remote_signals=True)
    resolver = PresetResolver({_NORA.name: _NORA}, _NORA.name, chat_settings)
    with tempfile.TemporaryDirectory() as folder:
        unlimited = LimitSettings(
            answers_per_person=0, answers_per_channel=0, waiting_in_conversation=0
        )
        # The address decides whether processes have names of their own, by which they hold leases.
        settings = Settings(data_dir=Path(folder), database_url=url, limits=unlimited)
        async with Renderer() as renderer:
            models = Models(renderer, {"p": FakeBackend([_ANSWER])}, no_stories)
            resources = Resources(database, {}, signals, chat_settings, resolver, models)
            container = Container(settings, resources, [QUIET], _fail, RunOptions())
            service = WholeService(container, owner)
            async with service.running():
                yield service


async def work(url: str, number: int, conversations: int) -> None:
    """Receive as many messages in each chat as a line of the input says; report what was done."""
    # Standard output is for the reports.
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    chats = [f"{number}{chat:06}" for chat in range(conversations)]
    async with (
        open_database(url) as database,
        running_worker(database, url, f"worker {number}") as worker,
        asyncio.TaskGroup() as group,
    ):
        reporting = group.create_task(_report(worker))
        first = 0
        while line := await asyncio.to_thread(sys.stdin.readline):
            await _receive(worker, chats, range(first, first + int(line)))
            first += int(line)
        reporting.cancel()


async def _report(worker: WholeService) -> None:
    while True:
        report = {"answered": worker.answered, "cpu": time.process_time()}
        sys.stdout.write(json.dumps(report) + "\n")
        sys.stdout.flush()
        await asyncio.sleep(_REPORT_SECONDS)


async def _receive(worker: WholeService, chats: list[str], numbers: range) -> None:
    free = asyncio.Semaphore(_MAX_RECEIVING)

    async def receive(chat: str, number: int) -> None:
        async with free:
            key = f"{chat}:{number}"
            await worker.receive(make_incoming("What do you think of it?", chat=chat, key=key))

    for number in numbers:
        async with asyncio.TaskGroup() as group:
            for chat in chats:
                group.create_task(receive(chat, number))


def _fail(reason: str) -> None:
    raise AssertionError(reason)


class WorkerProcess:
    """A worker as a process, and its newest report."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.answered = 0
        self.cpu = 0.0

    async def follow(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            report = json.loads(line)
            self.answered, self.cpu = report["answered"], report["cpu"]

    async def receive(self, messages: int) -> None:
        """Have it receive so many messages in each of its chats."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{messages}\n".encode())
        await self._process.stdin.drain()

    async def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        await self._process.wait()


async def measure(url: str, folder: str | None, options: argparse.Namespace) -> list[str]:
    """Let several processes work at once; return lines with their figures."""
    async with open_database(url):
        pass  # it has its tables and functions now
    chats = options.conversations // options.processes
    command = (sys.executable, "-m", "tests.bench.storage", "--work", url)
    workers = [
        WorkerProcess(
            await asyncio.create_subprocess_exec(
                *(*command, "--number", str(number), "--conversations", str(chats)),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
            )
        )
        for number in range(1, options.processes + 1)
    ]
    async with asyncio.TaskGroup() as group:
        for worker in workers:
            group.create_task(worker.follow())
        await _answer(workers, chats, _WARM_UP_MESSAGES)
        await asyncio.sleep(2 * _REPORT_SECONDS)
        server, cpu = _server_cpu(folder), sum(worker.cpu for worker in workers)
        begun = time.monotonic()
        await _answer(workers, chats, options.messages)
        seconds = time.monotonic() - begun
        await asyncio.sleep(2 * _REPORT_SECONDS)
        server, cpu = _server_cpu(folder) - server, sum(worker.cpu for worker in workers) - cpu
        for worker in workers:
            await worker.end()
    count = chats * options.messages * options.processes
    lines = [
        f"{count / seconds:8.0f} messages a second",
        f"{1000 * cpu / count:8.2f} ms CPU of a worker a message",
    ]
    if folder is not None:
        lines.append(f"{1000 * server / count:8.2f} ms CPU of the server a message")
    return lines


async def _answer(workers: list[WorkerProcess], chats: int, messages: int) -> None:
    wanted = sum(worker.answered for worker in workers) + len(workers) * chats * messages
    for worker in workers:
        await worker.receive(messages)
    async with asyncio.timeout(_MAX_SECONDS):
        while sum(worker.answered for worker in workers) < wanted:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def _server_cpu(folder: str | None) -> float:
    if folder is None:
        return 0.0
    server = psutil.Process(int((Path(folder) / "postmaster.pid").read_text().split()[0]))
    times = [one.cpu_times() for one in (server, *server.children())]
    return float(sum(one.user + one.system for one in times))


def _check_is_empty(url: str) -> None:
    """End the program where a database has tables: its messages would be taken for answered."""
    if (revision := asyncio.run(read_revision(url))) is not None:
        sys.exit(f"the database has tables already (revision {revision}): name an empty one")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    kinds = "postgresql, sqlite: a new one; or the URL of an empty database"
    parser.add_argument("--database", default="postgresql", help=kinds)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--conversations", type=int, default=1000)
    parser.add_argument("--messages", type=int, default=4, help="in each conversation")
    parser.add_argument("--work", metavar="URL", help=argparse.SUPPRESS)
    parser.add_argument("--number", type=int, default=1, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        uvloop.run(work(options.work, options.number, options.conversations))
        return
    with contextlib.ExitStack() as stack:
        folder = None
        if options.database not in {"postgresql", "sqlite"}:
            url = options.database
            if "://" not in url:
                parser.error(f"--database {url!r}: {kinds}")
            _check_is_empty(url)
        elif options.database == "sqlite":
            url = f"sqlite:///{stack.enter_context(tempfile.TemporaryDirectory())}/troupe.db"
        else:
            folder = stack.enter_context(running_postgres())
            url = asyncio.run(create_postgres_database(folder))
        sys.stdout.write("\n".join([*asyncio.run(measure(url, folder, options)), ""]))


if __name__ == "__main__":
    main()

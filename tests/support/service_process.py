"""The bot as a process in its own folder, connected to the loopback platforms."""

import asyncio
import json
import os
import re
import signal
import sqlite3
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any, TypeAlias

import aiohttp
import pytest

from tests.checkout import CHECKOUT
from tests.support.chats import Platforms
from tests.support.child_launcher import ChildLauncher, LaunchedChild
from tests.support.model_server import Model
from tests.waiting import PATIENCE_SECONDS, wait_until

_FINISHED = re.compile(r"^troupe_finished_total\{.*\} (.+)$", re.MULTILINE)
_ADDRESS = re.compile(r"health at (http://\S+)/readyz")
_LOG_LINES = 80
_INHERITED = {"PATH", "HOME", "LANG"}


Process: TypeAlias = asyncio.subprocess.Process | LaunchedChild


def preset_json(name: str, **more: object) -> str:
    return json.dumps({"name": name, "provider": "test", "model": "default", **more})


def each_answered(name: str, system: str) -> str:
    """Return a preset file that answers each message separately."""
    return preset_json(name, system=system, busy="queue")


def _inherited() -> dict[str, str]:
    """Return this environment without Troupe's settings."""
    kept = {name: value for name, value in os.environ.items() if name in _INHERITED}  # noqa: TID251
    return {**kept, "PYTHONPATH": str(CHECKOUT)}


TESTER = each_answered("tester", "You are a tester.")


class Service:
    """An installation of the bot with its data folder; a launcher makes starts 10 times faster."""

    def __init__(
        self,
        folder: Path,
        platforms: Platforms,
        model: Model,
        running_launcher: ChildLauncher | None = None,
    ) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.presets = folder / "presets"
        self.log = folder / "service.log"
        self.presets.mkdir(parents=True, exist_ok=True)
        self.write_tester(TESTER)
        (self.presets / "nova.json").write_text(each_answered("nova", "You are Nova."))
        self.settings = {
            "TROUPE_DATA_DIR": str(self.data),
            "TROUPE_PRESETS_DIR": str(self.presets),
            "TROUPE_DEFAULT_PRESET": "tester",
            "TROUPE_TELEGRAM__TOKEN": str(platforms.telegram.token),
            "TROUPE_TELEGRAM__API_BASE": str(platforms.telegram.base),
            "TROUPE_TELEGRAM__POLL_SECONDS": "5",
            "TROUPE_DISCORD__TOKEN": str(platforms.discord.token),
            "TROUPE_DISCORD__API_BASE": f"{platforms.discord.base}/api/v10",
            "TROUPE_DISCORD__GATEWAY_URL": str(platforms.discord.base).replace("http", "ws") + "/",
            "TROUPE_PROVIDERS__TEST__BASE_URL": model.base,
            "TROUPE_PROVIDERS__TEST__API_KEY": "none",
            "TROUPE_PROVIDERS__TEST__MODEL": "m",
            "TROUPE_PROVIDERS__TEST__IDLE_SECONDS": "120",  # tests hold answers halfway
            "TROUPE_CONSOLE__PORT": "0",
            "TROUPE_LIMITS__ANSWERS_PER_PERSON": "0",  # these tests write faster than people
            "TROUPE_LIMITS__ANSWERS_PER_CHANNEL": "0",
            "TROUPE_LIMITS__WAITING_IN_CONVERSATION": "0",
            "TROUPE_DELIVERY__SETTLE_SECONDS": "1",
            "TROUPE_DELIVERY__PACING": "learned",
        }
        self.options: Sequence[str] = ()
        """Options of `troupe run`."""
        self._configuration = (TESTER, dict[str, str]())
        """The tester preset, and settings in addition to `settings`."""
        self.keeps_sessions = True
        """Whether Discord sessions of an ended process can be resumed."""
        self._platforms = platforms
        self._launcher = running_launcher
        self._process: Process | None = None
        self._output_start = 0  # the length of the log before this start

    def write_tester(self, preset: str) -> None:
        (self.presets / "tester.json").write_text(preset)

    async def run_with(self, preset: str = TESTER, **settings: str) -> None:
        """Use this preset and these settings from now on; restart the service if necessary."""
        if self.is_running and self._configuration == (preset, settings):
            return
        await self.kill()
        self._configuration = (preset, settings)
        self.write_tester(preset)
        await self.start_and_wait()

    async def restart(self) -> None:
        await self.kill()
        await self.start_and_wait()

    @property
    def process(self) -> Process:
        assert self._process is not None, "the service was not started"
        return self._process

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def start(self, *, under: Sequence[str] = (), **settings: str) -> None:
        """Start the service without waiting; `under` is a command that runs it."""
        if self._launcher is not None and not under:
            await self.start_with_crash_point("never", 1, **settings)
            return
        self._remember_log_length()
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *(*under, sys.executable, "-m", "bot", "run", *self.options),
                cwd=self.folder,
                env={**_inherited(), **self._environment(settings)},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    async def start_with_crash_point(
        self,
        point: str,
        count: int,
        build: str = "right",
        *options: str,
        **settings: str,
    ) -> None:
        """Start the service so that it kills itself at the given pass of a crash point."""
        assert self._launcher is not None
        self._remember_log_length()
        self._process = await self._launcher.launch(
            [point, str(count), "--build", build, *options, "--", "run", *self.options],
            folder=self.folder,
            settings=self._environment(settings),
            log=self.log,
        )

    def _environment(self, settings: Mapping[str, str]) -> dict[str, str]:
        return {**self.settings, **self._configuration[1], **settings}

    @asynccontextmanager
    async def killed_at(self, point: str, count: int = 1) -> AsyncIterator[None]:
        """Kill the service when it passes a crash point inside the block; then restart it.

        Passes are counted from the start of the block: before that, Discord may replay events
        that followed the session stored last.
        """
        await self.kill()
        try:
            await self.start_with_crash_point(point, count, "right", "--armed-later")
            await self.wait_until_ready()
            self.process.send_signal(signal.SIGUSR2)
            yield
            await self.wait_for_exit()
        finally:
            await self.kill()
            await self.start_and_wait()

    def _remember_log_length(self) -> None:
        self._output_start = self.log.stat().st_size if self.log.exists() else 0

    async def start_and_wait(self) -> None:
        await self.start()
        await self.wait_until_ready()

    async def wait_until_ready(
        self, seconds: float = PATIENCE_SECONDS, status: int = 200, *, may_end: bool = False
    ) -> None:
        """Wait for a status of /readyz; fail if the process exits before, unless it `may_end`."""
        async with asyncio.timeout(seconds):
            while await self.readiness() != status:
                if may_end and not self.is_running:
                    return
                assert self.is_running, f"the service exited with {self.process.returncode}"
                await asyncio.sleep(0.05)

    async def readiness(self) -> int | None:
        """Return the status of /readyz, or None if there is no response."""
        answer = await self.read("readyz")
        return answer[0] if answer else None

    async def parts(self) -> tuple[int, dict[str, str]]:
        """Return the status of /readyz, and its report on each part."""
        status, text = await self.read("readyz") or (0, '{"parts": {}}')
        return status, json.loads(text)["parts"]

    async def wait_until_finished(self, messages: int, seconds: float = PATIENCE_SECONDS) -> None:
        """Wait until the service has finished `messages` messages since its start."""
        async with asyncio.timeout(seconds):
            while await self._finished_messages() < messages:  # noqa: ASYNC110 # another process makes it so
                await asyncio.sleep(0.05)

    async def _finished_messages(self) -> int:
        _, text = await self.read("metrics") or (0, "")
        return sum(int(float(one)) for one in _FINISHED.findall(text))

    @property
    def address(self) -> str:
        """The URL of the console since the last start; empty if it is not ready."""
        return next(reversed(_ADDRESS.findall(self.output())), "")

    async def read(self, page: str) -> tuple[int, str] | None:
        """Return the status and text of a public page, or None if there is no response."""
        if not self.address:
            return None
        try:
            async with (
                aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as session,
                session.get(f"{self.address}/{page}") as response,
            ):
                return response.status, await response.text()
        except (aiohttp.ClientError, TimeoutError):
            return None

    async def kill(self) -> None:
        if self._process is None:
            return
        if self.is_running:
            self.process.kill()
        await self.wait_for_exit()

    async def stop(self) -> int:
        """Stop the service with SIGTERM, and return the exit code."""
        if self.is_running:
            self.process.send_signal(signal.SIGTERM)
        return await self.wait_for_exit()

    async def wait_for_exit(self, seconds: float = PATIENCE_SECONDS) -> int:
        """Wait for the exit code; if the service does not exit, log all task stacks and fail."""
        if not await self.exits_within(seconds):
            self.process.send_signal(signal.SIGUSR1)
            await asyncio.sleep(1)
            self.process.kill()
            await self.process.wait()
            pytest.fail(f"the service has not exited after {seconds} s")
        return await self.process.wait()

    async def exits_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self.process.wait()
        except TimeoutError:
            return False
        if not self.keeps_sessions:
            self._platforms.forget_sessions()
        return True

    async def run_command(self, *words: str) -> str:
        """Run a `troupe` command with the settings of this service; return its output."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "bot", *words),
            cwd=self.folder,
            env={**_inherited(), **self._environment({})},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        printed, errors = await process.communicate()
        assert process.returncode == 0, errors.decode()
        return printed.decode()

    def stored(self) -> bytes:
        """Return all bytes of the service's SQLite database."""
        return b"".join(file.read_bytes() for file in self.data.glob("*.db*"))

    def query(self, statement: str, *values: object) -> list[Any]:
        """Return the rows of a query on the service's SQLite database."""
        address = f"file:{self.data}/troupe.db?mode=ro"
        with closing(sqlite3.connect(address, uri=True)) as database:
            return database.execute(statement, values).fetchall()

    def queues_are_empty(self) -> bool:
        waiting = self.query(
            "SELECT 1 FROM inbox WHERE state = 'new'"
            " UNION ALL SELECT 1 FROM outbox WHERE state NOT IN ('sent', 'dead')"
        )
        return not waiting

    def output(self) -> str:
        """Return the service's output since its last start."""
        if not self.log.exists():
            return ""
        with self.log.open("rb") as log:
            log.seek(self._output_start)
            return log.read().decode(errors="replace")

    async def logs(self, words: str) -> None:
        await wait_until(lambda: words in self.output())

    def log_tail(self) -> str:
        if not self.log.exists():
            return ""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-_LOG_LINES:])

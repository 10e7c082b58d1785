"""The bot as its users run it: a process of its own, in its own folder, on loopback platforms."""

import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import aiohttp
import pytest

from tests.checkout import CHECKOUT
from tests.e2e.model import Model
from tests.e2e.nursery import Nursery
from tests.e2e.world import World

_ADDRESS = re.compile(r"health at (http://\S+)/readyz")
_LOG_LINES = 80
_INHERITED = {"PATH", "HOME", "LANG"}


class Process(Protocol):
    """What can be done to a bot that runs, however it was started."""

    @property
    def pid(self) -> int: ...

    @property
    def returncode(self) -> int | None: ...

    async def wait(self) -> int: ...

    def send_signal(self, number: int, /) -> None: ...

    def kill(self) -> None: ...


def preset(name: str, **more: object) -> str:
    """A preset file that the model of these tests answers for."""
    return json.dumps({"name": name, "provider": "test", "model": "default", **more})


class Service:
    """One installation of the bot; `start` and `kill` as often as you like, its data stay.

    With a nursery a start costs half a second instead of seven.
    """

    def __init__(
        self, folder: Path, world: World, model: Model, nursery: Nursery | None = None
    ) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.presets = folder / "presets"
        self.log = folder / "service.log"
        self.presets.mkdir(parents=True, exist_ok=True)
        (self.presets / "tester.json").write_text(preset("tester", system="You are a tester."))
        (self.presets / "nova.json").write_text(preset("nova", system="You are Nova."))
        self.settings = {
            "TROUPE_DATA_DIR": str(self.data),
            "TROUPE_PRESETS_DIR": str(self.presets),
            "TROUPE_DEFAULT_PRESET": "tester",
            "TROUPE_TELEGRAM__TOKEN": str(world.telegram.token),
            "TROUPE_TELEGRAM__API_BASE": str(world.telegram.base),
            "TROUPE_TELEGRAM__POLL_SECONDS": "5",
            "TROUPE_DISCORD__TOKEN": str(world.discord.token),
            "TROUPE_DISCORD__API_BASE": f"{world.discord.base}/api/v10",
            "TROUPE_DISCORD__GATEWAY_URL": str(world.discord.base).replace("http", "ws") + "/",
            "TROUPE_PROVIDERS__TEST__BASE_URL": model.base,
            "TROUPE_PROVIDERS__TEST__API_KEY": "none",
            "TROUPE_PROVIDERS__TEST__MODEL": "m",
            "TROUPE_CONSOLE__PORT": "0",
            "TROUPE_DELIVERY__SETTLE_SECONDS": "1",
        }
        self._world = world
        self._nursery = nursery
        self._process: Process | None = None
        self._said_before = 0  # bytes in the log before this start

    @property
    def process(self) -> Process:
        assert self._process is not None, "the service was not started"
        return self._process

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def start(self, *, under: Sequence[str] = (), **settings: str) -> None:
        """Start it as `python -m bot run`, without waiting until it is ready.

        `under` is a command that runs commands, like `nice`; then there is no nursery.
        """
        if self._nursery is not None and not under:
            await self.start_to_crash("never", 1, **settings)
            return
        self._mark_log()
        # of our own settings none gets through
        inherited = {name: value for name, value in os.environ.items() if name in _INHERITED}  # noqa: TID251
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *(*under, sys.executable, "-m", "bot", "run"),
                cwd=self.folder,
                env={**inherited, "PYTHONPATH": str(CHECKOUT), **self.settings, **settings},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    async def start_to_crash(
        self, point: str, count: int, build: str = "right", **settings: str
    ) -> None:
        """Start it so that it kills itself at the given passing of a point of `crashing`."""
        assert self._nursery is not None
        self._mark_log()
        self._process = await self._nursery.bear(
            [point, str(count), "--build", build, "run"],
            folder=self.folder,
            settings={**self.settings, **settings},
            log=self.log,
        )

    def _mark_log(self) -> None:
        self._said_before = self.log.stat().st_size if self.log.exists() else 0

    async def begin(self) -> None:
        """Start it and wait until it hears."""
        await self.start()
        await self.ready()

    async def ready(self, seconds: float = 30, status: int = 200) -> None:
        """Wait until it says that it hears on every platform, or with 503 that it does not.

        Fails when it ends before.
        """
        async with asyncio.timeout(seconds):
            while await self.readiness() != status:
                assert self.running, f"the service ended with {self.process.returncode}"
                await asyncio.sleep(0.05)

    async def readiness(self) -> int | None:
        """The status of /readyz; None while nothing answers there."""
        found = _ADDRESS.findall(self.said())
        if not found:
            return None
        try:
            async with (
                aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as session,
                session.get(f"{found[-1]}/readyz") as response,
            ):
                return response.status
        except (aiohttp.ClientError, TimeoutError):
            return None

    async def kill(self) -> None:
        """End it as a power cut would."""
        if self.running:
            self.process.kill()
        await self.ended()

    async def stop(self) -> int:
        """Ask it to end, and give its exit code."""
        if self.running:
            self.process.send_signal(signal.SIGTERM)
        return await self.ended()

    async def ended(self, seconds: float = 30) -> int:
        """Wait for its end, and give the exit code.

        Fails when it goes on, after what it waits for was written into its log.
        """
        if not await self.ends_within(seconds):
            self.process.send_signal(signal.SIGUSR1)
            await asyncio.sleep(1)
            self.process.kill()
            await self.process.wait()
            pytest.fail(f"the service has not ended after {seconds} s")
        return await self.process.wait()

    async def ends_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self.process.wait()
        except TimeoutError:
            return False
        self._world.forget_sessions()
        return True

    def said(self) -> str:
        """What it printed since its last start."""
        if not self.log.exists():
            return ""
        with self.log.open("rb") as log:
            log.seek(self._said_before)
            return log.read().decode(errors="replace")

    def last_words(self) -> str:
        if not self.log.exists():
            return ""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-_LOG_LINES:])

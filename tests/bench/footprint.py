"""Measure what the service takes: CPU of a start, CPU while idle, memory.

    python -m tests.bench.footprint telegram discord "telegram discord"

The service runs as a process with the platforms and a model on loopback. It is started twice: the
first start creates the tables, the second is measured.
"""

import argparse
import asyncio
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.support.chats import Conversation, LoopbackPlatforms, running_platforms
from tests.support.model_server import ModelServer
from tests.support.service_process import ServiceProcess

_CONVERSATIONS = 5
_START_SECONDS = 120  # on a busy machine
_SETTLE_SECONDS = 3.0  # after a start, before idle is measured
_IMPORT = "import time; start = time.process_time(); import {}; print(time.process_time() - start)"


@dataclass(frozen=True, slots=True)
class Footprint:
    """What one start of the service took."""

    import_cpu: float
    """CPU seconds that importing the platforms' libraries alone takes."""

    start_cpu: float
    """CPU seconds from the start of the process to the first poll or IDENTIFY."""

    start_mb: float
    """Resident memory, children included, when the service is ready."""

    idle_percent: float
    """Share of one core while nothing happens."""

    messages_mb: float
    """Resident memory after the messages."""

    def lines(self) -> list[str]:
        ratio = self.start_cpu / self.import_cpu
        return [
            f"CPU from start to first poll   {self.start_cpu:6.2f} s"
            f" ({ratio:.2f} x the libraries' import, {self.import_cpu:.2f} s)",
            f"memory when ready              {self.start_mb:6.0f} MB",
            f"CPU while idle                 {self.idle_percent:6.2f} % of a core",
            f"memory after messages          {self.messages_mb:6.0f} MB",
        ]


async def measure(names: list[str], idle_seconds: float, messages: int) -> Footprint:
    """Start the service with these platforms only, and measure it."""
    with tempfile.TemporaryDirectory() as folder:
        async with running_platforms() as platforms, ModelServer() as model:
            service = ServiceProcess(Path(folder), platforms, model)
            for name in {"telegram", "discord"} - set(names):
                del service.settings[f"TROUPE_{name.upper()}__TOKEN"]
            try:
                await service.start()
                await service.wait_until_ready(_START_SECONDS)
                await service.stop()
                import_cpu = sum(_import_cpu(_library(name)) for name in names)
                start_cpu = await _start(service, platforms, names)
                await service.wait_until_ready(_START_SECONDS)
                await asyncio.sleep(_SETTLE_SECONDS)
                start_mb = _memory(service)
                idle_percent = await _idle_percent(service, idle_seconds)
                await _talk(platforms, names, messages)
                return Footprint(import_cpu, start_cpu, start_mb, idle_percent, _memory(service))
            finally:
                await service.kill()


async def _start(service: ServiceProcess, platforms: LoopbackPlatforms, names: list[str]) -> float:
    calls = len(platforms.telegram.log)
    platforms.forget_sessions()
    await service.start()
    waiting = set(names)
    while waiting:
        assert service.is_running, service.log_tail()
        await asyncio.sleep(0.005)
        if any(call["method"].lower() == "getupdates" for call in platforms.telegram.log[calls:]):
            waiting.discard("telegram")
        if platforms.discord.sessions:
            waiting.discard("discord")
    return _cpu(service)


async def _idle_percent(service: ServiceProcess, seconds: float) -> float:
    cpu, started = _cpu(service), time.monotonic()
    await asyncio.sleep(seconds)
    return 100 * (_cpu(service) - cpu) / (time.monotonic() - started)


async def _talk(platforms: LoopbackPlatforms, names: list[str], messages: int) -> None:
    chats: list[Conversation] = []
    for _ in range(_CONVERSATIONS):
        chats += [platforms.telegram_dm()] if "telegram" in names else []
        chats += [platforms.discord_dm()] if "discord" in names else []
    for number in range(messages):
        for chat in chats:
            chat.ask(f"{number}", words=100)
        async with asyncio.timeout(60):
            while any(len(chat.texts()) <= number for chat in chats):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
    await asyncio.sleep(_SETTLE_SECONDS)


def _import_cpu(library: str) -> float:
    command = [sys.executable, "-c", _IMPORT.format(library)]
    results = [subprocess.run(command, capture_output=True, check=True) for _ in range(3)]
    return sorted(float(result.stdout) for result in results)[1]


def _library(platform: str) -> str:
    return {"telegram": "aiogram", "discord": "discord"}[platform]


def _tree(service: ServiceProcess) -> list[psutil.Process]:
    process = psutil.Process(service.process.pid)
    return [process, *process.children(recursive=True)]


def _cpu(service: ServiceProcess) -> float:
    times = [process.cpu_times() for process in _tree(service)]
    return float(sum(one.user + one.system for one in times))


def _memory(service: ServiceProcess) -> float:
    return float(sum(process.memory_info().rss for process in _tree(service))) / 1e6


def main() -> None:
    """Print the figures of each set of platforms."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("platforms", nargs="+", help='for example "telegram" or "telegram discord"')
    parser.add_argument("--idle-seconds", type=float, default=60)
    parser.add_argument("--messages", type=int, default=10, help="in each of the conversations")
    options = parser.parse_args()
    for names in options.platforms:
        footprint = asyncio.run(measure(names.split(), options.idle_seconds, options.messages))
        sys.stdout.write("\n".join([names, *footprint.lines(), ""]) + "\n")


if __name__ == "__main__":
    main()

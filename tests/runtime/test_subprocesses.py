"""Child processes start, are restarted, and never outlive their parent."""

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from bot.runtime.subprocesses import ChildProcessFailed, run_supervised
from tests.checkout import CHECKOUT
from tests.waiting import PATIENCE_SECONDS, wait_until

SLEEPER = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(60)"]
IGNORES_SIGTERM = [
    sys.executable,
    "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    "print('up', flush=True); time.sleep(60)",
]
PARENT = """
import asyncio, sys
from pathlib import Path
from bot.runtime.subprocesses import run_supervised

async def ready():
    return True

async def main():
    command = [sys.executable, "-c", "import time; time.sleep(60)"]
    async with run_supervised("sleeper", command, check_ready=ready, log_file=Path("log")) as child:
        print(child.pid, flush=True)
        await asyncio.sleep(60)

asyncio.run(main())
"""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "child.log"


def prints_up(log: Path) -> Callable[[], Awaitable[bool]]:
    async def ready() -> bool:
        return has_printed(log)

    return ready


def has_printed(log: Path) -> bool:
    return log.exists() and "up" in log.read_text(encoding="utf-8")


async def test_child_inherits_no_secrets(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secrets = ("TROUPE_TELEGRAM__TOKEN", "OPENAI_API_KEY", "HF_TOKEN", "PGPASSWORD", "DATABASE_URL")
    for name in secrets:
        monkeypatch.setenv(name, "CANARY")
    monkeypatch.setenv("LC_MEASUREMENT", "kept")
    shows = "import os, time; print(dict(os.environ), 'up', flush=True); time.sleep(60)"
    async with run_supervised(
        "shows", [sys.executable, "-c", shows], check_ready=prints_up(log), log_file=log
    ):
        pass
    text = log.read_text(encoding="utf-8")  # noqa: ASYNC240
    assert "CANARY" not in text
    assert "kept" in text
    assert "PATH" in text


def remove_log_folder(log: Path) -> Path:
    """Move the log's folder, so that starting a process fails."""
    log.unlink()
    return log.parent.rename(log.parent.with_name("away"))


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


async def test_process_is_restarted_when_it_dies_and_stopped_when_the_block_exits(
    log: Path,
) -> None:
    async with run_supervised(
        "sleeper", SLEEPER, check_ready=prints_up(log), log_file=log
    ) as child:
        first = child.pid
        assert first is not None
        assert child.is_ready
        assert is_alive(first)
        os.kill(first, signal.SIGKILL)
        await wait_until(lambda: not child.is_ready)
        with pytest.raises(ChildProcessFailed, match="sleeper is not ready; see "):
            await child.wait_until_ready(0.01)
        await child.wait_until_ready(PATIENCE_SECONDS)
        second = child.pid
        assert second not in {None, first}
        assert child.restart_count == 1
    assert second is not None
    assert not is_alive(second)
    assert child.pid is None


async def never_ready() -> bool:
    return False


EXITS = [sys.executable, "-c", "print('no such model'); raise SystemExit(3)"]


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (EXITS, "engine exited on startup: no such model"),
        pytest.param(SLEEPER, "did not answer within 1 s: up", marks=pytest.mark.slow),
    ],
)
async def test_process_that_is_not_ready_in_time_is_stopped(
    log: Path, command: list[str], told: str
) -> None:
    seconds = 30 if command is EXITS else 1
    with pytest.raises(ChildProcessFailed, match=f"{told}|it printed nothing"):
        async with run_supervised(
            "engine", command, check_ready=never_ready, log_file=log, start_timeout_seconds=seconds
        ):
            pytest.fail("it started")


@pytest.mark.parametrize("missing", ["program", "log"])
async def test_process_that_cannot_start_is_reported_in_one_line(log: Path, missing: str) -> None:
    command = ["/no/such/program"] if missing == "program" else SLEEPER
    file = log.parent / "none" / "log" if missing == "log" else log
    with pytest.raises(ChildProcessFailed, match=r"engine cannot be started: .*No such file"):
        async with run_supervised("engine", command, check_ready=never_ready, log_file=file):
            pytest.fail("it started")


async def test_supervision_survives_a_restart_that_fails(log: Path) -> None:
    async with run_supervised(
        "sleeper", SLEEPER, check_ready=prints_up(log), log_file=log
    ) as child:
        assert child.pid is not None
        away = remove_log_folder(log)
        os.kill(child.pid, signal.SIGKILL)
        await wait_until(lambda: child.restart_count > 0)
        away.rename(log.parent)  # once, in a test
        await child.wait_until_ready(PATIENCE_SECONDS)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can promise it")
async def test_child_process_dies_when_its_parent_is_killed(tmp_path: Path) -> None:
    root = str(CHECKOUT)
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PARENT, cwd=tmp_path, env={"PYTHONPATH": root}, stdout=-1
    )
    assert parent.stdout is not None
    child = int(await parent.stdout.readline())
    assert is_alive(child)
    parent.kill()
    await parent.wait()
    await wait_until(lambda: not is_alive(child))


@pytest.mark.slow
async def test_process_that_ignores_sigterm_is_killed(log: Path) -> None:
    async with run_supervised(
        "stubborn", IGNORES_SIGTERM, check_ready=prints_up(log), log_file=log
    ) as child:
        pid = child.pid
    assert pid is not None
    assert not is_alive(pid)

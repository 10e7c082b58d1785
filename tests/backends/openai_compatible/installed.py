"""Install and run third-party servers from package registries; for `make soak` only."""

import asyncio
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

AIMOCK = "@copilotkit/aimock@1.43.0"
LITELLM = "litellm[proxy]>=1.80,<2"


def install_aimock(folder: Path) -> list[str]:
    """Install aimock; return the command that serves the answers in aimock.json."""
    npm, node = shutil.which("npm"), shutil.which("node")
    if npm is None or node is None:
        pytest.skip("aimock needs node and npm")
    _run([npm, "install", "--no-audit", "--no-fund", "--prefix", str(folder), AIMOCK])
    answers = Path(__file__).with_name("aimock.json")
    return [node, str(folder / "node_modules" / ".bin" / "llmock"), "-f", str(answers)]


def install_litellm(folder: Path) -> list[str]:
    """Install LiteLLM in a separate environment; return the command that starts its proxy."""
    _run([sys.executable, "-m", "venv", str(folder)])
    _run([str(folder / "bin" / "python"), "-m", "pip", "install", "-q", LITELLM])
    return [str(folder / "bin" / "litellm")]


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}: {done.stdout[-2000:]}{done.stderr[-2000:]}"


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


@asynccontextmanager
async def running(command: Sequence[str], port: int, log: Path) -> AsyncIterator[None]:
    """Run a server inside the block, which starts when the port is open."""
    environment = {
        "PATH": os.environ["PATH"],  # noqa: TID251
        "HOME": str(log.parent),
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # else it asks for a list on the internet
    }
    with log.open("wb") as out:
        process = await asyncio.create_subprocess_exec(
            *command, stdout=out, stderr=out, env=environment
        )
    try:
        async with asyncio.timeout(180):
            while not await _is_open(port):
                assert process.returncode is None, f"it ended; see {log}"
                await asyncio.sleep(0.2)
        yield
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def _is_open(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True

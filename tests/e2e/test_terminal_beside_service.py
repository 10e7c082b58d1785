"""Test a terminal chat and a running service that share a data directory."""

import asyncio
import os
import sys
from pathlib import Path

from tests.checkout import CHECKOUT
from tests.support.chats import Chat
from tests.support.features import ON_THE_WIRES, at
from tests.support.service_process import Service
from tests.support.transcripts import expected_answer
from tests.waiting import PATIENCE_SECONDS

pytestmark = ON_THE_WIRES


async def start_chat(folder: Path, **settings: str) -> asyncio.subprocess.Process:
    """Start `troupe chat` with piped input and output."""
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bot", "chat"),
        cwd=folder,
        env={"PATH": os.defpath, "PYTHONPATH": str(CHECKOUT), **settings},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def chat(service: Service, *words: str) -> tuple[str, str]:
    """Run `troupe chat` with these input lines; return its output and error output."""
    settings = {**service.settings, "TROUPE_CONSOLE__PORT": "1"}  # a port that cannot be had
    process = await start_chat(service.folder, **settings)
    async with asyncio.timeout(PATIENCE_SECONDS):
        output, errors = await process.communicate("\n".join(words).encode())
    return output.decode(), errors.decode()


@at("telegram_dm")
async def test_terminal_and_service_each_answer_their_own_chats(
    where: Chat, running: Service
) -> None:
    first = where.ask()
    output, errors = await chat(running, "please Tab01:5")
    assert (output, errors) == (f"{expected_answer('Tab01:5')}\n", "")
    await where.shows(first, where.ask())
    assert await running.readiness() == 200
    again, _ = await chat(running, "/retry")
    assert "There is no question" in again, "each pipe begins a conversation"

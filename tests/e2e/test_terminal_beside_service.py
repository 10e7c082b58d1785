"""A chat in the terminal beside a running service, on the same data directory."""

import asyncio
import os
import sys
from itertools import count

import pytest

from tests.checkout import CHECKOUT
from tests.e2e.loopback_platforms import LoopbackPlatforms
from tests.e2e.service_process import ServiceProcess
from tests.e2e.transcript_checker import expected_answer
from tests.e2e.waiting import wait_until
from tests.waiting import PATIENCE_SECONDS

pytestmark = [pytest.mark.service, pytest.mark.asyncio(loop_scope="module")]

_names = (f"{number:04x}" for number in count(0xE000))


async def chat(service: ServiceProcess, *words: str) -> tuple[str, str]:
    """Run `troupe chat` with these words on its input; return its output and its errors."""
    settings = {**service.settings, "TROUPE_CONSOLE__PORT": "1"}  # a port that cannot be had
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bot", "chat"),
        cwd=service.folder,
        env={"PATH": os.defpath, "PYTHONPATH": str(CHECKOUT), **settings},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(PATIENCE_SECONDS):
        output, errors = await process.communicate("\n".join(words).encode())
    return output.decode(), errors.decode()


async def test_both_answer_their_own_chats(
    service: ServiceProcess, platforms: LoopbackPlatforms
) -> None:
    await service.start_and_wait()
    conversation = platforms.telegram_dm()
    names = [next(_names) for _ in range(3)]

    conversation.ask(names[0])
    output, errors = await chat(service, f"please T{names[1]}:5")
    conversation.ask(names[2])

    assert (output, errors) == (f"{expected_answer(f'T{names[1]}:5')}\n", "")
    expected = [expected_answer(f"T{name}:12") for name in (names[0], names[2])]
    await wait_until(lambda: platforms.bot_texts(conversation) == expected)
    assert await service.readiness() == 200
    again, _ = await chat(service, "/retry")
    assert "There is no question" in again, "each pipe begins a conversation"

"""Kill and freeze the Valkey that several processes share."""

import asyncio
import contextlib
import random
import signal
from collections.abc import AsyncIterator

import psutil


async def disturb_valkey(rng: random.Random) -> None:
    """Kill or freeze this process's Valkey every few seconds until cancelled.

    Whoever runs it starts it again.
    """
    while True:
        await asyncio.sleep(rng.uniform(4, 12))
        server = _find_server()
        if server is None:
            continue  # it is being started
        if rng.random() < 0.5:
            server.send_signal(signal.SIGKILL)
            continue
        server.send_signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(rng.uniform(1, 6))
        finally:
            server.send_signal(signal.SIGCONT)


@contextlib.asynccontextmanager
async def frozen_valkey() -> AsyncIterator[None]:
    """Let this process's Valkey stand still within the block; it must run."""
    server = _find_server()
    assert server is not None
    server.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        server.send_signal(signal.SIGCONT)


def _find_server() -> psutil.Process | None:
    children = psutil.Process().children()
    return next((child for child in children if "valkey" in child.name()), None)

"""Kill, freeze and wipe the Valkey that several processes share."""

import asyncio
import contextlib
import random
import signal
from collections.abc import AsyncIterator

from redis.asyncio import Redis
from redis.exceptions import RedisError

from tests.valkey import find_valkey

_ANSWER_SECONDS = 5.0


async def disturb_valkey(url: str, rng: random.Random) -> None:
    """Kill, freeze or wipe this process's Valkey every few seconds until cancelled.

    Whoever runs it starts it again.
    """
    while True:
        await asyncio.sleep(rng.uniform(4, 12))
        server = find_valkey()
        if server is None:
            continue  # it is being started
        chance = rng.random()
        if chance < 0.2:
            await _wipe(url)
            continue
        if chance < 0.6:
            server.send_signal(signal.SIGKILL)
            continue
        server.send_signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(rng.uniform(1, 6))
        finally:
            server.send_signal(signal.SIGCONT)


async def _wipe(url: str) -> None:
    with contextlib.suppress(RedisError, OSError, TimeoutError):  # it is being started
        async with asyncio.timeout(_ANSWER_SECONDS), Redis.from_url(url) as valkey:
            await valkey.flushall()


@contextlib.asynccontextmanager
async def frozen_valkey() -> AsyncIterator[None]:
    """Let this process's Valkey stand still within the block; it must run."""
    server = find_valkey()
    assert server is not None
    server.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        server.send_signal(signal.SIGCONT)

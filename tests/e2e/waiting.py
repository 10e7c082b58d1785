"""Wait for what another process does."""

import asyncio
from collections.abc import Callable
from typing import Any


async def wait_until(condition: Callable[[], Any], seconds: float = 120) -> Any:
    """Wait until `condition()` is true, and return its value."""
    async with asyncio.timeout(seconds):
        while not (found := condition()):  # noqa: ASYNC110 # another process makes it so
            await asyncio.sleep(0.02)
    return found

"""Wait for what another process does."""

import asyncio
from collections.abc import Callable
from typing import Any

from tests.waiting import PATIENCE_SECONDS


async def wait_until(condition: Callable[[], Any], seconds: float = PATIENCE_SECONDS) -> Any:
    """Wait until `condition()` is true, and return its value."""
    async with asyncio.timeout(seconds):
        while not (found := condition()):  # noqa: ASYNC110 # another process makes it so
            await asyncio.sleep(0.02)
    return found

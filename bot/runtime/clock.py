"""The system clock, as an implementation of the `Clock` port."""

import asyncio
import time
from collections.abc import Callable

from typing_extensions import override

from bot.ports import Clock


class SystemClock(Clock):
    now = staticmethod(time.time)
    monotonic = staticmethod(time.monotonic)

    @override
    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    @override
    def call_later(self, seconds: float, callback: Callable[[], None]) -> Callable[[], None]:
        return asyncio.get_running_loop().call_later(seconds, callback).cancel

"""The clock of this machine, as the `Clock` port."""

import asyncio
import time

from typing_extensions import override

from bot.ports import Clock


class SystemClock(Clock):
    @override
    def now(self) -> float:
        return time.time()

    @override
    def monotonic(self) -> float:
        return time.monotonic()

    @override
    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

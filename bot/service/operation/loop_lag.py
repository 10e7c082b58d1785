"""Measure how late the event loop runs what is due, for /metrics."""

from bot.ports import Clock
from bot.service.role_parts import RolePart
from bot.telemetry.metrics import LOOP_LAG

_SECONDS_BETWEEN = 0.5


class LoopLag:
    """Sets a timer again and again; whatever keeps the loop busy makes it late."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    @property
    def part(self) -> RolePart:
        return RolePart(_nothing, [self.run], _nothing)

    async def run(self) -> None:
        """Measure twice a second until cancelled."""
        while True:
            due_at = self._clock.monotonic() + _SECONDS_BETWEEN
            await self._clock.sleep(_SECONDS_BETWEEN)
            LOOP_LAG.observe(max(0.0, self._clock.monotonic() - due_at))


async def _nothing() -> None:
    return

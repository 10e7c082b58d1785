"""The metric of the event loop says how late its timers are."""

import asyncio

from prometheus_client import REGISTRY
from typing_extensions import override

from bot.runtime.tasks import cancel_and_wait
from bot.service.jobs import measure_loop_lag
from tests.fakes import FakeClock


def sample(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(f"troupe_loop_lag_seconds_{name}", labels) or 0.0


class BusyClock(FakeClock):
    """Its second timer fires 0.2 s late, because something else runs until then."""

    def __init__(self) -> None:
        super().__init__()
        self._delays = [0.0, 0.2]

    @override
    async def sleep(self, seconds: float) -> None:
        await super().sleep(seconds + (self._delays.pop(0) if self._delays else 0.0))


async def test_timer_that_is_late_is_counted_with_its_lag() -> None:
    clock = BusyClock()
    count, seconds, soon = sample("count"), sample("sum"), sample("bucket", le="0.05")
    measuring = asyncio.create_task(measure_loop_lag(clock))
    await clock.advance(1.2)
    await cancel_and_wait([measuring])

    assert sample("count") - count == 2
    assert round(sample("sum") - seconds, 3) == 0.2
    assert sample("bucket", le="0.05") - soon == 1

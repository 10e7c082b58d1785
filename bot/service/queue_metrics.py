"""Measure the queues for /metrics: each process those that its roles work on."""

from collections.abc import Set

import structlog

from bot.errors import StoreError
from bot.ports import Clock
from bot.service.options import Role
from bot.storage.queue_ages import SqlQueueAges
from bot.telemetry.metrics import QUEUE_AGE

_log = structlog.get_logger(__name__)
_MEASURE_EVERY_SECONDS = 10.0


class QueueMetrics:
    """Keeps the gauges of the queues up to date; nothing is read when somebody asks for them."""

    def __init__(self, ages: SqlQueueAges, roles: Set[Role], clock: Clock) -> None:
        self._ages = ages
        self._roles = roles
        self._clock = clock

    async def run(self) -> None:
        """Measure every ten seconds until cancelled."""
        while True:
            await self.measure()
            await self._clock.sleep(_MEASURE_EVERY_SECONDS)

    async def measure(self) -> None:
        """Measure once; while the database is away, the gauges keep what they were."""
        try:
            ages = await self._ages.read()
        except StoreError as error:
            _log.warning("store_failed", reason=str(error))
            return
        if Role.WORKER in self._roles:
            QUEUE_AGE.labels("conversations").set(ages.conversations)
        if Role.SENDER in self._roles:
            QUEUE_AGE.labels("lanes").set(ages.lanes)

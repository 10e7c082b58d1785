"""Report that this process is there, for `troupe nodes`."""

import contextlib

import structlog

from bot.chat.console.operation import HEARTBEAT_SECONDS
from bot.errors import StoreError
from bot.ports import Clock, NodeRegistry
from bot.service.role_parts import RolePart

_log = structlog.get_logger(__name__)


class Heartbeat:
    """Keeps the row of this process young, and deletes it when the process ends.

    Args:
        nodes: the rows of all processes.
        owner: the name that this one holds leases under.
        roles: what it does, separated by commas.
        version: of Troupe.
        clock: the time between two reports.
    """

    def __init__(
        self, nodes: NodeRegistry, owner: str, roles: str, version: str, clock: Clock
    ) -> None:
        self._nodes = nodes
        self._row = (owner, roles, version)
        self._clock = clock

    @property
    def part(self) -> RolePart:
        return RolePart(self._start, [self.run], self._end)

    async def _start(self) -> None:
        await self._nodes.enter(*self._row)

    async def run(self) -> None:
        """Report until cancelled."""
        while True:
            await self._clock.sleep(HEARTBEAT_SECONDS)
            try:
                await self._nodes.report(*self._row)
            except StoreError as error:
                _log.warning("store_failed", reason=str(error))

    async def _end(self) -> None:
        with contextlib.suppress(StoreError):
            await self._nodes.leave(self._row[0])

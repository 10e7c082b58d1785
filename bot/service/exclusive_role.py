"""Work that one of several processes on a database does at a time; the others stand by."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence

import structlog

from bot.errors import StoreError
from bot.ports import Clock, RoleLeases
from bot.runtime.tasks import cancel_and_wait
from bot.telemetry.metrics import HELD_ROLES

_log = structlog.get_logger(__name__)
_LEASE_SECONDS = 10.0
_RENEW_SECONDS = 3.0
_ASK_SECONDS = 2.0
"""So often a process that stands by asks whether the role is free, unless it is told."""


class ExclusiveRole:
    """Holds a lease while its work runs, and stops the work as soon as the lease is in doubt."""

    def __init__(
        self,
        name: str,
        leases: RoleLeases,
        clock: Clock,
        may_take: Callable[[], bool] = lambda: True,
        *,
        counted_as: str | None = None,
    ) -> None:
        """Take what decides who does the work.

        Args:
            name: of the role, which all processes share.
            leases: where it is held.
            clock: time.
            may_take: whether this process takes the role while it is free.
            counted_as: its name in the metrics, which several roles may have; None: its own.
        """
        self._held_count = HELD_ROLES.labels(counted_as or name)
        self._name = name
        self._may_take = may_take
        self._leases = leases
        self._clock = clock
        self._held_until = 0.0  # of the monotonic clock
        self._is_due = asyncio.Event()
        self.is_standby = False
        """Whether another process does the work now."""
        self.is_held = False
        """Whether this process does it."""

    async def run(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do the work while no other process does it; return when the work has ended by itself.

        Whatever the work raises goes through.
        """
        stop_watching = self._leases.on_release(self._note_release)
        try:
            while True:
                await self._wait_for_turn()
                try:
                    if await self._work_while_held(work):
                        return
                finally:
                    self.is_held = False
                    self._held_count.dec()
        finally:
            stop_watching()
            self.is_standby = self.is_held = False
            with contextlib.suppress(StoreError):  # then it expires
                await self._leases.release(self._name)

    def ask_soon(self) -> None:
        """Ask at once whether the role is free now, while this process stands by."""
        self._is_due.set()

    def _note_release(self, roles: Sequence[str]) -> None:
        if self._name in roles:
            self.ask_soon()

    async def _wait_for_turn(self) -> None:
        while True:
            self._is_due.clear()
            try:
                if self._may_take() and await self._take():
                    break
            except StoreError as error:
                _log.warning("store_failed", reason=str(error))
            else:
                self._stand_by()
            await self._wait_until_due()
        if self.is_standby:
            _log.info("role_taken_over", role=self._name)
        self.is_standby, self.is_held = False, True
        self._held_count.inc()

    async def _wait_until_due(self) -> None:
        call_off = self._clock.call_later(_ASK_SECONDS, self._is_due.set)
        try:
            await self._is_due.wait()
        finally:
            call_off()

    def _stand_by(self) -> None:
        if not self.is_standby:
            self.is_standby = True
            _log.info("standing_by", role=self._name)

    async def _work_while_held(self, work: Callable[[], Awaitable[None]]) -> bool:
        """Return False if the lease was lost before the work ended."""
        working = asyncio.ensure_future(work())
        renewing = asyncio.create_task(self._renew_until_lost())
        try:
            await asyncio.wait([working, renewing], return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                _log.warning("role_lost", role=self._name)
                return False
        finally:
            await cancel_and_wait([renewing])
            if not working.done():
                await cancel_and_wait([working])
        await working
        return True

    async def _renew_until_lost(self) -> None:
        while (left := self._held_until - self._clock.monotonic()) > 0:
            await self._clock.sleep(min(_RENEW_SECONDS, left))
            if self._clock.monotonic() >= self._held_until:
                return  # this process stood still, or the database did not answer
            try:
                if not await self._take():
                    return
            except StoreError as error:
                _log.warning("store_failed", reason=str(error))

    async def _take(self) -> bool:
        asked = self._clock.monotonic()
        is_taken = await self._leases.take(self._name, _LEASE_SECONDS)
        if is_taken:
            self._held_until = asked + _LEASE_SECONDS
        return is_taken

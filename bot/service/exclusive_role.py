"""Work that only one process of an installation does at a time; the others stand by.

A platform is received from by one process at a time; of one with shards, each shard is.
"""

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Callable, Sequence

import structlog

from bot.errors import StoreError
from bot.ports import Clock, Intake, Platform, ShardedPlatform
from bot.runtime.tasks import cancel_and_wait
from bot.storage.leases import SqlRoleLeases
from bot.telemetry.metrics import HELD_ROLES

_log = structlog.get_logger(__name__)
_LEASE_SECONDS = 10.0
_RENEW_SECONDS = 3.0
_ASK_SECONDS = 2.0
"""How often a standby asks for the lease; a signal makes it ask at once."""
_MEMBER_SECONDS = 10.0
_COUNT_SECONDS = 2.0
"""How often processes count themselves; a signal of one that ends makes them count at once."""


class ExclusiveRole:
    """Holds a lease while its work runs, and stops the work as soon as the lease is in doubt."""

    def __init__(
        self,
        name: str,
        leases: SqlRoleLeases,
        clock: Clock,
        may_take: Callable[[], bool] = lambda: True,
        *,
        counted_as: str | None = None,
    ) -> None:
        """Create the role; `run` competes for it while `may_take` is true.

        Several roles may share the name in metrics, `counted_as`.
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
        """Wait for the lease, then work while it holds; return when the work ends by itself.

        Exceptions of the work propagate.
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
        """Stop waiting and ask for the lease again now."""
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
        """Run the work; return False if the lease was lost before it ended."""
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


class ExclusiveReceiver:
    """Receives from a platform while it holds its role."""

    def __init__(self, platform: Platform, role: ExclusiveRole) -> None:
        self.name, self.check = platform.name, platform.check
        self._platform = platform
        self._role = role

    @property
    def connection_error(self) -> str | None:
        """Why nothing is received; None for a process that stands by."""
        return None if self._role.is_standby else self._platform.connection_error

    async def run(self, intake: Intake) -> None:
        await self._role.run(lambda: self._platform.run(intake))


class ShardReceiver:
    """Receives over this process's share of the shards, one lease each.

    A process that holds more than its share releases shards. Whoever takes one resumes its session,
    so that neither a new session nor a message is lost.
    """

    def __init__(
        self,
        platform: ShardedPlatform,
        source: str,
        owner: str,
        leases: SqlRoleLeases,
        clock: Clock,
    ) -> None:
        """Create the receiver; `run` joins the processes that share the platform.

        `source` is the bot, as in `Address.source`; `owner` is the unique name of this process.
        """
        self.name, self.check = platform.name, platform.check
        self._platform = platform
        self._source = source
        self._owner = owner
        self._leases = leases
        self._clock = clock
        self._roles: dict[str, ExclusiveRole] = {}
        self._share = 0
        self._members = f"shards of {source} at "
        self._is_due = asyncio.Event()

    @property
    def connection_error(self) -> str | None:
        """Why nothing is received; None for a process that stands by."""
        roles = self._roles.values()
        is_standby = any(one.is_standby for one in roles) and not any(one.is_held for one in roles)
        return None if is_standby else self._platform.connection_error

    async def run(self, intake: Intake) -> None:
        shards = await self._platform.shards()
        member = f"{self._members}{self._owner}"
        jobs: dict[str, asyncio.Task[None]] = {}
        stop_watching = self._leases.on_release(self._note_release)
        try:
            while True:
                self._is_due.clear()
                await self._update_share(member, len(shards))
                await self._give_up_excess(jobs)
                for shard in shards:
                    if shard not in jobs:
                        jobs[shard] = asyncio.create_task(self._run_shard(shard, intake))
                call_off = self._clock.call_later(_COUNT_SECONDS, self._is_due.set)
                pause = asyncio.create_task(self._is_due.wait())
                try:
                    ended, _ = await asyncio.wait(
                        {*jobs.values(), pause}, return_when=asyncio.FIRST_COMPLETED
                    )
                finally:
                    call_off()
                    await cancel_and_wait([pause])
                for job in ended - {pause}:
                    await job  # raises what ended it
                    return
        finally:
            stop_watching()
            await cancel_and_wait(jobs.values())
            self._roles.clear()
            try:
                await self._leases.release(member)
            except StoreError as error:
                _log.warning("store_failed", reason=str(error))

    def _note_release(self, roles: Sequence[str]) -> None:
        if any(role.startswith(self._members) for role in roles):
            self._is_due.set()

    async def _update_share(self, member: str, shards: int) -> None:
        """Count this process's share; if it has grown, ask for free shards at once."""
        before, self._share = self._share, await self._count_share(member, shards)
        if self._share > before:
            for role in self._roles.values():
                role.ask_soon()

    async def _count_share(self, member: str, shards: int) -> int:
        """Return how many shards this process may hold; unchanged while the database is down."""
        try:
            await self._leases.take(member, _MEMBER_SECONDS)
            members = await self._leases.held(self._members)
        except StoreError as error:
            _log.warning("store_failed", reason=str(error))
            return self._share
        return math.ceil(shards / max(1, len(members)))

    async def _give_up_excess(self, jobs: dict[str, asyncio.Task[None]]) -> None:
        held = [shard for shard, role in self._roles.items() if role.is_held]
        for shard in held[self._share :]:
            _log.info("shard_given_up", platform=self.name, shard=shard)
            await cancel_and_wait([jobs.pop(shard)])

    async def _run_shard(self, shard: str, intake: Intake) -> None:
        receive = f"receive {self._source}"
        role = ExclusiveRole(
            *(f"{receive} {shard}", self._leases, self._clock, self._may_take(shard)),
            counted_as=receive,
        )
        self._roles[shard] = role
        try:
            await role.run(lambda: self._platform.run_shard(shard, intake))
        finally:
            del self._roles[shard]

    def _may_take(self, shard: str) -> Callable[[], bool]:
        def may_take() -> bool:
            others = (role.is_held for name, role in self._roles.items() if name != shard)
            return sum(others) < self._share

        return may_take

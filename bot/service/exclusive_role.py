"""Do work in only one process of an installation at a time; the others are standbys.

Examples are receiving from a platform, or from one shard of a sharded platform.
"""

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import structlog

from bot.errors import StoreError
from bot.ports import Clock, Intake, Platform, ShardedPlatform
from bot.runtime.tasks import cancel_and_wait
from bot.storage.leases import SqlRoleLeases
from bot.telemetry.metrics import HELD_ROLES

_log = structlog.get_logger(__name__)
_LEASE_SECONDS = 10.0
_SECONDS_BETWEEN_RENEWALS = 3.0
_SECONDS_BETWEEN_ATTEMPTS = 1.0
"""The interval at which standbys try to take a lease, and processes recount their shares."""
_MEMBER_LEASE_SECONDS = 10.0


@dataclass(eq=False, repr=False)
class ExclusiveRole:
    """Runs work while holding a lease, and stops the work when the lease may be lost."""

    name: str
    leases: SqlRoleLeases
    clock: Clock
    may_take_lease: Callable[[], bool] = lambda: True
    """Returns whether this process should try to take the lease."""
    metric_name: str | None = None
    """The name in metrics, which several roles may share; if None, `name` is used."""
    is_standby: bool = field(default=False, init=False)
    """Whether another process is doing the work."""
    is_held: bool = field(default=False, init=False)
    """Whether this process is doing the work."""

    def __post_init__(self) -> None:
        self._held_roles_gauge = HELD_ROLES.labels(self.metric_name or self.name)
        self._held_until = 0.0  # of the monotonic clock

    async def run(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do the work whenever this process holds the lease, until the work ends or raises."""
        try:
            while True:
                await self._wait_for_lease()
                try:
                    if await self._work_while_held(work):
                        return
                finally:
                    self.is_held = False
                    self._held_roles_gauge.dec()
        finally:
            self.is_standby = self.is_held = False
            with contextlib.suppress(StoreError):  # the lease will expire
                await self.leases.release(self.name)

    async def _wait_for_lease(self) -> None:
        while not (is_taken := self.may_take_lease() and await self._take_lease()):
            if is_taken is not None and not self.is_standby:
                self.is_standby = True
                _log.info("standing_by", role=self.name)
            await self.clock.sleep(_SECONDS_BETWEEN_ATTEMPTS)
        if self.is_standby:
            _log.info("role_taken_over", role=self.name)
        self.is_standby, self.is_held = False, True
        self._held_roles_gauge.inc()

    async def _work_while_held(self, work: Callable[[], Awaitable[None]]) -> bool:
        """Do the work; return False if the lease was lost before the work ended."""
        work_task = asyncio.ensure_future(work())
        renewal_task = asyncio.create_task(self._renew_until_lost())
        try:
            await asyncio.wait([work_task, renewal_task], return_when=asyncio.FIRST_COMPLETED)
            if not work_task.done():
                _log.warning("role_lost", role=self.name)
                return False
        finally:
            await cancel_and_wait([renewal_task])
            if not work_task.done():
                await cancel_and_wait([work_task])
        await work_task
        return True

    async def _renew_until_lost(self) -> None:
        while (seconds_left := self._held_until - self.clock.monotonic()) > 0:
            await self.clock.sleep(min(_SECONDS_BETWEEN_RENEWALS, seconds_left))
            if self.clock.monotonic() >= self._held_until:
                return  # this process was paused, or the database was down
            if await self._take_lease() is False:
                return

    async def _take_lease(self) -> bool | None:
        """Take or renew the lease; return whether it is held, or None if the database failed."""
        asked_at = self.clock.monotonic()
        try:
            is_taken = await self.leases.take(self.name, _LEASE_SECONDS)
        except StoreError as error:
            _log.warning("store_failed", reason=str(error))
            return None
        if is_taken:
            self._held_until = asked_at + _LEASE_SECONDS
        return is_taken


class ExclusiveReceiver:
    """Receives from a platform while this process holds the role for it."""

    def __init__(self, platform: Platform, role: ExclusiveRole) -> None:
        self.name, self.check = platform.name, platform.check
        self._platform = platform
        self._role = role

    @property
    def connection_error(self) -> str | None:
        """The reason why nothing is received; None if all is well or this is a standby."""
        return None if self._role.is_standby else self._platform.connection_error

    async def run(self, intake: Intake) -> None:
        await self._role.run(lambda: self._platform.run(intake))


@dataclass(eq=False, repr=False)
class ShardReceiver:
    """Receives from this process's share of shards, which move between processes by leases."""

    platform: ShardedPlatform
    source: str
    """The bot's name, as in `Address.source`."""
    owner: str
    """The unique name of this process."""
    leases: SqlRoleLeases
    clock: Clock

    def __post_init__(self) -> None:
        self.name, self.check = self.platform.name, self.platform.check
        self._roles: dict[str, ExclusiveRole] = {}
        self._max_shards = 0
        self._member_lease_prefix = f"shards of {self.source} at "

    @property
    def connection_error(self) -> str | None:
        """The reason why nothing is received; None if all is well or this is a standby."""
        roles = self._roles.values()
        is_standby = any(one.is_standby for one in roles) and not any(one.is_held for one in roles)
        return None if is_standby else self.platform.connection_error

    async def run(self, intake: Intake) -> None:
        shards = await self.platform.list_shards()
        member_lease = f"{self._member_lease_prefix}{self.owner}"
        shard_tasks: dict[str, asyncio.Task[None]] = {}
        try:
            while True:
                self._max_shards = await self._compute_max_shards(member_lease, len(shards))
                await self._give_up_excess_shards(shard_tasks)
                for shard in shards:
                    if shard not in shard_tasks:
                        shard_tasks[shard] = asyncio.create_task(self._run_shard(shard, intake))
                pause_task = asyncio.create_task(self.clock.sleep(_SECONDS_BETWEEN_ATTEMPTS))
                try:
                    ended_tasks, _ = await asyncio.wait(
                        {*shard_tasks.values(), pause_task}, return_when=asyncio.FIRST_COMPLETED
                    )
                finally:
                    await cancel_and_wait([pause_task])
                for task in ended_tasks - {pause_task}:
                    await task  # raises the error that ended it
                    return
        finally:
            await cancel_and_wait(shard_tasks.values())
            self._roles.clear()
            with contextlib.suppress(StoreError):  # the lease will expire
                await self.leases.release(member_lease)

    async def _compute_max_shards(self, member_lease: str, shard_count: int) -> int:
        """Return how many shards this process should receive; on errors, the previous number."""
        try:
            await self.leases.take(member_lease, _MEMBER_LEASE_SECONDS)
            members = await self.leases.list_held_roles(self._member_lease_prefix)
        except StoreError as error:
            _log.warning("store_failed", reason=str(error))
            return self._max_shards
        return math.ceil(shard_count / max(1, len(members)))

    async def _give_up_excess_shards(self, shard_tasks: dict[str, asyncio.Task[None]]) -> None:
        held_shards = [shard for shard, role in self._roles.items() if role.is_held]
        for shard in held_shards[self._max_shards :]:
            _log.info("shard_given_up", platform=self.name, shard=shard)
            await cancel_and_wait([shard_tasks.pop(shard)])

    async def _run_shard(self, shard: str, intake: Intake) -> None:
        def may_take_shard() -> bool:
            held_count = sum(one.is_held for name, one in self._roles.items() if name != shard)
            return held_count < self._max_shards

        role_name = f"receive {self.source}"
        role = self._roles[shard] = ExclusiveRole(
            f"{role_name} {shard}", self.leases, self.clock, may_take_shard, metric_name=role_name
        )
        try:
            await role.run(lambda: self.platform.run_shard(shard, intake))
        finally:
            del self._roles[shard]

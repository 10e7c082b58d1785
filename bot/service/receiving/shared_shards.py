"""A platform whose connections several processes share out among them, as evenly as they divide."""

import asyncio
import math
from collections.abc import Callable, Sequence

import structlog
from typing_extensions import override

from bot.chat.incoming import Request
from bot.errors import StoreError
from bot.ports import Clock, Intake, Platform, RoleLeases, ShardedPlatform, Surface
from bot.runtime.tasks import cancel_and_wait
from bot.service.exclusive_role import ExclusiveRole

_log = structlog.get_logger(__name__)
_MEMBER_SECONDS = 10.0
_COUNT_SECONDS = 2.0
"""So often each process counts how many there are, unless one tells that it ends."""


class SharedShards(Platform):
    """Receives over this process's share of the connections; each is held by a lease.

    A process that has more than its share gives connections up: their sessions are resumed by
    whoever takes them, so that this costs no new session and no message.
    """

    def __init__(
        self, platform: ShardedPlatform, source: str, owner: str, leases: RoleLeases, clock: Clock
    ) -> None:
        """Take a platform and who shares it.

        Args:
            platform: what is received from.
            source: the bot, as in `Address.source`; a part of the names of leases.
            owner: the name of this process, which no other one has.
            leases: who holds what.
            clock: time.
        """
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
    @override
    def name(self) -> str:
        return self._platform.name

    @property
    @override
    def surface(self) -> Surface:
        return self._platform.surface

    @property
    @override
    def connection_error(self) -> str | None:
        """Why nothing is received; a process that stands by is as it should be."""
        roles = self._roles.values()
        is_standby = any(one.is_standby for one in roles) and not any(one.is_held for one in roles)
        return None if is_standby else self._platform.connection_error

    @override
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

    @override
    async def check(self) -> str:
        return await self._platform.check()

    @override
    async def close(self) -> None:
        await self._platform.close()

    @override
    async def is_admin(self, incoming: Request) -> bool:
        return await self._platform.is_admin(incoming)

    def _note_release(self, roles: Sequence[str]) -> None:
        if any(role.startswith(self._members) for role in roles):
            self._is_due.set()

    async def _update_share(self, member: str, shards: int) -> None:
        """Count it; if it has grown, free connections are asked for at once."""
        before, self._share = self._share, await self._count_share(member, shards)
        if self._share > before:
            for role in self._roles.values():
                role.ask_soon()

    async def _count_share(self, member: str, shards: int) -> int:
        """Return how many shards this process may hold; as before while the database is away."""
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

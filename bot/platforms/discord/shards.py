"""Shards: their channels, their stored sessions, and when they may IDENTIFY.

Discord resets the token of a bot that identifies more often than `session_start_limit` allows, and
accepts `max_concurrency` IDENTIFYs every 5 seconds, one per remainder of the shard number. See
https://discord.com/developers/docs/events/gateway#sharding, #resuming and
#session-start-limit-object.
"""

import asyncio
import math
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import structlog

from bot.errors import StoreError
from bot.platforms.discord.rest import RestClient, RestEndpoint, decode_response
from bot.platforms.spec import TakeLease
from bot.ports import Clock
from bot.telemetry.metrics import IDENTIFIES_LEFT
from bot.value_class import value_class

_log = structlog.get_logger(__name__)
_GATEWAY = RestEndpoint("GET", "/gateway/bot", resource_ids=0)
_RESERVED_SHARE = 0.1
"""The share of the budget that is left to the operator."""
_SECONDS_BETWEEN = 5.5  # Discord counts 5 s
_MAX_TURN_SECONDS = 60.0
_ASK_SECONDS = 1.0
_ASK_AGAIN_SECONDS = 60.0  # whether there is a new budget


@value_class
class Shard:
    """One of a bot's gateway connections, which serves some of the guilds."""

    number: int = 0
    count: int = 1

    @property
    def name(self) -> str:
        """Its name in logs, leases and stored rows: "0/2"."""
        return f"{self.number}/{self.count}"

    @classmethod
    def from_name(cls, name: str) -> "Shard":
        number, _, count = name.partition("/")
        return cls(int(number), int(count))

    def has_guild(self, guild_id: int) -> bool:
        """Return whether this shard receives a guild's events; 0 means direct messages."""
        return (guild_id >> 22) % self.count == self.number


class GatewaySession(msgspec.Struct, frozen=True):
    """A resumable session; everything up to its sequence number is stored."""

    id: str
    sequence: int
    resume_url: str

    def to_stored(self) -> str:
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_stored(cls, stored: str) -> "GatewaySession | None":
        """Parse a stored session; None if it cannot be read."""
        try:
            return msgspec.json.decode(stored, type=cls)
        except msgspec.DecodeError:
            return None


class SessionStarts(msgspec.Struct):
    """Discord's `session_start_limit`; times are in milliseconds."""

    total: int
    remaining: int
    reset_after: int
    max_concurrency: int = 1


class GatewayInfo(msgspec.Struct):
    url: str
    shards: int
    session_start_limit: SessionStarts


async def read_gateway_info(rest: RestClient, clock: Clock) -> GatewayInfo:
    """Read the gateway info from Discord; raises `PlatformError`."""
    info = decode_response(await rest.call(_GATEWAY), GatewayInfo)
    show_identifies_left(info.session_start_limit, clock)
    return info


def show_identifies_left(starts: SessionStarts, clock: Clock) -> None:
    """Export the remaining IDENTIFY budget; after the reset, the whole budget."""
    reset_at = clock.monotonic() + starts.reset_after / 1000
    IDENTIFIES_LEFT.labels("discord").set_function(
        lambda: starts.remaining if clock.monotonic() < reset_at else starts.total
    )


class IdentifyLimits:
    """Lets one process at a time IDENTIFY, among those that share the leases."""

    def __init__(
        self, rest: RestClient, take_lease: TakeLease | None, bot: str, clock: Clock
    ) -> None:
        self._rest = rest
        self._take_lease = take_lease
        self._bot = bot
        self._clock = clock
        self._locks: dict[int, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._free_at: dict[int, float] = {}  # of the monotonic clock

    @asynccontextmanager
    async def turn(self, shard_number: int) -> AsyncIterator[str]:
        """Wait until the block may IDENTIFY a shard; yields the gateway's address."""
        gateway = await self._wait_for_budget()
        bucket = shard_number % max(1, gateway.session_start_limit.max_concurrency)
        role = f"identify {self._bot} {bucket}"
        async with self._locks[bucket]:
            while (wait := self._free_at.get(bucket, 0.0) - self._clock.monotonic()) > 0:
                await self._clock.sleep(wait)
            while not await self._take(role, _MAX_TURN_SECONDS):
                await self._clock.sleep(_ASK_SECONDS)
            try:
                yield gateway.url
            finally:
                self._free_at[bucket] = self._clock.monotonic() + _SECONDS_BETWEEN
                await self._take(role, _SECONDS_BETWEEN)  # expires when the next one may IDENTIFY

    async def _wait_for_budget(self) -> GatewayInfo:
        while True:
            gateway = await read_gateway_info(self._rest, self._clock)
            starts = gateway.session_start_limit
            if starts.remaining > math.floor(starts.total * _RESERVED_SHARE):
                return gateway
            seconds = starts.reset_after / 1000
            _log.error("discord_identifies_used_up", left=starts.remaining, new_in_seconds=seconds)
            await self._clock.sleep(min(seconds + _ASK_SECONDS, _ASK_AGAIN_SECONDS))

    async def _take(self, role: str, seconds: float) -> bool:
        if self._take_lease is None:
            return True
        try:
            return await self._take_lease(role, seconds)
        except StoreError as error:
            _log.warning("store_failed", reason=str(error))
            return False

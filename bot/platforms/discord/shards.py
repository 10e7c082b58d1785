"""Shards (gateway connections): which guilds they serve, stored sessions, and IDENTIFY limits.

IDENTIFY is the request that starts a session. If a bot sends it more often than
`session_start_limit` allows, Discord resets the bot's token. Every 5 seconds, Discord accepts one
IDENTIFY for each remainder of the shard number divided by `max_concurrency`. See
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
from bot.telemetry.metrics import SESSION_STARTS_LEFT
from bot.value_class import value_class

_log = structlog.get_logger(__name__)
_GET_GATEWAY = RestEndpoint("GET", "/gateway/bot", bucket_id_count=0)
_RESERVED_IDENTIFY_SHARE = 0.1
"""The share of Discord's daily limit that is reserved for restarts by the operator."""
_SECONDS_BETWEEN_IDENTIFIES = 5.5  # a little more than the 5 s that Discord demands
_IDENTIFY_LEASE_SECONDS = 60.0
_LEASE_RETRY_SECONDS = 1.0
_BUDGET_CHECK_SECONDS = 60.0  # how often to check whether Discord has raised the limit


@value_class
class Shard:
    """One of a bot's gateway connections; it receives the events of some of the bot's guilds."""

    number: int = 0
    count: int = 1

    @property
    def name(self) -> str:
        """The shard's name in logs, leases and the database, such as "0/2"."""
        return f"{self.number}/{self.count}"

    @classmethod
    def from_name(cls, name: str) -> "Shard":
        number, _, count = name.partition("/")
        return cls(int(number), int(count))

    def has_guild(self, guild_id: int) -> bool:
        """Return whether this shard receives the events of a guild; 0 means direct messages."""
        return (guild_id >> 22) % self.count == self.number


class GatewaySession(msgspec.Struct, frozen=True):
    """A session that can be resumed, and the sequence number of its last stored event."""

    id: str
    sequence: int
    resume_url: str

    def to_stored_text(self) -> str:
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_stored_text(cls, text: str) -> "GatewaySession | None":
        """Parse a stored session, or return None if it is malformed."""
        try:
            return msgspec.json.decode(text, type=cls)
        except msgspec.DecodeError:
            return None


class SessionStartLimit(msgspec.Struct):
    """Discord's limit on new sessions (`session_start_limit`), with times in milliseconds."""

    total: int
    remaining: int
    reset_after: int
    max_concurrency: int = 1


class GatewayInfo(msgspec.Struct):
    url: str
    shards: int
    session_start_limit: SessionStartLimit


async def read_gateway_info(rest: RestClient, clock: Clock) -> GatewayInfo:
    """Read the gateway's URL and limits from Discord; raises `PlatformError`."""
    gateway_info = decode_response(await rest.call(_GET_GATEWAY), GatewayInfo)
    export_identify_requests_left(gateway_info.session_start_limit, clock)
    return gateway_info


def export_identify_requests_left(limit: SessionStartLimit, clock: Clock) -> None:
    """Export the number of IDENTIFY requests left as a metric; after a reset, it is the total."""
    reset_time = clock.monotonic() + limit.reset_after / 1000
    SESSION_STARTS_LEFT.labels("discord").set_function(
        lambda: limit.remaining if clock.monotonic() < reset_time else limit.total
    )


class IdentifyLimits:
    """Keeps the IDENTIFY requests of all processes together within Discord's limits."""

    def __init__(
        self, rest: RestClient, take_lease: TakeLease | None, bot_source_name: str, clock: Clock
    ) -> None:
        self._rest = rest
        self._take_lease = take_lease
        self._bot_source_name = bot_source_name
        self._clock = clock
        self._locks_by_bucket: dict[int, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._free_after: dict[int, float] = {}  # by bucket, in monotonic time

    @asynccontextmanager
    async def gateway_url_at_turn(self, shard_number: int) -> AsyncIterator[str]:
        """Yield the gateway URL once a shard may IDENTIFY; lock its bucket until the block ends."""
        gateway_info = await self._wait_for_identify_budget()
        bucket = shard_number % max(1, gateway_info.session_start_limit.max_concurrency)
        lease_name = f"identify {self._bot_source_name} {bucket}"
        async with self._locks_by_bucket[bucket]:
            while (wait_seconds := self._free_after.get(bucket, 0.0) - self._clock.monotonic()) > 0:
                await self._clock.sleep(wait_seconds)
            while not await self._try_to_take_lease(lease_name, _IDENTIFY_LEASE_SECONDS):
                await self._clock.sleep(_LEASE_RETRY_SECONDS)
            try:
                yield gateway_info.url
            finally:
                self._free_after[bucket] = self._clock.monotonic() + _SECONDS_BETWEEN_IDENTIFIES
                # The lease expires when another shard may IDENTIFY.
                await self._try_to_take_lease(lease_name, _SECONDS_BETWEEN_IDENTIFIES)

    async def _wait_for_identify_budget(self) -> GatewayInfo:
        while True:
            gateway_info = await read_gateway_info(self._rest, self._clock)
            limit = gateway_info.session_start_limit
            if limit.remaining > math.floor(limit.total * _RESERVED_IDENTIFY_SHARE):
                return gateway_info
            seconds = limit.reset_after / 1000
            _log.error(
                "discord_identify_limit_reached", left=limit.remaining, new_in_seconds=seconds
            )
            await self._clock.sleep(min(seconds + _LEASE_RETRY_SECONDS, _BUDGET_CHECK_SECONDS))

    async def _try_to_take_lease(self, lease_name: str, seconds: float) -> bool:
        if self._take_lease is None:
            return True
        try:
            return await self._take_lease(lease_name, seconds)
        except StoreError as error:
            _log.warning("store_failed", reason=str(error))
            return False

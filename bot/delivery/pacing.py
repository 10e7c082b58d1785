"""Keep calls within a platform's rate limits, counted across all processes.

Limits apply to scopes: one kind of call in a chat or shared bucket (`BucketSurface`), a whole chat,
or a whole bot. If the platform refuses a call, its scope is blocked for as long as the platform
demands.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import lru_cache, partial
from typing import Literal, TypeAlias, TypeVar

from pydantic import BaseModel, Field
from typing_extensions import override

from bot.chat.incoming import Address
from bot.chat.outgoing import Limits, MessageContent, MessageSearch, OutgoingMessage
from bot.chat.rate import CallWindow, RateLimitScope
from bot.errors import RateLimited, ResponseRefused
from bot.ports import BucketSurface, Clock, RateLimits, Surface
from bot.telemetry.metrics import RATE_LIMIT_REFUSALS, RATE_LIMIT_SECONDS


class DeliverySettings(BaseModel, extra="forbid"):
    """Settings for delivering messages."""

    settle_seconds: float = Field(
        10,
        ge=0,
        description="How many seconds to wait, when a request got no response, before checking "
        "whether the message arrived; the platform may still be working on the request.",
    )
    pacing: Literal["strict", "learned"] = Field(
        "strict",
        description="When to apply a platform's approximate rate limits (Telegram: 10 calls in"
        " 10 s in a chat, 30 a second in all; Discord: 50 a second). `strict`: always;"
        " `learned`: for an hour after the platform has refused a call.",
    )
    answerable_minutes: float = Field(
        5,
        ge=0,
        description="After an outage, platforms deliver the messages that were sent in the"
        " meantime. Messages older than this many minutes are not answered, but"
        " kept as context for later questions.",
    )


_MAX_CONCURRENT_LIMIT_CHECKS = 32
"""The maximum number of concurrent limit checks, and of rows that a worker pool claims."""
_MIN_HOLD_SECONDS = 0.05
_MAX_HOLD_SECONDS = 1.0
_SECONDS_BETWEEN_ADMISSIONS = 5.0
"""The interval at which some lanes on hold are admitted although their bot is rate limited."""
_MAX_IDLE_SECONDS = 60.0
"""A lane without requests for this long leaves the queue: another process has served it."""
_MAX_QUEUE_LENGTH = 10_000
Response = TypeVar("Response")
_CallWindows: TypeAlias = tuple[CallWindow, ...]
_MAX_CACHED_LIMITS = 64  # cached results for different `Limits`, of which a platform has a few
_MAX_SLEEP_SECONDS = 2.0
"""The longest wait; beyond it, `RateLimited` makes the sender reschedule the row."""
_MIN_WAIT_SECONDS = 0.05


class CallQueue:
    """Queues this process's calls per bot (`source`) and chat (`lane`) for the rate limit."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._limit_check_counts = Counter[str]()  # by source, like the next four
        self._waiting_events: defaultdict[str, dict[str, asyncio.Event]] = defaultdict(dict)
        """By source and lane: the event to set when a waiting call is first in the queue."""
        self._blocked_until: dict[str, float] = {}
        self._next_admission_at: dict[str, float] = {}
        self._admissions_left = Counter[str]()
        self._wait_times_by_lane: dict[str, tuple[float, float]] = {}
        """When each lane started to wait, and when it last checked the limit."""

    @contextmanager
    def count_limit_check(self, source: str) -> Iterator[None]:
        """Count a check of the rate limit as running during the block."""
        self._limit_check_counts[source] += 1
        try:
            yield
        finally:
            self._limit_check_counts[source] -= 1

    def has_waiting_calls(self, source: str) -> bool:
        """Return whether any call of a bot is waiting in this process."""
        return bool(self._waiting_events[source])

    @contextmanager
    def queue_call(self, source: str, lane: str) -> Iterator[asyncio.Event]:
        """Queue a call during the block; yield an event that is set when the call is first."""
        self._enter_queue(lane)
        events = self._waiting_events[source]
        events[lane] = front_reached = asyncio.Event()
        try:
            yield front_reached
        finally:
            if events.get(lane) is front_reached:
                del events[lane]
            if events:
                events[min(events, key=self._get_wait_start)].set()

    def is_first(self, source: str, lane: str) -> bool:
        """Return whether no other call of the bot has waited longer than the chat's call."""
        return min(self._waiting_events[source], key=self._get_wait_start) == lane

    def leave_queue(self, lane: str) -> None:
        self._wait_times_by_lane.pop(lane, None)

    def record_block(self, source: str, seconds: float) -> None:
        """Record that a bot's calls are blocked for some seconds."""
        self._blocked_until[source] = self._clock.monotonic() + seconds

    def seconds_until_admitted(self, source: str, lane: str) -> float:
        """Return how many seconds the sender must wait before it claims a row for a chat."""
        now = self._clock.monotonic()
        blocked_until = self._blocked_until.get(source, now)
        is_limited = self.has_waiting_calls(source) or blocked_until > now
        if not is_limited and self._limit_check_counts[source] < _MAX_CONCURRENT_LIMIT_CHECKS:
            self._next_admission_at.pop(source, None)
            self._admissions_left.pop(source, None)
            return 0.0
        wait_start = self._enter_queue(lane)
        wait_starts = [self._get_wait_start(one) for one in self._waiting_events[source]]
        if (
            wait_start < max(wait_starts, default=0.0)
            and sum(one < wait_start for one in wait_starts) < _MAX_CONCURRENT_LIMIT_CHECKS
        ):
            return 0.0
        if now >= self._next_admission_at.setdefault(source, now + _SECONDS_BETWEEN_ADMISSIONS):
            self._next_admission_at[source] = now + _SECONDS_BETWEEN_ADMISSIONS
            self._admissions_left[source] = _MAX_CONCURRENT_LIMIT_CHECKS
        if self._admissions_left[source] > 0:
            self._admissions_left[source] -= 1
            return 0.0
        return min(max(blocked_until - now, _MIN_HOLD_SECONDS), _MAX_HOLD_SECONDS)

    def _get_wait_start(self, lane: str) -> float:
        wait_times = self._wait_times_by_lane.get(lane)
        return wait_times[0] if wait_times else self._clock.monotonic()

    def _enter_queue(self, lane: str) -> float:
        """Return when a chat started to wait; add the chat to the queue if it is missing."""
        now = self._clock.monotonic()
        wait_start, checked_at = self._wait_times_by_lane.get(lane, (now, now))
        if checked_at < now - _MAX_IDLE_SECONDS:
            wait_start = now
        self._wait_times_by_lane[lane] = wait_start, now
        if len(self._wait_times_by_lane) > _MAX_QUEUE_LENGTH:
            items, min_checked_at = self._wait_times_by_lane.items(), now - _MAX_IDLE_SECONDS
            self._wait_times_by_lane = {key: one for key, one in items if one[1] >= min_checked_at}
        return wait_start


@dataclass(eq=False)
class RateLimitedSurface(Surface):
    """Wraps a surface; each call waits until the platform's rate limits allow it.

    If `is_best_effort`, as for live edits of a growing answer, calls raise `RateLimited` instead of
    waiting, and leave a part of each limit to the sender. With learned pacing, limits that are only
    approximately known apply for an hour after the platform has refused a call.
    """

    surface: Surface
    rate_limits: RateLimits
    """Counts calls across all processes."""
    clock: Clock
    _: KW_ONLY
    is_best_effort: bool = False
    settings: DeliverySettings = field(default_factory=DeliverySettings)
    call_queue: CallQueue | None = None

    def __post_init__(self) -> None:
        self._bucket_selector = self.surface if isinstance(self.surface, BucketSurface) else None
        self._get_call_windows = lru_cache(_MAX_CACHED_LIMITS)(self._pick_call_windows)
        self._queue = self.call_queue or CallQueue(self.clock)

    @override
    def limits(self, address: Address) -> Limits:
        return self.surface.limits(address)

    @override
    async def send(self, message: OutgoingMessage) -> str:
        address = message.address
        if message.interaction is not None and not self.limits(address).responses_count_as_calls:
            with suppress(ResponseRefused):
                return await self._send_response(address, partial(self.surface.send, message))
            message = replace(message, interaction=None)
        bucket_selector, bucket = self._bucket_selector, address.lane
        if bucket_selector is not None:
            bucket = await bucket_selector.select_send_bucket(message)
        return await self._make_call(address, f"{bucket} send", partial(self.surface.send, message))

    @override
    async def edit(
        self, address: Address, message_id: str, content: MessageContent, *, interaction: str | None
    ) -> None:
        send_edit = partial(self.surface.edit, address, message_id, content)
        if interaction is not None and not self.limits(address).responses_count_as_calls:
            with suppress(ResponseRefused):
                await self._send_response(address, partial(send_edit, interaction=interaction))
                return
            interaction = None
        bucket_selector, bucket = self._bucket_selector, address.lane
        if bucket_selector is not None:
            bucket = await bucket_selector.select_edit_bucket(
                address, message_id, content, interaction=interaction
            )
        await self._make_call(
            address, f"{bucket} edit", partial(send_edit, interaction=interaction)
        )

    @override
    async def delete(self, address: Address, message_id: str) -> None:
        route = f"{address.lane} delete"
        await self._make_call(address, route, lambda: self.surface.delete(address, message_id))

    @override
    async def react(self, address: Address, message_id: str, emoji: str) -> None:
        send_reaction = partial(self.surface.react, address, message_id, emoji)
        await self._make_call(address, f"{address.lane} react", send_reaction)

    @override
    async def draft(self, address: Address, draft_id: int, content: MessageContent) -> None:
        show_draft = partial(self.surface.draft, address, draft_id, content)
        await self._make_call(address, f"{address.lane} draft", show_draft)

    @override
    async def typing(self, address: Address) -> None:
        show_typing = partial(self.surface.typing, address)
        await self._make_call(address, f"{address.lane} typing", show_typing, is_required=False)

    @override
    async def find(self, message: OutgoingMessage, search: MessageSearch) -> str | None:
        address, search_message = message.address, partial(self.surface.find, message, search)
        return await self._make_call(address, f"{address.lane} find", search_message)

    async def _send_response(
        self, address: Address, request: Callable[[], Awaitable[Response]]
    ) -> Response:
        """Send a response that counts toward no limit; raise `RateLimited` if calls are blocked."""
        route = f"{address.lane} respond"
        scopes = [RateLimitScope(key, ()) for key in (route, address.lane, address.source)]
        if (wait_seconds := await self.rate_limits.seconds_until_call(scopes)) > 0:
            raise RateLimited(wait_seconds)
        return await self._send_request(address, route, request)

    async def _make_call(
        self,
        address: Address,
        route: str,
        request: Callable[[], Awaitable[Response]],
        *,
        is_required: bool = True,
    ) -> Response:
        lane, source, limits = address.lane, address.source, self.surface.limits(address)
        route_windows, chat_windows, bot_windows = self._get_call_windows(
            limits, is_required=is_required
        )
        scopes = [
            RateLimitScope(route, route_windows),
            RateLimitScope(lane, chat_windows),
            RateLimitScope(source, bot_windows, is_cross_process=True),
        ]
        if is_required and not self.is_best_effort:
            await self._wait_for_limit(source, lane, scopes)
        elif (wait_seconds := await self.rate_limits.take_call(scopes)) > 0:
            raise RateLimited(wait_seconds)
        return await self._send_request(address, route, request)

    async def _send_request(
        self, address: Address, route: str, request: Callable[[], Awaitable[Response]]
    ) -> Response:
        lane, source = address.lane, address.source
        try:
            return await request()
        except RateLimited as error:
            RATE_LIMIT_REFUSALS.labels(address.platform, error.scope).inc()
            RATE_LIMIT_SECONDS.labels(address.platform).inc(error.retry_after_seconds)
            blocked_scope = {"route": route, "chat": lane, "bot": source}[error.scope]
            await self.rate_limits.block_calls(blocked_scope, error.retry_after_seconds)
            if error.scope == "chat":  # the limit that was exceeded may be the bot's
                await self.rate_limits.block_calls(source, 0.0)
            raise

    def _pick_call_windows(self, limits: Limits, *, is_required: bool) -> tuple[_CallWindows, ...]:
        """Return the limits for one kind of call in a chat, for the whole chat, and for the bot."""
        learns_limits, is_best_effort = self.settings.pacing == "learned", self.is_best_effort
        if not is_required:
            windows = limits.bot_call_windows if limits.typing_counts_as_call else ()
            windows = _apply_pacing(windows, learns_limits=learns_limits, leaves_reserve=True)
            return (), (), windows
        learns_chat_limits = learns_limits and not is_best_effort
        apply_pacing = partial(_apply_pacing, leaves_reserve=is_best_effort)
        return (
            apply_pacing(limits.route_call_windows, learns_limits=learns_chat_limits),
            apply_pacing(limits.chat_call_windows, learns_limits=learns_chat_limits),
            apply_pacing(limits.bot_call_windows, learns_limits=learns_limits),
        )

    async def _wait_for_limit(self, source: str, lane: str, scopes: list[RateLimitScope]) -> None:
        """Wait in the bot's queue until a call is allowed; raises `RateLimited` after 2 s."""
        deadline = self.clock.monotonic() + _MAX_SLEEP_SECONDS
        if self._queue.has_waiting_calls(source) or await self._take_call(source, scopes) > 0:
            while (wait_seconds := await self._wait_in_queue(source, lane, scopes, deadline)) > 0:
                await self._sleep(wait_seconds, deadline)
        self._queue.leave_queue(lane)

    async def _wait_in_queue(
        self, source: str, lane: str, scopes: list[RateLimitScope], deadline: float
    ) -> float:
        """Wait until the bot's own limit allows a call.

        Return 0 if the call was admitted, or else the seconds until the chat's limit allows it.
        """
        shared_scopes = [scope for scope in scopes if scope.is_cross_process]
        with self._queue.queue_call(source, lane) as front_reached:
            while True:
                if not self._queue.is_first(source, lane):
                    await self._wait_for_front(front_reached, deadline)
                    continue
                if (chat_wait_seconds := await self._take_call(source, scopes)) <= 0:
                    return 0.0
                with self._queue.count_limit_check(source):
                    bot_wait_seconds = await self.rate_limits.seconds_until_call(shared_scopes)
                if bot_wait_seconds <= 0:
                    return chat_wait_seconds
                self._queue.record_block(source, bot_wait_seconds)
                await self._sleep(bot_wait_seconds, deadline)

    async def _take_call(self, source: str, scopes: list[RateLimitScope]) -> float:
        with self._queue.count_limit_check(source):
            return await self.rate_limits.take_call(scopes)

    async def _wait_for_front(self, front_reached: asyncio.Event, deadline: float) -> None:
        seconds_left = deadline - self.clock.monotonic()
        if seconds_left <= 0:
            raise RateLimited(_MIN_WAIT_SECONDS)
        cancel_timer = self.clock.call_later(seconds_left, front_reached.set)
        try:
            await front_reached.wait()
        finally:
            cancel_timer()
        front_reached.clear()

    async def _sleep(self, seconds: float, deadline: float) -> None:
        if self.clock.monotonic() + seconds > deadline:
            raise RateLimited(seconds)
        await self.clock.sleep(seconds)


def _apply_pacing(
    windows: _CallWindows, *, learns_limits: bool, leaves_reserve: bool
) -> _CallWindows:
    return tuple(
        replace(
            one,
            is_learned=one.is_learned and learns_limits,
            reserved_count=one.reserved_count if leaves_reserve else 0,
        )
        for one in windows
    )

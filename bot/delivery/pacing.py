"""Keep calls within a platform's rate limits, counted across all processes.

A refused call blocks its scope for as long as the platform says. A scope is a kind of call in a
chat or in a shared bucket (`BucketSurface`), the chat, or the bot.
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
from bot.chat.rate import CallScope, CallWindow
from bot.errors import RateLimited, ResponseRefused
from bot.ports import BucketSurface, Clock, DraftingSurface, RateLimits, Surface
from bot.telemetry.metrics import RATE_LIMIT_REFUSALS, RATE_LIMIT_SECONDS


class DeliverySettings(BaseModel, extra="forbid"):
    """How messages are delivered."""

    settle_seconds: float = Field(
        10,
        ge=0,
        description="How long after a request without a response the platform may still carry it"
        " out. Only then is it checked whether the message arrived.",
    )
    pacing: Literal["strict", "learned"] = Field(
        "strict",
        description="When a platform's approximate rates hold for what is sent (Telegram: 10 calls"
        " in 10 s in a chat, 30 a second in all; Discord: 50 a second). `strict`: always;"
        " `learned`: in the hour after the platform has refused a call.",
    )
    answerable_minutes: float = Field(
        5,
        ge=0,
        description="How old a message may be that a platform delivers only when the service is"
        " back. An older one is not answered, only kept as background for later questions.",
    )


_MAX_ASKING = 32
"""As many as a pool claims at once: their answers tell whether to take more."""
_MIN_SECONDS = 0.05
_MAX_SECONDS = 1.0
_MAX_HOLD_SECONDS = 5.0
"""After this time, held lanes join rows that are taken as soon as they are queued."""
_MAX_PLACE_SECONDS = 60.0
"""A lane that has not asked for this long was sent by another process."""
_MAX_PLACES = 10_000
Response = TypeVar("Response")
_Windows: TypeAlias = tuple[tuple[CallWindow, ...], tuple[CallWindow, ...], tuple[CallWindow, ...]]
_MAX_FORMS = 64  # of limits: a platform has a few
_MAX_SLEEP_SECONDS = 2.0
"""A longer wait is raised, so that the outbox reschedules the row."""
_MIN_WAIT_SECONDS = 0.05


class WaitingCalls:
    """Each bot's calls that are requesting a rate-limit slot or waiting for one."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._asking = Counter[str]()  # by `Address.source`, as all below
        self._waiting: defaultdict[str, dict[str, asyncio.Event]] = defaultdict(dict)
        """By source and lane: the event that is set when a waiting call comes first."""
        self._ends_at: dict[str, float] = {}
        self._joins_at: dict[str, float] = {}
        self._joining = Counter[str]()
        self._places: dict[str, tuple[float, float]] = {}
        """By lane: since when it waits, and when it last asked."""

    @contextmanager
    def asking(self, source: str) -> Iterator[None]:
        """Count a call as requesting a slot during the block."""
        self._asking[source] += 1
        try:
            yield
        finally:
            self._asking[source] -= 1

    def are_waiting(self, source: str) -> bool:
        """Return whether any of a bot's calls are waiting in this process."""
        return bool(self._waiting[source])

    @contextmanager
    def waiting(self, source: str, lane: str) -> Iterator[asyncio.Event]:
        """Queue a call; the event is set when it is first in the queue."""
        self._start_waiting(lane)
        waiting = self._waiting[source]
        waiting[lane] = changed = asyncio.Event()
        try:
            yield changed
        finally:
            if waiting.get(lane) is changed:
                del waiting[lane]
            if waiting:
                waiting[min(waiting, key=self._waiting_since)].set()

    def is_first(self, source: str, lane: str) -> bool:
        """Return whether no other call in this process has waited longer."""
        return min(self._waiting[source], key=self._waiting_since) == lane

    def leave_queue(self, lane: str) -> None:
        self._places.pop(lane, None)

    def note_blocked(self, source: str, seconds: float) -> None:
        """Block a bot's calls for some seconds."""
        self._ends_at[source] = self._clock.monotonic() + seconds

    def admit(self, source: str, lane: str) -> float:
        """Return 0 if one of the lane's rows may be taken now, else the seconds to wait."""
        now = self._clock.monotonic()
        ends_at = self._ends_at.get(source, now)
        is_limited = self.are_waiting(source) or ends_at > now
        if not is_limited and self._asking[source] < _MAX_ASKING:
            self._joins_at.pop(source, None)
            self._joining.pop(source, None)
            return 0.0
        since = self._start_waiting(lane)
        places = [self._waiting_since(one) for one in self._waiting[source]]
        if since < max(places, default=0.0) and sum(one < since for one in places) < _MAX_ASKING:
            return 0.0
        if now >= self._joins_at.setdefault(source, now + _MAX_HOLD_SECONDS):
            self._joins_at[source] = now + _MAX_HOLD_SECONDS
            self._joining[source] = _MAX_ASKING
        if self._joining[source] > 0:
            self._joining[source] -= 1
            return 0.0
        return min(max(ends_at - now, _MIN_SECONDS), _MAX_SECONDS)

    def _waiting_since(self, lane: str) -> float:
        return self._places[lane][0] if lane in self._places else self._clock.monotonic()

    def _start_waiting(self, lane: str) -> float:
        """Return when a lane started waiting; a new lane joins the queue."""
        now = self._clock.monotonic()
        since, asked_at = self._places.get(lane, (now, now))
        if asked_at < now - _MAX_PLACE_SECONDS:
            since = now
        self._places[lane] = since, now
        if len(self._places) > _MAX_PLACES:
            latest = now - _MAX_PLACE_SECONDS
            self._places = {key: one for key, one in self._places.items() if one[1] >= latest}
        return since


@dataclass(eq=False)
class RateLimitedSurface(Surface, DraftingSurface):
    """A surface whose calls wait until the platform allows them.

    With `best_effort`, for live edits, it never waits, and it leaves some calls to the outbox.
    With learned pacing, approximate limits apply to the outbox only in the hour after a refusal.
    """

    surface: Surface
    rates: RateLimits
    """Counts the calls of all processes."""
    clock: Clock
    _: KW_ONLY
    best_effort: bool = False
    settings: DeliverySettings = field(default_factory=DeliverySettings)
    waiting: WaitingCalls | None = None

    def __post_init__(self) -> None:
        self._buckets = self.surface if isinstance(self.surface, BucketSurface) else None
        self._windows = lru_cache(_MAX_FORMS)(self._windows_of)
        self._waiting = self.waiting or WaitingCalls(self.clock)

    @override
    def limits(self, address: Address) -> Limits:
        return self.surface.limits(address)

    @override
    async def send(self, message: OutgoingMessage) -> str:
        address = message.address
        if message.interaction is not None and not self.limits(address).counts_responses:
            with suppress(ResponseRefused):
                return await self._respond(address, partial(self.surface.send, message))
            message = replace(message, interaction=None)
        buckets, bucket = self._buckets, address.lane
        if buckets is not None:
            bucket = await buckets.send_bucket(message)
        return await self._call(address, f"{bucket} send", partial(self.surface.send, message))

    @override
    async def edit(
        self, address: Address, message_id: str, content: MessageContent, *, interaction: str | None
    ) -> None:
        edit = partial(self.surface.edit, address, message_id, content)
        if interaction is not None and not self.limits(address).counts_responses:
            with suppress(ResponseRefused):
                await self._respond(address, partial(edit, interaction=interaction))
                return
            interaction = None
        buckets, bucket = self._buckets, address.lane
        if buckets is not None:
            bucket = await buckets.edit_bucket(
                address, message_id, content, interaction=interaction
            )
        await self._call(address, f"{bucket} edit", partial(edit, interaction=interaction))

    @override
    async def delete(self, address: Address, message_id: str) -> None:
        route = f"{address.lane} delete"
        await self._call(address, route, lambda: self.surface.delete(address, message_id))

    @override
    async def react(self, address: Address, message_id: str, emoji: str) -> None:
        route = f"{address.lane} react"
        await self._call(address, route, lambda: self.surface.react(address, message_id, emoji))

    @override
    async def draft(self, address: Address, draft_id: int, content: MessageContent) -> None:
        surface = self.surface
        if isinstance(surface, DraftingSurface):
            route = f"{address.lane} draft"
            await self._call(address, route, lambda: surface.draft(address, draft_id, content))

    @override
    async def typing(self, address: Address) -> None:
        route = f"{address.lane} typing"
        await self._call(address, route, lambda: self.surface.typing(address), is_message=False)

    @override
    async def find(self, message: OutgoingMessage, search: MessageSearch) -> str | None:
        address, find = message.address, partial(self.surface.find, message, search)
        return await self._call(address, f"{address.lane} find", find)

    async def _respond(
        self, address: Address, request: Callable[[], Awaitable[Response]]
    ) -> Response:
        """Respond to a command or a press; it waits only after a refusal."""
        route = f"{address.lane} respond"
        scopes = [CallScope(key, ()) for key in (route, address.lane, address.source)]
        if (wait := await self.rates.seconds_until_call(scopes)) > 0:
            raise RateLimited(wait)
        return await self._request(address, route, request)

    async def _call(
        self,
        address: Address,
        route: str,
        request: Callable[[], Awaitable[Response]],
        *,
        is_message: bool = True,
    ) -> Response:
        lane, source, limits = address.lane, address.source, self.surface.limits(address)
        of_route, of_chat, of_bot = self._windows(limits, is_message=is_message)
        scopes = [
            CallScope(route, of_route),
            CallScope(lane, of_chat),
            CallScope(source, of_bot, spans_processes=True),
        ]
        if is_message and not self.best_effort:
            await self._wait(source, lane, scopes)
        elif (wait := await self.rates.take_call(scopes)) > 0:
            raise RateLimited(wait)
        return await self._request(address, route, request)

    async def _request(
        self, address: Address, route: str, request: Callable[[], Awaitable[Response]]
    ) -> Response:
        lane, source = address.lane, address.source
        try:
            return await request()
        except RateLimited as error:
            RATE_LIMIT_REFUSALS.labels(address.platform, error.scope).inc()
            RATE_LIMIT_SECONDS.labels(address.platform).inc(error.retry_after_seconds)
            refused = {"route": route, "chat": lane, "bot": source}[error.scope]
            await self.rates.refuse_calls(refused, error.retry_after_seconds)
            if error.scope == "chat":  # perhaps it was one call too many of the bot
                await self.rates.refuse_calls(source, 0.0)
            raise

    def _windows_of(self, limits: Limits, *, is_message: bool) -> _Windows:
        """Return the limits for this kind of call in the chat, for the chat, and for the bot."""
        learns, edits = self.settings.pacing == "learned", self.best_effort
        if not is_message:
            of_bot = limits.bot_calls if limits.counts_typing else ()
            return (), (), _windows_in_force(of_bot, learns=learns, reserves=True)
        learns_chat = learns and not edits
        return (
            _windows_in_force(limits.route_calls, learns=learns_chat, reserves=edits),
            _windows_in_force(limits.chat_calls, learns=learns_chat, reserves=edits),
            _windows_in_force(limits.bot_calls, learns=learns, reserves=edits),
        )

    async def _wait(self, source: str, lane: str, scopes: list[CallScope]) -> None:
        """Wait until a call is allowed, in order; raise `RateLimited` if that takes too long."""
        latest = self.clock.monotonic() + _MAX_SLEEP_SECONDS
        if self._waiting.are_waiting(source) or await self._ask(source, scopes) > 0:
            while (wait := await self._wait_in_queue(source, lane, scopes, latest)) > 0:
                await self._sleep(wait, latest)
        self._waiting.leave_queue(lane)

    async def _wait_in_queue(
        self, source: str, lane: str, scopes: list[CallScope], latest: float
    ) -> float:
        """Wait for the bot's limit; return 0 if admitted, else the chat's wait in seconds."""
        of_all = [scope for scope in scopes if scope.spans_processes]
        with self._waiting.waiting(source, lane) as changed:
            while True:
                if not self._waiting.is_first(source, lane):
                    await self._wait_for_others(changed, latest)
                    continue
                if (wait := await self._ask(source, scopes)) <= 0:
                    return 0.0
                with self._waiting.asking(source):
                    of_bot = await self.rates.seconds_until_call(of_all)
                if of_bot <= 0:
                    return wait
                self._waiting.note_blocked(source, of_bot)
                await self._sleep(of_bot, latest)

    async def _ask(self, source: str, scopes: list[CallScope]) -> float:
        with self._waiting.asking(source):
            return await self.rates.take_call(scopes)

    async def _wait_for_others(self, changed: asyncio.Event, latest: float) -> None:
        left = latest - self.clock.monotonic()
        if left <= 0:
            raise RateLimited(_MIN_WAIT_SECONDS)
        call_off = self.clock.call_later(left, changed.set)
        try:
            await changed.wait()
        finally:
            call_off()
        changed.clear()

    async def _sleep(self, seconds: float, latest: float) -> None:
        if self.clock.monotonic() + seconds > latest:
            raise RateLimited(seconds)
        await self.clock.sleep(seconds)


def _windows_in_force(
    windows: tuple[CallWindow, ...], *, learns: bool, reserves: bool
) -> tuple[CallWindow, ...]:
    return tuple(
        replace(one, is_learned=one.is_learned and learns, reserved=one.reserved if reserves else 0)
        for one in windows
    )

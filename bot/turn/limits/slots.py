"""Limits on concurrent requests per provider, called slots, and the queue for slots."""

import asyncio
import contextlib
import secrets
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import partial

from bot.backends.chat_shares import MIN_SHARED_SLOTS, ChatShares
from bot.chat.prompt import QueuePosition
from bot.chat.rate import WaitingProcess
from bot.errors import BackendUnavailable
from bot.ports import Clock, RateLimits, Signals
from bot.runtime.in_process import BoundedDict, InProcessSignals
from bot.runtime.tasks import StopFlag
from bot.texts.text import translatable

_MAX_REMEMBERED_CHATS = 1000


class Urgency(IntEnum):
    """The urgency of a model request; lower values go first."""

    QUESTION = 0
    """An answer to a person who addressed the bot and waits."""
    UNADDRESSED = 1
    """A character joins a conversation without being addressed."""
    BACKGROUND = 2
    """A request that nobody in a chat waits for: summaries and operators' trials."""


@dataclass(eq=False, slots=True)
class SlotRequest:
    """A request for a slot of a provider."""

    provider: str
    limit: int
    """The number of slots of the provider."""
    chat: str = ""
    """The lane of the chat whose quota of slots is charged; empty: no quota."""
    urgency: Urgency = Urgency.QUESTION
    holder_id: str = field(default_factory=partial(secrets.token_hex, 8))
    ticket_number: int = 0
    may_try_event: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while the request is next in line, and when it has waited too long."""
    has_waited_too_long: bool = False

    @property
    def quota_key(self) -> str:
        return f"{self.provider} of {self.chat}"

    @property
    def counts_against_chat_quota(self) -> bool:
        """Whether the request counts against its chat's quota of the provider's slots."""
        return bool(self.chat) and self.limit >= MIN_SHARED_SLOTS


class SlotQueue:
    """Orders requests by urgency, then fairly between chats; only the first may try for a slot."""

    def __init__(self) -> None:
        self._waiting_requests: list[SlotRequest] = []
        self._served_at = BoundedDict[str, int](_MAX_REMEMBERED_CHATS)  # in `_logical_time`
        self._full_chats: set[str] = set()
        self._logical_time = 0

    def __len__(self) -> int:
        return len(self._waiting_requests)

    def add(self, request: SlotRequest) -> None:
        self._logical_time += 1
        request.ticket_number = self._logical_time
        self._waiting_requests.append(request)
        self._select_next_request()

    def remove(self, request: SlotRequest, *, is_served: bool) -> None:
        """Remove a request that got a slot (`is_served`) or gave up."""
        self._waiting_requests.remove(request)
        self._full_chats.discard(request.chat)  # so that another request of the chat tries again
        if is_served:
            self._mark_served(request.chat)
        self._select_next_request()

    def record_served_chat(self, chat: str) -> None:
        """Record that a chat got a slot in any process, so that other chats go first."""
        self._mark_served(chat)
        self._select_next_request()

    def _mark_served(self, chat: str) -> None:
        self._logical_time += 1
        self._served_at[chat] = self._logical_time

    def allow_last_try(self, request: SlotRequest) -> None:
        """Let a request that has waited too long try a last time, ahead of its turn."""
        request.has_waited_too_long = True
        request.may_try_event.set()

    def set_chat_full(self, chat: str, *, is_full: bool) -> None:
        """Record whether a chat has used up its quota. If so, other chats go first."""
        if is_full:
            self._full_chats.add(chat)
        else:
            self._full_chats.discard(chat)
        self._select_next_request()

    def find_position(self, request: SlotRequest) -> int:
        """Return a request's position in the queue, from 1."""
        own_sort_key = self._sort_key(request)
        return 1 + sum(self._sort_key(each) < own_sort_key for each in self._waiting_requests)

    def _select_next_request(self) -> None:
        next_request = min(self._waiting_requests, key=self._sort_key, default=None)
        for each in self._waiting_requests:
            if each is next_request:
                each.may_try_event.set()
            elif not each.has_waited_too_long:
                each.may_try_event.clear()

    def _sort_key(self, request: SlotRequest) -> tuple[bool, int, int, int]:
        served_at = self._served_at.get(request.chat, 0)
        return request.chat in self._full_chats, request.urgency, served_at, request.ticket_number


FREED_SLOTS_TOPIC = "provider_slots"
"""The topic of signals about freed slots; each contains the provider."""
TAKEN_SLOTS_TOPIC = "taken_provider_slots"
"""The topic of signals about taken slots: the provider, slots of other chats, and the chat."""
_POLL_SECONDS = 0.1
"""The interval of checks for free slots, in case a signal is lost."""
_MAX_MISSED_POLLS = 5
"""A process that misses this many checks in a row loses its place in line."""
_MAX_WAIT_SECONDS = 60.0
_QUEUE_LEASE_SECONDS = _MAX_WAIT_SECONDS + 30.0
_UNLIMITED_QUEUE_LENGTH = 1_000_000
_BUSY_NOTICE = translatable("Too many people are asking at once. Please try again in a minute.")


@dataclass(eq=False)
class ProviderSlots:
    """Limits concurrent requests per provider; others wait by urgency, and fairly between chats."""

    rate_limits: RateLimits
    clock: Clock
    limits: Mapping[str, int]
    """The maximum number of concurrent requests, by provider; others are unlimited."""
    lease_seconds: float
    """The time after which a dead process's slot is freed."""
    max_waiting_requests: int = 0
    """The maximum number of requests waiting for a provider in all processes; 0: unlimited."""
    signals: Signals = field(default_factory=InProcessSignals)
    """Tell other processes which slots were taken and freed."""

    def __post_init__(self) -> None:
        self._queues: defaultdict[str, SlotQueue] = defaultdict(SlotQueue)
        self._waiting_request_counts: Counter[str] = Counter()
        """The number of this process's waiting requests, by provider."""
        self._wake_events: defaultdict[str, dict[asyncio.Event, None]] = defaultdict(dict)
        """Events that make waiting requests check for a free slot, by provider."""
        self._chat_shares = {name: ChatShares(self.clock, one) for name, one in self.limits.items()}
        self._process = secrets.token_hex(8)  # identifies this process as a `WaitingProcess`
        self.signals.subscribe(FREED_SLOTS_TOPIC, self._wake_waiting_requests)
        self.signals.subscribe(TAKEN_SLOTS_TOPIC, self._record_taken_slots)

    def waiting_count(self, provider: str) -> int:
        """Return the number of this process's requests that wait for a slot."""
        return len(self._queues[provider])

    @contextlib.asynccontextmanager
    async def hold(
        self,
        provider: str,
        stop_flag: StopFlag,
        show_position: Callable[[QueuePosition], None],
        *,
        chat: str = "",
        urgency: Urgency = Urgency.QUESTION,
    ) -> AsyncIterator[None]:
        """Hold a slot during the block; raises `BackendUnavailable` after waiting a minute."""
        limit = self.limits.get(provider)
        if limit is None:
            yield
            return
        request = SlotRequest(provider, limit, chat, urgency)
        try:
            if not stop_flag.is_requested:
                with stop_flag.stoppable_block():
                    await self._acquire_slot(request, show_position)
            yield
        finally:
            await self.rate_limits.release_slot(request.provider, request.holder_id)
            if request.counts_against_chat_quota:
                await self.rate_limits.release_slot(request.quota_key, request.holder_id)
            self.signals.publish(FREED_SLOTS_TOPIC, [request.provider])

    def _wake_waiting_requests(self, providers: Sequence[str]) -> None:
        for provider in providers:
            for wake_event in self._wake_events.get(provider, ()):
                wake_event.set()

    def _record_taken_slots(self, signals: Sequence[str]) -> None:
        for one in signals:
            provider, other_slot_count, chat = one.split(" ", 2)
            if provider in self._chat_shares:  # other processes may have other providers
                self._chat_shares[provider].record_slot_use(chat, int(other_slot_count))
                self._queues[provider].record_served_chat(chat)

    async def _acquire_slot(
        self, request: SlotRequest, show_position: Callable[[QueuePosition], None]
    ) -> None:
        queue = self._queues[request.provider]
        queue.add(request)
        has_slot = False
        try:
            has_slot = request.may_try_event.is_set() and await self._try_acquire_slot(request)
            if not has_slot:
                async with self._counting_as_waiting(request) as waiting_elsewhere_count:
                    if (position := queue.find_position(request) + waiting_elsewhere_count) > 1:
                        show_position(QueuePosition(position, None))
                    await self._wait_until_acquired(request)
                has_slot = True
        finally:
            queue.remove(request, is_served=has_slot)

    @contextlib.asynccontextmanager
    async def _counting_as_waiting(self, request: SlotRequest) -> AsyncIterator[int]:
        """Count a request as waiting, and yield how many requests wait in other processes."""
        key, holder = f"{request.provider} waiting", request.holder_id
        limit = self.max_waiting_requests or _UNLIMITED_QUEUE_LENGTH
        try:
            count = await self.rate_limits.acquire_slot(key, limit, holder, _QUEUE_LEASE_SECONDS)
            if not count:
                raise BackendUnavailable(
                    f"{limit} requests are waiting for provider {request.provider!r}; raise"
                    " TROUPE_LIMITS__WAITING or the provider's MAX_IN_FLIGHT",
                    translatable(
                        "I am busy: your message would be number {position} in the queue for the"
                        " model. Please try again in a minute.",
                        position=limit + 1,
                    ),
                )
            self._waiting_request_counts[request.provider] += 1
            try:
                yield max(0, count - self._waiting_request_counts[request.provider])
            finally:
                self._waiting_request_counts[request.provider] -= 1
        finally:  # after a cancellation it may still be counted
            await self.rate_limits.release_slot(key, holder)

    async def _wait_until_acquired(self, request: SlotRequest) -> None:
        queue = self._queues[request.provider]
        cancel = self.clock.call_later(_MAX_WAIT_SECONDS, lambda: queue.allow_last_try(request))
        try:
            while True:
                await request.may_try_event.wait()
                if await self._try_acquire_slot(request):
                    return
                if request.has_waited_too_long:
                    raise BackendUnavailable(
                        f"provider {request.provider!r} has {request.limit} requests in flight;"
                        f" raise TROUPE_PROVIDERS__{request.provider.upper()}__MAX_IN_FLIGHT",
                        _BUSY_NOTICE,
                    )
                await self._wait_for_free_slot(request.provider)
                queue.set_chat_full(request.chat, is_full=False)
        finally:
            cancel()

    async def _wait_for_free_slot(self, provider: str) -> None:
        wake_event, wake_events = asyncio.Event(), self._wake_events[provider]
        cancel_timer = self.clock.call_later(_POLL_SECONDS, wake_event.set)
        wake_events[wake_event] = None
        try:
            await wake_event.wait()
        finally:
            del wake_events[wake_event]
            cancel_timer()

    async def _try_acquire_slot(self, request: SlotRequest) -> bool:
        provider, holder, lease = request.provider, request.holder_id, self.lease_seconds
        chat_shares = self._chat_shares[provider]
        waiter = WaitingProcess(self._process, request.urgency, _POLL_SECONDS * _MAX_MISSED_POLLS)
        used_slot_count = await self.rate_limits.acquire_slot(
            provider, request.limit, holder, lease, waiter
        )
        if not used_slot_count or not request.counts_against_chat_quota:
            return bool(used_slot_count)
        if chat_shares.may_take_slot(request.chat, request.limit - used_slot_count + 1):
            quota = chat_shares.slot_quota(request.chat)
            chat_uses = await self.rate_limits.acquire_slot(request.quota_key, quota, holder, lease)
            if chat_uses:
                taken_slots_signal = f"{provider} {used_slot_count - chat_uses} {request.chat}"
                self.signals.publish(TAKEN_SLOTS_TOPIC, [taken_slots_signal])
                return True
        await self.rate_limits.release_slot(provider, holder)
        self._queues[provider].set_chat_full(request.chat, is_full=True)
        return False

"""What sends: the surfaces of the platforms at their rates, the lanes of the outbox."""

from collections.abc import Mapping, Sequence
from functools import cached_property, partial

from bot.chat.outgoing import OutboxRow
from bot.delivery.lane_delivery import LaneDelivery, RemoteDelivery
from bot.delivery.rate_limits import RateLimitedSurface
from bot.delivery.sender import Sender
from bot.delivery.sent_rows import SentRows, SentRowSignals
from bot.delivery.waiting_calls import WaitingCalls
from bot.ports import Delivery, Platform, PrivateChats, Surface
from bot.replying.live_replies import LiveReplies
from bot.runtime.keyed_worker_pool import KeyedWorkerPool, wake_keys
from bot.service.options import Role
from bot.service.parts.limits import LimitParts
from bot.service.parts.run_context import RunContext
from bot.service.parts.stored import StoredParts
from bot.turn.lease import LeaseKeeper
from bot.turn.limits.refused_chats import publish_refusal

_LANES = "lanes"
_MAX_LANES = 4000  # at once in one process
_URGENT_BESIDE = 32
"""Lanes beside these in which a native command is responded to."""


class SendingParts:
    """What sends, and what shows an answer while it is made."""

    def __init__(
        self,
        context: RunContext,
        stored: StoredParts,
        limits: LimitParts,
        platforms: Mapping[str, Platform],
    ) -> None:
        self._context = context
        self._stored = stored
        self._limits = limits
        self._platforms = platforms

    @cached_property
    def lane_pool(self) -> KeyedWorkerPool[OutboxRow]:
        """Delivers the lanes of the outbox."""
        return KeyedWorkerPool(
            _LANES,
            signals=self._context.resources.signals,
            ready_keys=self._due_lanes,
            claim=self._sender.take,
            process=self._sender.work,
            max_concurrent=_MAX_LANES,
            urgent_beside=_URGENT_BESIDE,
            hold=self._sender.hold,
            clock=self._context.clock,
        )

    async def _due_lanes(self, limit: int) -> Sequence[str]:
        return await self._stored.outbox.due_lanes(limit, self._platforms.keys())

    async def delete_late_duplicates(self) -> None:
        """Delete, until cancelled, second copies of messages that were accepted too late."""
        await self._sender.late_duplicates.run(self.lane_pool.wake)

    @cached_property
    def _sender(self) -> Sender:
        return Sender(
            self._stored.outbox,
            self.rate_limited_surfaces(best_effort=False),
            self._context.clock,
            settle_seconds=self._context.settings.delivery.settle_seconds,
            announce=self._announce_sent,
            tell_refusal=partial(publish_refusal, self._context.resources.signals),
            waiting=self._waiting_calls,
        )

    @cached_property
    def _waiting_calls(self) -> WaitingCalls:
        return WaitingCalls(self._context.clock)

    @cached_property
    def _sent_row_signals(self) -> SentRowSignals:
        return SentRowSignals(self._context.resources.signals)

    def _announce_sent(self, row_id: int, external_id: str | None) -> None:
        """Tell the workers elsewhere, where this process has none of its own."""
        if Role.WORKER not in self._context.options.roles:
            self._sent_row_signals.publish(row_id, external_id)

    @cached_property
    def _delivery(self) -> Delivery:
        if Role.SENDER in self._context.options.roles:
            return LaneDelivery(self._sender, self.lane_pool)
        sent_rows = SentRows(self._stored.outbox)
        self._sent_row_signals.subscribe(sent_rows)
        wake = partial(wake_keys, self._context.resources.signals, _LANES)
        return RemoteDelivery(wake, partial(wake, is_urgent=True), sent_rows)

    @cached_property
    def replies(self) -> LiveReplies:
        return LiveReplies(
            self._stored.conversations,
            self.rate_limited_surfaces(best_effort=True),
            self._delivery,
            self._context.clock,
            self.leases.is_certain,
        )

    @cached_property
    def leases(self) -> LeaseKeeper:
        """The claims of this process: only while they are certain are its answers shown."""
        return LeaseKeeper(self._stored.conversations, self._context.clock)

    @property
    def private_chats(self) -> dict[str, PrivateChats]:
        """The platforms on which people are written to in private, by `Address.source`."""
        found = self._platforms.items()
        return {name: one for name, one in found if isinstance(one, PrivateChats)}

    def rate_limited_surfaces(self, *, best_effort: bool) -> dict[str, Surface]:
        """Return the surfaces by `Address.source`; with `best_effort` one gives way to others."""
        return {
            name: RateLimitedSurface(
                platform.surface,
                self._limits.rate_limits,
                self._context.clock,
                best_effort=best_effort,
                learns_rates=self._context.settings.delivery.pacing == "learned",
                waiting=self._waiting_calls,
            )
            for name, platform in self._platforms.items()
        }

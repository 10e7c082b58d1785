"""What a process runs beside the platforms: the worker pools, and the jobs of each role."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cached_property

from bot import __version__
from bot.chat.session import ClaimedMessage
from bot.runtime.keyed_worker_pool import KeyedWorkerPool
from bot.service.operation.heartbeat import Heartbeat
from bot.service.operation.loop_lag import LoopLag
from bot.service.operation.provider_notices import ProviderNotices
from bot.service.operation.report_sharing import ReportSharing
from bot.service.options import Role
from bot.service.parts.answering import AnsweringParts
from bot.service.parts.queue import QueueParts
from bot.service.parts.run_context import RunContext
from bot.service.parts.sending import SendingParts
from bot.service.parts.stored import StoredParts
from bot.service.queue_metrics import QueueMetrics
from bot.service.role_parts import DRAIN_SECONDS, RolePart, drain_lanes
from bot.storage.queue_ages import SqlQueueAges
from bot.telemetry.recent_events import RECENT_EVENTS
from bot.turn.arrivals import CONVERSATIONS
from bot.turn.missed_signals import MissedSignals

_COMMANDS_BESIDE = 32
"""Conversations in which a command waits, beside those that are answered at once."""
_IDLE_POLL_SECONDS = 0.02


class JobParts:
    """The jobs of the roles that a process has."""

    def __init__(
        self,
        context: RunContext,
        stored: StoredParts,
        queue: QueueParts,
        sending: SendingParts,
        answering: AnsweringParts,
    ) -> None:
        self._context = context
        self._stored = stored
        self._queue = queue
        self._sending = sending
        self._answering = answering

    @cached_property
    def role_parts(self) -> Sequence[RolePart]:
        """What this process runs beside the platforms, in the order of a message's path."""
        roles = self._context.options.roles
        parts = {Role.WORKER: self._worker_part, Role.SENDER: self._sender_part}
        made = [make_part() for role, make_part in parts.items() if role in roles]
        restored = RolePart(self._queue.restored.load, (), _nothing)
        shared = RolePart(_nothing, self._sharing_jobs, _nothing)
        lag = LoopLag(self._context.clock)
        return [restored, *made, self._heartbeat.part, shared, lag.part]

    @cached_property
    def conversation_pool(self) -> KeyedWorkerPool[ClaimedMessage]:
        """Processes the inboxes of conversations."""
        return KeyedWorkerPool(
            CONVERSATIONS,
            signals=self._context.resources.signals,
            ready_keys=self._queue.find_ready,
            claim=self._claim_conversations,
            process=self._answering.worker.work,
            max_concurrent=self._context.settings.limits.conversations_at_once,
            clock=self._context.clock,
            wakes_keys=Role.GATEWAY in self._context.options.roles,
            urgent_beside=_COMMANDS_BESIDE,
        )

    async def _claim_conversations(self, keys: Sequence[str]) -> Mapping[str, ClaimedMessage]:
        answerable = self._queue.answerable(keys)
        if not answerable:
            return {}
        return await self._answering.worker.claim(answerable)

    async def wait_until_idle(self) -> None:
        """Wait until every received message was answered and every answer was sent."""
        # In the order of the path: what leaves the first pool is in the second by then.
        lane_pool = self._sending.lane_pool
        while not (await self.conversation_pool.is_idle() and await lane_pool.is_idle()):
            await self._context.clock.sleep(_IDLE_POLL_SECONDS)

    def _worker_part(self) -> RolePart:
        pool, worker = self.conversation_pool, self._answering.worker
        stored, queue, answering = self._stored, self._queue, self._answering

        async def release() -> None:
            await stored.conversations.release_all(self._context.owner)
            await queue.pauses.refresh()

        async def drain() -> None:
            worker.stop_after_current()
            await pool.drain(DRAIN_SECONDS)

        jobs = [pool.run, worker.keep_leases, queue.stops.run, answering.summarizer.run]
        jobs += [queue.pauses.run, self._queue_metrics.run, answering.decisions.run]
        if not self._context.is_alone:
            missed = MissedSignals(stored.inbox, queue.stops, queue.arrivals, self._context.clock)
            jobs += [missed.run, answering.shared_memories.run]
        return RolePart(release, jobs, drain)

    def _sender_part(self) -> RolePart:
        context, lane_pool = self._context, self._sending.lane_pool

        async def drain() -> None:
            await drain_lanes(lane_pool, context.clock, is_alone=context.is_alone)

        jobs = [
            lane_pool.run,
            self._sending.delete_late_duplicates,
            self._stored.delete_expired_rows,
        ]
        if Role.WORKER not in context.options.roles:  # it measures both
            jobs.append(self._queue_metrics.run)
        return RolePart(self._stored.outbox.release_all, jobs, drain)

    @cached_property
    def _queue_metrics(self) -> QueueMetrics:
        ages = SqlQueueAges(self._context.resources.database, self._context.clock)
        return QueueMetrics(ages, self._context.options.roles, self._context.clock)

    @cached_property
    def _heartbeat(self) -> Heartbeat:
        context = self._context
        roles = ",".join(role for role in Role if role in context.options.roles)
        return Heartbeat(self._stored.nodes, context.owner, roles, __version__, context.clock)

    @cached_property
    def provider_notices(self) -> ProviderNotices:
        """What /readyz says of the providers that presets use."""
        context = self._context
        models, resolver = context.resources.models, context.resources.resolver
        backends = models.backends if models is not None else {}
        return ProviderNotices(lambda: resolver.presets.values(), backends, context.options.roles)

    @property
    def _sharing_jobs(self) -> Sequence[Callable[[], Awaitable[None]]]:
        """What tells the other processes of this one, where processes share values."""
        context, shared = self._context, self._stored.shared_reports
        if shared is None or context.is_alone:
            return ()
        models = context.resources.models
        backends = models.backends if models is not None else {}
        return [ReportSharing(shared, context.owner, backends, RECENT_EVENTS, context.clock).run]


async def _nothing() -> None:
    return

"""The operation page: the health of components, queues and providers, and recent failures."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime

from bot.chat.access import ApiScope
from bot.chat.operation import (
    AnswerPause,
    FailedMessage,
    LogEntry,
    MessageTrace,
    ModelHealth,
    ModelInMemory,
    Node,
    ProcessReport,
    RoleHolder,
)
from bot.console.routes import ConsoleRequest, NavigationItem, RouteGroup, route
from bot.console.server import Probe, run_probes
from bot.errors import BackendError, RequestRefused, UserError
from bot.ports import Backend, Clock, RateLimits
from bot.prompting.presets.preset import Preset
from bot.storage.dead_letters import DeadLetters
from bot.storage.operation import NodeRegistry, PauseStore, SqlMessageNotes
from bot.storage.reports import ServiceState
from bot.telemetry.logs import RecentEvents, find_failed_message
from bot.telemetry.metrics import count_withheld_answers
from bot.texts.text import translatable, translate
from bot.value_class import value_class

_PROBE_TIMEOUT_SECONDS = 2.0
_CACHE_SECONDS = 1.0  # requests within this time share one state
_MAX_ERRORS = 10
_TRIAL_PATH = "/operation/providers/{provider}/try"
_Row = Mapping[str, object]


@value_class
class OperationState:
    """The current state of the service."""

    parts: Mapping[str, str]
    """The status of each component: "ok", or the reason why it does not work."""
    conversations: int
    """The number of conversations with unanswered messages."""
    held: int
    """The number of these conversations that are being answered now."""
    oldest_seconds: float | None
    """How many seconds the oldest of these conversations has been waiting."""
    lanes: int
    """The number of chats with unsent messages."""
    unsent: int
    leases: Sequence[RoleHolder]
    providers: Sequence[_Row]
    """Configured providers: name, kind, model, max_in_flight, and the presets that use them."""
    health: Sequence[ModelHealth]
    loaded: Sequence[ModelInMemory]
    waits: Sequence[_Row]
    """Rate limits: scope, seconds (null: until a slot is free), waiting calls (null: unknown)."""
    errors: Sequence[_Row]
    """The newest errors: error_id, turn, at, event, reason, process (empty: this process)."""
    nodes: Sequence[_Row]
    """Processes, as `troupe nodes` shows them."""
    pauses: Sequence[AnswerPause]
    dead_letters: int
    """The number of items set aside after failures; `troupe dead-letters` lists them."""
    withheld: int
    """The number of answers that checks have withheld since the processes started."""


def build_process_report(backends: Mapping[str, Backend], events: RecentEvents) -> ProcessReport:
    errors, items = tuple(events.list_failed_messages(_MAX_ERRORS)), backends.items()
    health = [replace(one, provider=key) for key, each in items for one in each.model_health()]
    models = [replace(one, provider=key) for key, each in items for one in each.models_in_memory()]
    return ProcessReport(errors, tuple(health), tuple(models), count_withheld_answers())


@dataclass(slots=True)
class OperationPage(RouteGroup):
    navigation = (NavigationItem("/operation", translatable("Operation"), "operation"),)

    probes: Mapping[str, Probe]
    service_state: ServiceState
    providers: Sequence[_Row]
    backends: Mapping[str, Backend]
    count_waiters: Callable[[str], int]
    rate_limits: RateLimits
    events: RecentEvents
    nodes: NodeRegistry
    pauses: PauseStore
    dead_letters: DeadLetters
    notes: SqlMessageNotes
    owner: str
    find_trial_preset: Callable[[str], Preset]
    try_preset: Callable[[Preset], Awaitable[str]]
    mask: Callable[[str], str]
    clock: Clock
    _cached_state: OperationState | None = None
    _cached_at: float = 0.0
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    @route("GET /api/v1/operation", ApiScope.READ)
    @route("GET /operation", ApiScope.READ, template="operation.html")
    async def get_state(self) -> OperationState:
        """Get the current state: components, queues, and roles."""
        async with self._lock:
            now = self.clock.monotonic()
            if self._cached_state is None or now - self._cached_at >= _CACHE_SECONDS:
                self._cached_state = await self._build_state()
                self._cached_at = now
            return self._cached_state

    @route("GET /api/v1/operation/errors/{error}", ApiScope.READ)
    @route("GET /operation/errors/{error}", ApiScope.READ, template="operation_error.html")
    async def find_error(self, error: str) -> FailedMessage:
        """Get a message's processing steps, by the error id shown to its author."""
        message = await self._find_failed_message(error)
        if message is None:
            raise RequestRefused(404, translatable("No process has logged an error with this id."))
        trace = await self.service_state.trace_message(message.turn)
        steps = (*_list_intake_steps(trace), *message.steps, *_list_delivery_steps(trace))
        return replace(message, steps=steps)

    @route(f"POST /api/v1{_TRIAL_PATH}", ApiScope.OPERATE)
    @route(f"POST {_TRIAL_PATH}", ApiScope.OPERATE, template="operation_trial.html")
    async def run_trial(self, request: ConsoleRequest, provider: str) -> Mapping[str, str | bool]:
        """Test a provider with one short request to the model of its first preset."""
        if all(one["name"] != provider for one in self.providers):
            raise RequestRefused(404, translatable("There is no such provider."))
        preset = self.find_trial_preset(provider)
        try:
            answer, has_answered = await self.try_preset(preset), True
        except BackendError as error:
            answer, has_answered = str(error), False
        except UserError as error:
            answer, has_answered = translate(error.text, request.language), False
        trial_target = {"provider": provider, "model": preset.model, "preset": preset.name}
        return {**trial_target, "works": has_answered, "answer": self.mask(answer)}

    async def _build_state(self) -> OperationState:
        now = self.clock.now()
        queues = await self.service_state.load_queue_state()
        nodes = await self.nodes.list_nodes()
        own_report = build_process_report(self.backends, self.events)
        reports = {"": own_report, **await self._read_other_reports(nodes)}
        items = reports.items()
        errors = [_to_error_row(one, name) for name, each in items for one in each.errors]
        return OperationState(
            parts=await run_probes(self.probes, _PROBE_TIMEOUT_SECONDS),
            conversations=queues.conversation_count,
            held=queues.answered_now_count,
            oldest_seconds=queues.oldest_received_at and max(0.0, now - queues.oldest_received_at),
            lanes=queues.unsent_chat_count,
            unsent=queues.unsent_message_count,
            leases=await self.nodes.list_exclusive_roles(),
            providers=self.providers,
            health=[replace(one, process=name) for name, each in items for one in each.health],
            loaded=[replace(one, process=name) for name, each in items for one in each.models],
            waits=await self._list_queues_and_rate_limits(),
            errors=sorted(errors, key=lambda one: str(one["at"]), reverse=True)[:_MAX_ERRORS],
            nodes=[{**asdict(one), "is_silent": one.is_silent} for one in nodes],
            pauses=await self.pauses.list_all(),
            dead_letters=len(await self.dead_letters.all()),
            withheld=sum(report.withheld for report in reports.values()),
        )

    async def _read_other_reports(self, nodes: Sequence[Node]) -> Mapping[str, ProcessReport]:
        other_owners = [one.owner for one in nodes if not one.is_silent and one.owner != self.owner]
        return await self.nodes.load_reports(other_owners)

    async def _list_queues_and_rate_limits(self) -> Sequence[_Row]:
        counts = [(one["name"], self.count_waiters(str(one["name"]))) for one in self.providers]
        queues = [{"scope": name, "seconds": None, "waiting": one} for name, one in counts if one]
        calls = await self.rate_limits.blocked_calls()
        rows = [{"scope": one.scope, "seconds": one.seconds_left, "waiting": None} for one in calls]
        return [*queues, *rows]

    async def _find_failed_message(self, error_id: str) -> FailedMessage | None:
        message = self.events.find_failed_message(error_id) or await find_failed_message(
            self.notes.list_notes, error_id
        )
        if message is not None:
            return message
        other_reports = await self._read_other_reports(await self.nodes.list_nodes())
        failed_messages = (one for report in other_reports.values() for one in report.errors)
        return next((one for one in failed_messages if one.error_id == error_id), None)


def _to_error_row(message: FailedMessage, process: str) -> _Row:
    newest = message.newest_failure
    reason = newest.details.get("reason") or newest.details.get("exception", "").strip()
    return {
        "error_id": message.error_id,
        "turn": message.turn,
        "at": newest.at,
        "event": newest.event,
        "reason": reason.rpartition("\n")[2],
        "process": process,
    }


def _list_intake_steps(trace: MessageTrace) -> Sequence[LogEntry]:
    if trace.received_at is None:
        return []
    at = datetime.fromtimestamp(trace.received_at, UTC).isoformat()
    details = {"channel": trace.conversation}
    if trace.crash_count:
        details["deaths"] = str(trace.crash_count)
    if not trace.is_message_processed:
        details["state"] = "unanswered"
    return [LogEntry(at, "info", "received", details)]


def _list_delivery_steps(trace: MessageTrace) -> Sequence[LogEntry]:
    steps = []
    for one in trace.parts:
        details = {"part": str(one.number), "attempts": str(one.attempt_count)}
        if one.error:
            details["reason"] = one.error
        level = "error" if one.error else "info"
        steps.append(LogEntry("", level, f"{one.operation} {one.state}", details))
    return steps

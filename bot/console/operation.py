"""Operation: what works, what waits, who holds which role, what answers, and what failed."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TypeAlias

from aiohttp import web

from bot.chat.access import Scope
from bot.chat.operation import (
    FailedMessage,
    LoggedStep,
    MessageTrace,
    Node,
    Pause,
    ProcessModel,
    ProcessModelHealth,
    ProcessReport,
)
from bot.console.health import Probe, run_probes
from bot.console.live_events import fragment_events, stream_events
from bot.console.pages import PageRenderer, line_chart
from bot.console.routes import ConsoleRequest, NavigationItem, Page, RouteGroup, route
from bot.errors import BackendError, RequestRefused, UserError
from bot.ports import Backend, Clock, RateLimits
from bot.storage.dead_letters import DeadLetters
from bot.storage.operation import NodeRegistry, Pauses, SqlMessageNotes
from bot.storage.reports import ServiceState
from bot.telemetry.logs import RecentEvents, find_failure
from bot.texts.text import translatable, translate
from bot.value_class import value_class

_PROBE_SECONDS = 2.0
_FRESH_SECONDS = 1.0  # all who look within this time get the same state
_MAX_ERRORS = 20
_MAX_SAMPLES = 600


@value_class
class LeaseRow:
    """A role that one process holds at a time."""

    role: str
    owner: str
    seconds_left: float
    """Negative: nobody holds it."""


@value_class
class ProviderRow:
    """A provider that is set up."""

    name: str
    kind: str
    model: str | None
    presets: Sequence[str]
    """The presets that it answers for."""
    max_in_flight: int | None = None
    """How many requests are made at once."""


@value_class
class NodeRow:
    """A process of the installation."""

    owner: str
    roles: str
    version: str
    seen_seconds: float
    """How long ago it reported itself."""
    is_silent: bool
    """Whether it has missed several reports."""
    leases: Sequence[str]
    """The exclusive roles that it holds."""
    conversations: int
    """How many it is answering."""


@value_class
class WaitRow:
    """A rate limit that makes somebody wait."""

    scope: str
    """What is limited: calls of a platform, or a provider."""
    seconds: float | None
    """How long still; null: until a slot is free."""
    waiting: int | None
    """Requests of this process that wait; null: unknown."""


@value_class
class ErrorRow:
    """A message with warnings or errors in the log of a process."""

    error_id: str
    """What its author was told."""
    turn: str
    at: str
    event: str
    reason: str
    process: str
    """Which process; empty: the one that answers."""


@value_class
class ErrorDetail:
    """The steps of a message that failed."""

    error_id: str
    turn: str
    steps: Sequence[LoggedStep]


@value_class
class OperationState:
    """What the service is doing."""

    parts: Mapping[str, str]
    """"ok" for what works, else why it does not."""
    conversations: int
    """With unanswered messages."""
    held: int
    """Of them, those that are being answered."""
    oldest_seconds: float | None
    """How long the oldest of them waits."""
    lanes: int
    """Chats with messages that are not sent yet."""
    unsent: int
    """Their number."""
    leases: Sequence[LeaseRow]
    providers: Sequence[ProviderRow]
    health: Sequence[ProcessModelHealth]
    loaded: Sequence[ProcessModel]
    waits: Sequence[WaitRow]
    errors: Sequence[ErrorRow]
    nodes: Sequence[NodeRow]
    pauses: Sequence[Pause]
    dead_letters: int
    """What was set aside; `troupe dead-letters` shows it."""


@value_class
class TrialResult:
    """What a provider answered when it was tried."""

    provider: str
    works: bool
    answer: str
    """Or why it does not work."""


def process_report(backends: Mapping[str, Backend], events: RecentEvents) -> ProcessReport:
    """Return the report of this process."""
    return ProcessReport(
        tuple(events.failures(_MAX_ERRORS)),
        tuple(
            ProcessModelHealth(name, one.model, one.is_paused, one.requests, one.failed)
            for name, backend in backends.items()
            for one in backend.model_health()
        ),
        tuple(
            ProcessModel(name, one.model, one.slots, one.busy, one.held, one.waiting)
            for name, backend in backends.items()
            for one in backend.models_in_memory()
        ),
    )


@value_class
class Installation:
    """What the operators' commands read as well."""

    nodes: NodeRegistry
    pauses: Pauses
    dead_letters: DeadLetters
    notes: SqlMessageNotes
    owner: str = ""
    """The name of this process."""


@value_class
class QueueSample:
    """How much waited at a moment."""

    at: float
    """In Unix seconds."""
    conversations: int
    held: int
    unsent: int


TryProvider: TypeAlias = Callable[[str], Awaitable[str]]
"""Returns what a provider answers; raises `BackendError` or `UserError`."""


@dataclass(slots=True)
class OperationPage(RouteGroup):
    """Shows the state of the service.

    Args:
        probes: what /readyz asks.
        stored: what the database knows.
        providers: the providers that are set up.
        backends: the same as what is asked, by name.
        waiting: how many requests to a provider wait for a slot.
        rate_limits: what platforms refuse.
        events: what was logged.
        installation: processes, pauses and what was set aside.
        try_provider: sends one request to a provider.
        mask: removes secrets from what is shown.
        renderer: renders the part of the page that is renewed.
        clock: the time.
    """

    navigation = (NavigationItem("/operation", translatable("Operation"), "operation"),)

    probes: Mapping[str, Probe]
    stored: ServiceState
    providers: Sequence[ProviderRow]
    backends: Mapping[str, Backend]
    waiting: Callable[[str], int]
    rate_limits: RateLimits
    events: RecentEvents
    installation: Installation
    try_provider: TryProvider
    mask: Callable[[str], str]
    renderer: PageRenderer
    clock: Clock
    _newest: OperationState | None = None
    _made_at: float = 0.0
    _samples: deque[QueueSample] = field(default_factory=lambda: deque(maxlen=_MAX_SAMPLES))
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _rendered: dict[object, object] = field(default_factory=dict)
    """By reader, of the state under "state"."""

    @route("GET /api/v1/operation", Scope.READ)
    async def state(self) -> OperationState:
        """What works, what waits, and who does what."""
        async with self._lock:
            now = self.clock.monotonic()
            if self._newest is None or now - self._made_at >= _FRESH_SECONDS:
                state = self._newest = await self._report()
                self._made_at = now
                self._samples.append(
                    QueueSample(self.clock.now(), state.conversations, state.held, state.unsent)
                )
            return self._newest

    @route("GET /operation", Scope.READ)
    async def show(self, request: ConsoleRequest) -> Page:
        state = await self.state()
        chart = _queue_chart(list(self._samples), request.look.language)
        return Page("operation.html", {"state": state, "chart": chart})

    @route("GET /operation/events", Scope.READ)
    async def send_events(self, request: ConsoleRequest) -> web.StreamResponse:
        """Send the state whenever it changes, as server-sent events."""

        async def render() -> str:
            return self._fragment(await self.state(), request)

        shown = request.http.headers.get("Last-Event-ID", "")
        return await stream_events(request, fragment_events(shown, render, self.clock), self.clock)

    def _fragment(self, state: OperationState, request: ConsoleRequest) -> str:
        """Return what is renewed; the pages of one reader share it while the state is the same."""
        reader = (request.look.language, request.caller.csrf_token)
        if self._rendered.get("state") is not state:
            self._rendered.clear()
            self._rendered["state"] = state
        if reader not in self._rendered:
            page = Page("operation_state.html", {"state": state})
            self._rendered[reader] = self.renderer.render(page, request, "")
        return str(self._rendered[reader])

    @route("GET /api/v1/operation/errors/{error}", Scope.READ)
    async def find_error(self, error: str) -> ErrorDetail:
        """The steps of a message by the id that its author was told."""
        failed = await self._find_failed(error)
        if failed is None:
            text = translatable("No process has logged an error with this id.")
            raise RequestRefused(404, text)
        trace = await self.stored.trace(failed.turn)
        steps = [*_received(trace), *failed.steps, *_deliveries(trace)]
        return ErrorDetail(failed.error_id, failed.turn, steps)

    @route("GET /operation/errors/{error}", Scope.READ)
    async def error_page(self, error: str) -> Page:
        return Page("operation_error.html", {"error": await self.find_error(error)})

    @route("POST /api/v1/operation/providers/{provider}/try", Scope.OPERATE)
    async def try_out(self, request: ConsoleRequest, provider: str) -> TrialResult:
        """Try a provider with one short request."""
        if all(one.name != provider for one in self.providers):
            raise RequestRefused(404, translatable("There is no such provider."))
        try:
            answer, works = await self.try_provider(provider), True
        except BackendError as error:
            answer, works = str(error), False
        except UserError as error:
            answer, works = translate(error.text, request.look.language), False
        return TrialResult(provider, works, self.mask(answer))

    @route("POST /operation/providers/{provider}/try", Scope.OPERATE)
    async def trial_page(self, request: ConsoleRequest, provider: str) -> Page:
        return Page("operation_trial.html", {"trial": await self.try_out(request, provider)})

    async def _report(self) -> OperationState:
        now = self.clock.now()
        queues = await self.stored.queues()
        nodes = await self.installation.nodes.nodes()
        reports = {"": process_report(self.backends, self.events), **await self._others(nodes)}
        return OperationState(
            parts=await run_probes(self.probes, _PROBE_SECONDS),
            conversations=queues.conversations,
            held=queues.held,
            oldest_seconds=queues.oldest_since and max(0.0, now - queues.oldest_since),
            lanes=queues.lanes,
            unsent=queues.unsent,
            leases=[
                LeaseRow(one.role, one.owner, one.lease_seconds)
                for one in await self.installation.nodes.held_jobs()
            ],
            providers=self.providers,
            health=[
                replace(one, process=name) for name, told in reports.items() for one in told.health
            ],
            loaded=[
                replace(one, process=name) for name, told in reports.items() for one in told.models
            ],
            waits=await self._waits(),
            errors=_newest_errors(reports),
            nodes=[
                NodeRow(
                    one.owner,
                    one.roles,
                    one.version,
                    one.seen_seconds,
                    one.is_silent,
                    one.leases,
                    one.conversations,
                )
                for one in nodes
            ],
            pauses=await self.installation.pauses.current(),
            dead_letters=len(await self.installation.dead_letters.all()),
        )

    async def _others(self, nodes: Sequence[Node]) -> Mapping[str, ProcessReport]:
        """Return the reports of the other processes, by their names."""
        living = [one.owner for one in nodes if not one.is_silent]
        others = [one for one in living if one != self.installation.owner]
        return await self.installation.nodes.reports(others)

    async def _waits(self) -> Sequence[WaitRow]:
        queued = [(one.name, self.waiting(one.name)) for one in self.providers]
        refused = await self.rate_limits.refusals()
        return [
            *(WaitRow(name, None, waiting) for name, waiting in queued if waiting),
            *(WaitRow(one.scope, one.seconds, None) for one in refused),
        ]

    async def _find_failed(self, error_id: str) -> FailedMessage | None:
        found = self.events.failure(error_id)
        found = found or await find_failure(self.installation.notes.newest, error_id)
        if found is not None:
            return found
        others = await self._others(await self.installation.nodes.nodes())
        told = (one for report in others.values() for one in report.errors)
        return next((one for one in told if one.error_id == error_id), None)


def _newest_errors(reports: Mapping[str, ProcessReport]) -> Sequence[ErrorRow]:
    rows = [_error_row(one, name) for name, told in reports.items() for one in told.errors]
    return sorted(rows, key=lambda one: one.at, reverse=True)[:_MAX_ERRORS]


def _error_row(one: FailedMessage, process: str) -> ErrorRow:
    newest = one.newest_failure
    reason = newest.details.get("reason") or newest.details.get("exception", "").strip()
    reason = reason.rpartition("\n")[2]
    return ErrorRow(one.error_id, one.turn, newest.at, newest.event, reason, process)


def _received(trace: MessageTrace) -> Sequence[LoggedStep]:
    if trace.received_at is None:
        return []
    at = datetime.fromtimestamp(trace.received_at, UTC).isoformat()
    details = {"deaths": str(trace.crashes)} if trace.crashes else {}
    if not trace.is_done:
        details["state"] = "unanswered"
    return [LoggedStep(at, "info", "received", details)]


def _deliveries(trace: MessageTrace) -> Sequence[LoggedStep]:
    steps = []
    for one in trace.parts:
        details = {"part": str(one.part), "attempts": str(one.attempts)}
        if one.error:
            details["reason"] = one.error
        level = "error" if one.error else "info"
        steps.append(LoggedStep("", level, f"{one.op} {one.state}", details))
    return steps


def _queue_chart(samples: Sequence[QueueSample], language: str) -> dict[str, object]:
    lines = (
        (translatable("Unanswered conversations"), [one.conversations for one in samples]),
        (translatable("Being answered"), [one.held for one in samples]),
        (translatable("Unsent messages"), [one.unsent for one in samples]),
    )
    times = [round(one.at) for one in samples]
    return line_chart("second", translatable("Time (UTC)"), times, lines, language)

"""What the service is doing, collected once for all pages that look at it."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import TypeAlias

from pydantic import BaseModel, Field

from bot.chat.operation import (
    FailedMessage,
    LoggedStep,
    MessageTrace,
    ModelHealth,
    Node,
    ProcessReport,
)
from bot.console.health import Probe, run_probes
from bot.ports import Backend, Clock, LocalBackend, RateLimits, RemoteBackend
from bot.storage.dead_letters import DeadLetters
from bot.storage.operation import NodeRegistry, Pauses, SqlMessageNotes
from bot.storage.reports import ServiceState
from bot.telemetry.logs import RecentEvents, find_failure
from bot.value_class import value_class


class LeaseRow(BaseModel):
    """A role that only one process has at a time."""

    role: str
    owner: str
    seconds_left: float = Field(description="Negative: nobody has it.")


class ProviderRow(BaseModel):
    """A provider that is set up."""

    name: str
    kind: str
    model: str | None
    presets: list[str] = Field(description="The presets that it answers for.")
    max_in_flight: int | None = Field(None, description="How many requests are made at once.")


class NodeRow(BaseModel):
    """A process of the installation."""

    owner: str
    roles: str
    version: str
    seen_seconds: float = Field(description="How long ago it reported itself.")
    is_silent: bool = Field(description="Whether it has missed several reports.")
    leases: list[str] = Field(description="What only one process does at a time.")
    conversations: int = Field(description="How many it is answering.")


class PauseRow(BaseModel):
    """Where nothing is answered."""

    scope: str
    by: str
    at: float = Field(description="In Unix seconds.")


class ModelHealthRow(BaseModel):
    """How the newest requests of a process for a model went."""

    provider: str
    model: str
    paused: bool = Field(description="Its circuit breaker is open: one trial at a time is made.")
    requests: int = Field(description="The newest ones that are remembered.")
    failed: int
    process: str = Field("", description="Which process; empty: the one that answers.")


class LoadedModelRow(BaseModel):
    """A model in the memory of a machine."""

    provider: str
    model: str
    slots: int
    busy: int = Field(description="Slots in which an answer is generated now.")
    held: int = Field(description="Slots with the history of a conversation.")
    waiting: int = Field(description="Requests in its queue.")
    process: str = Field("", description="Which process; empty: the one that answers.")


class WaitRow(BaseModel):
    """A rate limit that makes somebody wait."""

    scope: str = Field(description="What is limited: calls of a platform, or a provider.")
    seconds: float | None = Field(description="How long still; null: until a slot is free.")
    waiting: int | None = Field(description="Requests of this process that wait; null: unknown.")


class StepRow(BaseModel):
    """One step of the processing of a message."""

    at: str = Field(description="In ISO 8601, UTC; empty: not known.")
    level: str
    event: str
    details: dict[str, str]


class ErrorRow(BaseModel):
    """A message with warnings or errors in the log of a process."""

    error_id: str = Field(description="What its author was told.")
    turn: str
    at: str
    event: str
    reason: str
    process: str = Field("", description="Which process; empty: the one that answers.")


class ErrorDetail(BaseModel):
    error_id: str
    turn: str
    steps: list[StepRow]


class TrialResult(BaseModel):
    """What a provider answered when it was tried."""

    provider: str
    works: bool
    answer: str = Field(description="Or why it does not work.")


class OperationState(BaseModel):
    """What the service is doing."""

    parts: dict[str, str] = Field(description='"ok" for what works, else why it does not.')
    conversations: int = Field(description="With unanswered messages.")
    held: int = Field(description="Of them, those that are being answered.")
    oldest_seconds: float | None = Field(description="How long the oldest of them waits.")
    lanes: int = Field(description="Chats with messages that are not sent yet.")
    unsent: int = Field(description="Those messages.")
    leases: list[LeaseRow]
    providers: list[ProviderRow]
    health: list[ModelHealthRow]
    loaded: list[LoadedModelRow]
    waits: list[WaitRow]
    errors: list[ErrorRow]
    nodes: list[NodeRow]
    pauses: list[PauseRow]
    dead_letters: int = Field(description="What was set aside; `troupe dead-letters` shows it.")


_PROBE_SECONDS = 2.0
_FRESH_SECONDS = 1.0
_MAX_ERRORS = 20
_MAX_SAMPLES = 600


FindReports: TypeAlias = Callable[[Sequence[str]], Awaitable[Mapping[str, ProcessReport]]]
"""Returns what processes tell of themselves, by their names, but not this process."""


async def no_reports(_: Sequence[str]) -> Mapping[str, ProcessReport]:
    """Return nothing: the processes of this installation share no values."""
    return {}


@value_class
class Installation:
    """What the commands of operators read as well."""

    nodes: NodeRegistry
    pauses: Pauses
    dead_letters: DeadLetters
    notes: SqlMessageNotes
    reports: FindReports = no_reports


@value_class
class QueueSample:
    """How much waited at a moment."""

    at: float
    """In Unix seconds."""
    conversations: int
    held: int
    unsent: int


@dataclass(slots=True)
class OperationReports:
    """Reports of the operation; those who ask within a second get the same one.

    Args:
        probes: what /readyz asks.
        state: what is stored.
        providers: the providers that are set up.
        backends: the same as what is asked, by name.
        waiting: how many requests to a provider wait for a slot.
        rate_limits: what platforms refuse.
        events: what was logged.
        installation: processes, pauses and what was set aside.
        clock: the time.
    """

    probes: Mapping[str, Probe]
    state: ServiceState
    providers: Sequence[ProviderRow]
    backends: Mapping[str, Backend]
    waiting: Callable[[str], int]
    rate_limits: RateLimits
    events: RecentEvents
    installation: Installation
    clock: Clock
    _newest: OperationState | None = None
    _made_at: float = 0.0
    _samples: deque[QueueSample] = field(default_factory=lambda: deque(maxlen=_MAX_SAMPLES))
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def current(self) -> OperationState:
        """Return the state; raises `StoreError`."""
        async with self._lock:
            now = self.clock.monotonic()
            if self._newest is None or now - self._made_at >= _FRESH_SECONDS:
                self._newest = await self._report()
                self._made_at = now
                self._sample(self._newest)
            return self._newest

    @property
    def samples(self) -> Sequence[QueueSample]:
        """What waited at each report while somebody looked, oldest first."""
        return list(self._samples)

    def _sample(self, state: OperationState) -> None:
        made = QueueSample(self.clock.now(), state.conversations, state.held, state.unsent)
        self._samples.append(made)

    async def _report(self) -> OperationState:
        now = self.clock.now()
        queues = asdict(await self.state.queues())
        oldest = queues.pop("oldest_since")
        nodes = await self.installation.nodes.nodes()
        others = await self._others(nodes)
        return OperationState(
            **queues,
            parts=dict(await run_probes(self.probes, _PROBE_SECONDS)),
            oldest_seconds=None if oldest is None else max(0.0, now - oldest),
            leases=[
                LeaseRow(role=one.role, owner=one.owner, seconds_left=one.until - now)
                for one in await self.state.role_leases()
            ],
            providers=list(self.providers),
            health=[
                _health_row(name, one, "")
                for name, backend in self.backends.items()
                if isinstance(backend, RemoteBackend)
                for one in backend.model_health()
            ]
            + [
                _health_row(one.provider, one.health, owner)
                for owner, told in others.items()
                for one in told.health
            ],
            loaded=[
                LoadedModelRow(provider=name, **asdict(one))
                for name, backend in self.backends.items()
                if isinstance(backend, LocalBackend)
                for one in backend.models_in_memory()
            ]
            + [
                LoadedModelRow(provider=one.provider, process=owner, **asdict(one.model))
                for owner, told in others.items()
                for one in told.models
            ],
            waits=await self._waits(),
            errors=self._errors(others),
            nodes=[_node_row(one) for one in nodes],
            pauses=[
                PauseRow(scope=one.scope, by=one.by, at=one.at)
                for one in await self.installation.pauses.current()
            ],
            dead_letters=len(await self.installation.dead_letters.all()),
        )

    async def _others(self, nodes: Sequence[Node]) -> Mapping[str, ProcessReport]:
        """Return what the other processes tell, by their names."""
        return await self.installation.reports([one.owner for one in nodes if not one.is_silent])

    def _errors(self, others: Mapping[str, ProcessReport]) -> list[ErrorRow]:
        rows = [_error_row(one, "") for one in self.events.failures(_MAX_ERRORS)]
        rows += [_error_row(one, owner) for owner, told in others.items() for one in told.errors]
        return sorted(rows, key=lambda one: one.at, reverse=True)[:_MAX_ERRORS]

    async def _find_error(self, error_id: str) -> FailedMessage | None:
        here = self.events.failure(error_id)
        if here is not None:
            return here
        stored = await find_failure(self.installation.notes.newest, error_id)
        if stored is not None:
            return stored
        others = await self._others(await self.installation.nodes.nodes())
        told = (one for report in others.values() for one in report.errors)
        return next((one for one in told if one.error_id == error_id), None)

    async def _waits(self) -> list[WaitRow]:
        refused = [
            WaitRow(scope=one.scope, seconds=one.seconds, waiting=None)
            for one in await self.rate_limits.refusals()
        ]
        queued = [
            WaitRow(scope=one.name, seconds=None, waiting=waiting)
            for one in self.providers
            if (waiting := self.waiting(one.name))
        ]
        return [*queued, *refused]

    async def error(self, error_id: str) -> ErrorDetail | None:
        """Return the steps of a message by the id that its author was told; None: not known."""
        failed = await self._find_error(error_id)
        if failed is None:
            return None
        trace = await self.state.trace(failed.turn)
        steps = [*_received(trace), *map(_step_row, failed.steps), *_deliveries(trace)]
        return ErrorDetail(error_id=failed.error_id, turn=failed.turn, steps=steps)


def _node_row(one: Node) -> NodeRow:
    return NodeRow(
        owner=one.owner,
        roles=one.roles,
        version=one.version,
        seen_seconds=one.seen_seconds,
        is_silent=one.is_silent,
        leases=list(one.leases),
        conversations=one.conversations,
    )


def _health_row(provider: str, one: ModelHealth, process: str) -> ModelHealthRow:
    return ModelHealthRow(
        provider=provider,
        model=one.model,
        paused=one.is_paused,
        requests=one.requests,
        failed=one.failed,
        process=process,
    )


def _error_row(one: FailedMessage, process: str) -> ErrorRow:
    newest = one.newest_failure
    reason = newest.details.get("reason") or newest.details.get("exception", "").strip()
    return ErrorRow(
        error_id=one.error_id,
        turn=one.turn,
        at=newest.at,
        event=newest.event,
        reason=reason.rpartition("\n")[2],
        process=process,
    )


def _step_row(one: LoggedStep) -> StepRow:
    return StepRow(at=one.at, level=one.level, event=one.event, details=dict(one.details))


def _received(trace: MessageTrace) -> list[StepRow]:
    if trace.received_at is None:
        return []
    at = datetime.fromtimestamp(trace.received_at, UTC).isoformat()
    details = {"deaths": str(trace.crashes)} if trace.crashes else {}
    if not trace.is_done:
        details["state"] = "unanswered"
    return [StepRow(at=at, level="info", event="received", details=details)]


def _deliveries(trace: MessageTrace) -> list[StepRow]:
    return [
        StepRow(
            at="",
            level="error" if one.error else "info",
            event=f"{one.op} {one.state}",
            details={
                "part": str(one.part),
                "attempts": str(one.attempts),
                **({"reason": one.error} if one.error else {}),
            },
        )
        for one in trace.parts
    ]

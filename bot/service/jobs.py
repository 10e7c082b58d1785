"""Jobs that run for as long as the process: retention, metrics, reports of itself."""

import contextlib
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence, Set
from dataclasses import replace

import structlog

from bot.chat.operation import HEARTBEAT_SECONDS, FailedMessage, LoggedStep, ProcessReport
from bot.console.operation import process_report
from bot.errors import StoreError
from bot.ports import Backend, Clock
from bot.prompting.presets.preset import Preset
from bot.service.options import Role
from bot.settings import Settings
from bot.storage.database import Database
from bot.storage.operation import NodeRegistry
from bot.storage.reports import ServiceState
from bot.storage.retention import delete_expired, delete_expired_turns
from bot.telemetry.logs import RecentEvents
from bot.telemetry.metrics import LOOP_LAG, QUEUE_AGE
from bot.value_class import value_class

_DELETE_AFTER_SECONDS = 300.0
"""After the start: a service that is restarted every hour deletes as well."""
_DELETE_EVERY_SECONDS = 3600.0
_SECONDS_BETWEEN_LAGS = 0.5
_SECONDS_BETWEEN_LOOKS = 2.0
_LOOKS_AT_START = 4
"""A part that has never worked may still be connecting."""
_MAX_ERRORS = 10
_MAX_STEPS = 30
_MAX_CHARS = 1000  # of the end of one value, where a traceback says what it is
_log = structlog.get_logger(__name__)

Job = Callable[[], Awaitable[None]]


async def _nothing() -> None:
    return


@value_class
class RolePart:
    """What one role needs of the process that has it."""

    jobs: Sequence[Job] = ()
    """What runs until the process ends."""
    start: Job = _nothing
    """Give back what this process held in an earlier life."""
    drain: Job = _nothing
    """Finish what is in progress, and begin nothing new."""


async def repeat(job: Job, clock: Clock, seconds_between: float) -> None:
    """Do a job again and again until cancelled; a failure of the database is only logged."""
    while True:
        try:
            await job()
        except StoreError as error:
            _log.warning("store_failed", reason=str(error))
        await clock.sleep(seconds_between)


async def delete_expired_rows(database: Database, settings: Settings, clock: Clock) -> None:
    """Delete, every hour, the rows that have outlived their retention time."""

    async def delete() -> None:
        _log.info("expired_rows_deleted", rows=await delete_expired_once(database, settings, clock))

    await clock.sleep(_DELETE_AFTER_SECONDS)
    await repeat(delete, clock, _DELETE_EVERY_SECONDS)


async def delete_expired_once(database: Database, settings: Settings, clock: Clock) -> int:
    """Delete what has expired now; return how many rows that was.

    Raises:
        StoreError: the database failed.
    """
    rows = await delete_expired(database, clock, settings.kept_receipt_days)
    if settings.history_days is None:
        return rows
    return rows + await delete_expired_turns(database, clock, settings.history_days)


async def measure_queues(state: ServiceState, roles: Set[Role]) -> None:
    """Set the gauges of the queues that these roles work on; raises `StoreError`."""
    found = await state.queue_ages()
    if Role.WORKER in roles:
        QUEUE_AGE.labels("conversations").set(found.conversations)
    if Role.SENDER in roles:
        QUEUE_AGE.labels("lanes").set(found.lanes)


def heartbeat(nodes: NodeRegistry, owner: str, roles: str, version: str, clock: Clock) -> RolePart:
    """Report that this process is there, for `troupe nodes`, and delete its row when it ends.

    Args:
        nodes: the rows of all processes.
        owner: the name that this one holds leases under.
        roles: what it does, separated by commas.
        version: of Troupe.
        clock: the time between two reports.
    """

    async def start() -> None:
        await nodes.enter(owner, roles, version)

    async def report() -> None:
        await nodes.report(owner, roles, version)

    async def run() -> None:
        await clock.sleep(HEARTBEAT_SECONDS)
        await repeat(report, clock, HEARTBEAT_SECONDS)

    async def end() -> None:
        with contextlib.suppress(StoreError):
            await nodes.leave(owner)

    return RolePart([run], start, end)


class LoopLag:
    """Sets a timer again and again; whatever keeps the loop busy makes it late."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    async def run(self) -> None:
        """Measure twice a second until cancelled."""
        while True:
            due_at = self._clock.monotonic() + _SECONDS_BETWEEN_LAGS
            await self._clock.sleep(_SECONDS_BETWEEN_LAGS)
            LOOP_LAG.observe(max(0.0, self._clock.monotonic() - due_at))


class OutageLog:
    """Looks at the parts every two seconds.

    Args:
        look: returns "ok" or the reason by the name of each part.
        clock: the time between two looks.
    """

    def __init__(self, look: Callable[[], Awaitable[Mapping[str, str]]], clock: Clock) -> None:
        self._look = look
        self._clock = clock
        self._began: dict[str, float] = {}
        self._has_worked: set[str] = set()

    async def run(self) -> None:
        """Log outages until cancelled."""
        looks = 0
        while True:
            looks += 1
            for part, state in (await self._look()).items():
                if state == "ok":
                    self._has_worked.add(part)
                    self._end(part)
                elif part in self._has_worked or looks >= _LOOKS_AT_START:
                    self._begin(part, state)
            await self._clock.sleep(_SECONDS_BETWEEN_LOOKS)

    def _begin(self, part: str, reason: str) -> None:
        if part not in self._began:
            self._began[part] = self._clock.monotonic()
            _log.warning("outage_began", part=part, reason=reason)

    def _end(self, part: str) -> None:
        if part in self._began:
            seconds = self._clock.monotonic() - self._began.pop(part)
            _log.info("outage_ended", part=part, seconds=round(seconds, 1))


@value_class
class ProviderNotices:
    """Looks at circuit breakers, and asks no provider.

    Args:
        presets: returns those that may answer.
        backends: those that this process asks; none where it does not answer.
        roles: what this process does.
    """

    presets: Callable[[], Collection[Preset]]
    backends: Mapping[str, Backend]
    roles: Collection[Role]

    def find(self) -> Sequence[str]:
        """Return a line for each provider that does not answer."""
        return [f"provider {name!r} does not answer this worker" for name in self._unreachable()]

    def states(self) -> Mapping[str, str]:
        """Return "ok" or the problem of each provider that this process asks."""
        unreachable = self._unreachable()
        return {
            f"provider {name}": "it does not answer" if name in unreachable else "ok"
            for name in self._served()
        }

    def worker_problem(self) -> str | None:
        """Return why a process that only answers cannot; None: it can, or does more than that.

        A process with other roles goes on receiving messages and serving its pages.
        """
        unreachable = self._unreachable()
        is_all = bool(unreachable) and len(unreachable) == len(self._served())
        if not is_all or self.roles != {Role.WORKER}:
            return None
        return f"no provider answers: {', '.join(unreachable)}"

    def _served(self) -> list[str]:
        if Role.WORKER not in self.roles:
            return []
        return sorted({one.provider for one in self.presets()})

    def _unreachable(self) -> list[str]:
        """Return the served providers of which every model that was asked has an open breaker."""
        found: list[str] = []
        for name in self._served():
            backend = self.backends.get(name)
            health = backend.model_health() if backend is not None else ()
            if health and all(one.is_paused for one in health):
                found.append(name)
        return found


@value_class
class ReportSharing:
    """Shares a report of this process every few seconds, if it has changed.

    Args:
        nodes: the rows of all processes.
        owner: the name that this process holds leases under.
        backends: those that this process asks; none where it does not answer.
        events: what was logged.
        clock: the time between two reports.
    """

    nodes: NodeRegistry
    owner: str
    backends: Mapping[str, Backend]
    events: RecentEvents
    clock: Clock

    async def run(self) -> None:
        """Report until cancelled."""
        told = ProcessReport()

        async def share() -> None:
            nonlocal told
            report = self.report()
            if report != told:
                await self.nodes.share(self.owner, report)
                told = report

        await repeat(share, self.clock, HEARTBEAT_SECONDS)

    def report(self) -> ProcessReport:
        """Return what this process tells."""
        report = process_report(self.backends, self.events)
        return replace(report, errors=tuple(map(_shortened, report.errors[:_MAX_ERRORS])))


def _shortened(failed: FailedMessage) -> FailedMessage:
    return replace(failed, steps=tuple(map(_shortened_step, failed.steps[-_MAX_STEPS:])))


def _shortened_step(step: LoggedStep) -> LoggedStep:
    details = {name: value[-_MAX_CHARS:] for name, value in step.details.items()}
    return replace(step, details=details)

"""Background jobs of a process: retention, metrics, heartbeat, outages, reports."""

import contextlib
import itertools
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence, Set
from functools import partial

import structlog

from bot.chat.operation import HEARTBEAT_SECONDS, ProcessReport
from bot.console.operation import build_process_report
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
from bot.telemetry.metrics import LOOP_LAG_SECONDS, QUEUE_AGE
from bot.value_class import value_class

_SECONDS_BEFORE_DELETION = 300.0  # less than an hour, so that hourly restarts do not prevent it
_SECONDS_BETWEEN_DELETIONS = 3600.0
_SECONDS_BETWEEN_LAG_CHECKS = 0.5
_SECONDS_BETWEEN_CHECKS = 2.0
_SILENT_CHECKS = 4  # first checks without warnings, while components are connecting
_log = structlog.get_logger(__name__)

Job = Callable[[], Awaitable[None]]


async def _do_nothing() -> None:
    return


@value_class
class JobGroup:
    """Jobs, such as those of a role, with their setup and cleanup."""

    jobs: Sequence[Job] = ()
    """Jobs that run until the process ends."""
    start: Job = _do_nothing
    """Runs before the jobs, for example to release claims of a previous run."""
    finish_work: Job = _do_nothing
    """Finishes work in progress, but starts no new work."""


async def repeat(job: Job, clock: Clock, pause_seconds: float) -> None:
    """Repeat a job until cancelled, and log database failures."""
    while True:
        try:
            await job()
        except StoreError as error:
            _log.warning("store_failed", reason=str(error))
        await clock.sleep(pause_seconds)


async def delete_expired_rows(database: Database, settings: Settings, clock: Clock) -> None:
    """Delete expired rows every hour, until cancelled."""
    await clock.sleep(_SECONDS_BEFORE_DELETION)
    delete_once = partial(delete_expired_once, database, settings, clock)
    await repeat(delete_once, clock, _SECONDS_BETWEEN_DELETIONS)


async def delete_expired_once(database: Database, settings: Settings, clock: Clock) -> None:
    """Delete expired rows once; raises `StoreError`."""
    row_count = await delete_expired(database, clock, settings.effective_receipt_days)
    if settings.history_days is not None:
        row_count += await delete_expired_turns(database, clock, settings.history_days)
    _log.info("expired_rows_deleted", rows=row_count)


async def measure_queues(state: ServiceState, roles: Set[Role]) -> None:
    """Update the metrics of these roles' queues; raises `StoreError`."""
    conversation_age, lane_age = await state.queue_ages()
    if Role.WORKER in roles:
        QUEUE_AGE.labels("conversations").set(conversation_age)
    if Role.SENDER in roles:
        QUEUE_AGE.labels("lanes").set(lane_age)


def make_heartbeat_jobs(
    nodes: NodeRegistry, owner: str, roles: str, version: str, clock: Clock
) -> JobGroup:
    """Return the jobs that register this process for `troupe nodes` while it runs."""

    async def send_heartbeats() -> None:
        await clock.sleep(HEARTBEAT_SECONDS)
        await repeat(partial(nodes.report_running, owner, roles, version), clock, HEARTBEAT_SECONDS)

    async def unregister() -> None:
        with contextlib.suppress(StoreError):
            await nodes.unregister(owner)

    return JobGroup([send_heartbeats], partial(nodes.register, owner, roles, version), unregister)


async def measure_loop_lag(clock: Clock) -> None:
    """Measure twice per second how late a timer fires because the event loop is busy."""
    while True:
        due_at = clock.monotonic() + _SECONDS_BETWEEN_LAG_CHECKS
        await clock.sleep(_SECONDS_BETWEEN_LAG_CHECKS)
        LOOP_LAG_SECONDS.observe(max(0.0, clock.monotonic() - due_at))


async def log_outages(check: Callable[[], Awaitable[Mapping[str, str]]], clock: Clock) -> None:
    """Log when components fail and work again; `check` returns their states, "ok" or a problem."""
    outage_starts: dict[str, float] = {}
    working_names: set[str] = set()
    for count in itertools.count(1):
        for name, state in (await check()).items():
            if state == "ok":
                working_names.add(name)
                if name in outage_starts:
                    seconds = round(clock.monotonic() - outage_starts.pop(name), 1)
                    _log.info("outage_ended", part=name, seconds=seconds)
            elif name not in outage_starts and (name in working_names or count >= _SILENT_CHECKS):
                outage_starts[name] = clock.monotonic()
                _log.warning("outage_began", part=name, reason=state)
        await clock.sleep(_SECONDS_BETWEEN_CHECKS)


@value_class
class ProviderNotices:
    """Reports providers with open circuit breakers, without sending requests."""

    presets: Callable[[], Collection[Preset]]
    backends: Mapping[str, Backend]
    roles: Collection[Role]

    def find(self) -> Sequence[str]:
        """Return a line per unreachable provider."""
        unreachable_names = self._list_unreachable_providers()
        return [f"provider {name!r} does not answer this worker" for name in unreachable_names]

    def describe_states(self) -> Mapping[str, str]:
        """Return "ok" or the problem of each provider that this process uses."""
        unreachable_names = self._list_unreachable_providers()
        return {
            f"provider {name}": "it does not answer" if name in unreachable_names else "ok"
            for name in self._list_served_providers()
        }

    def worker_problem(self) -> str | None:
        """Return a problem if no provider works and this process has no other role."""
        unreachable_names = self._list_unreachable_providers()
        if (
            self.roles != {Role.WORKER}
            or not unreachable_names
            or unreachable_names != self._list_served_providers()
        ):
            return None
        return f"no provider answers: {', '.join(unreachable_names)}"

    def _list_served_providers(self) -> list[str]:
        return sorted({one.provider for one in self.presets()}) if Role.WORKER in self.roles else []

    def _list_unreachable_providers(self) -> list[str]:
        """Return the providers whose models all have open circuit breakers."""
        health = {
            name: self.backends[name].model_health()
            for name in self._list_served_providers()
            if name in self.backends
        }
        return [name for name, each in health.items() if each and all(one.paused for one in each)]


async def share_reports(
    nodes: NodeRegistry,
    owner: str,
    backends: Mapping[str, Backend],
    events: RecentEvents,
    clock: Clock,
) -> None:
    """Publish this process's report whenever it changes, until cancelled."""
    last_report = ProcessReport()

    async def share_changed_report() -> None:
        nonlocal last_report
        report = build_process_report(backends, events)
        if report != last_report:
            await nodes.store_report(owner, report)
            last_report = report

    await repeat(share_changed_report, clock, HEARTBEAT_SECONDS)

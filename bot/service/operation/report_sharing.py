"""Tell the other processes what failed here and which models answer, for the console's page."""

from collections.abc import Mapping
from dataclasses import replace

from bot.chat.console.operation import (
    HEARTBEAT_SECONDS,
    FailedMessage,
    LoggedStep,
    ProcessModel,
    ProcessModelHealth,
    ProcessReport,
)
from bot.frozen_dataclass import frozen_dataclass
from bot.ports import Backend, Clock, LoadingBackend, MonitoredBackend
from bot.storage.cache.shared_reports import SharedReports
from bot.telemetry.recent_events import RecentEvents

_MAX_ERRORS = 10
_MAX_STEPS = 30
_MAX_CHARS = 1000  # of the end of one value, where a traceback says what it is


@frozen_dataclass
class ReportSharing:
    """Shares a report of this process every few seconds.

    Args:
        shared: where reports are kept.
        owner: the name that this process holds leases under.
        backends: those that this process asks; none where it does not answer.
        events: what was logged.
        clock: the time between two reports.
    """

    shared: SharedReports
    owner: str
    backends: Mapping[str, Backend]
    events: RecentEvents
    clock: Clock

    async def run(self) -> None:
        """Report until cancelled."""
        while True:
            self.shared.keep(self.owner, self.report())
            await self.clock.sleep(HEARTBEAT_SECONDS)

    def report(self) -> ProcessReport:
        """Return what this process tells."""
        return ProcessReport(
            errors=tuple(map(_shortened, self.events.failures(_MAX_ERRORS))),
            health=tuple(
                ProcessModelHealth(name, one)
                for name, backend in self.backends.items()
                if isinstance(backend, MonitoredBackend)
                for one in backend.model_health()
            ),
            models=tuple(
                ProcessModel(name, one)
                for name, backend in self.backends.items()
                if isinstance(backend, LoadingBackend)
                for one in backend.models_in_memory()
            ),
        )


def _shortened(failed: FailedMessage) -> FailedMessage:
    return replace(failed, steps=tuple(map(_shortened_step, failed.steps[-_MAX_STEPS:])))


def _shortened_step(step: LoggedStep) -> LoggedStep:
    details = {name: value[-_MAX_CHARS:] for name, value in step.details.items()}
    return replace(step, details=details)

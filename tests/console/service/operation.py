"""The page of the operation with chosen parts."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from bot.console.health import Probe
from bot.console.operation import FindReports, OperationReports, ProviderRow, no_reports
from bot.console.operation_page import OperationPage, TryProvider
from bot.console.pages import PageRenderer
from bot.console.routes import (
    RouteGroup,
)
from bot.errors import BackendUnavailable
from bot.ports import Backend, Clock, RateLimits
from bot.runtime.clock import SystemClock
from bot.runtime.in_process import InProcessRateLimits
from bot.storage.database import Database
from bot.storage.reports import ServiceState
from bot.telemetry.logs import RecentEvents
from tests.console.conftest import installation
from tests.samples import mask_secret


async def nobody_answers(provider: str) -> str:
    raise BackendUnavailable(f"{provider} is away")


def operation_page(
    database: Database,
    *,
    probes: Mapping[str, Probe] | None = None,
    providers: Sequence[ProviderRow] = (),
    backends: Mapping[str, Backend] | None = None,
    waiting: Mapping[str, int] | None = None,
    rate_limits: RateLimits | None = None,
    events: RecentEvents | None = None,
    try_provider: TryProvider = nobody_answers,
    clock: Clock | None = None,
    elsewhere: FindReports = no_reports,
) -> RouteGroup:
    clock = clock or SystemClock()
    waits = waiting or {}
    reports = OperationReports(
        probes or {},
        ServiceState(database, clock),
        providers,
        backends or {},
        lambda name: waits.get(name, 0),
        rate_limits or InProcessRateLimits(clock),
        events or RecentEvents(),
        replace(installation(database), reports=elsewhere),
        clock,
    )
    return OperationPage(reports, try_provider, mask_secret, PageRenderer(()), clock)

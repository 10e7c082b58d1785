"""The page of the operation shows what other processes tell of themselves."""

import pytest

from bot.chat.access import Scope
from bot.chat.session import error_id_of
from bot.console.routes import (
    RouteGroup,
)
from bot.runtime.clock import SystemClock
from bot.service.jobs import ReportSharing
from bot.storage.database import Database
from bot.storage.operation import NodeRegistry
from bot.storage.reports import SharedReports
from bot.telemetry.logs import RecentEvents
from tests.console.conftest import ConsoleUnderTest, MakeParts
from tests.console.service.operation import operation_page
from tests.console.service.test_operation_page import (
    PROVIDERS,
    TURN,
    LocalBackend,
    Parts,
    WatchedBackend,
)
from tests.fakes import FakeSharedValues

CLOCK = SystemClock()


@pytest.fixture
def values() -> FakeSharedValues:
    return FakeSharedValues()


@pytest.fixture
def make_parts(values: FakeSharedValues) -> MakeParts:
    def make(database: Database) -> list[RouteGroup]:
        shared = SharedReports(values, database.codec)
        return [operation_page(database, providers=PROVIDERS, elsewhere=shared.find)]

    return make


async def test_errors_and_models_of_another_process_are_shown(
    console: ConsoleUnderTest, values: FakeSharedValues
) -> None:
    elsewhere = Parts(RecentEvents())
    elsewhere.log("error", "turn_failed", exception=f"{'x' * 1500}\nValueError: <script>")
    shared = SharedReports(values, console.database.codec)
    backends = {"remote": WatchedBackend([]), "local": LocalBackend([])}
    sharing = ReportSharing(shared, "host:<2>", backends, elsewhere.events, CLOCK)
    shared.keep("host:<2>", sharing.report())
    await NodeRegistry(console.database, CLOCK).enter("host:<2>", "worker", "0.1.0")
    await console.log_in()
    error_id = error_id_of(TURN)

    headers = await console.bearer(Scope.READ)
    state = await (await console.client.get("/api/v1/operation", headers=headers)).json()
    page = await (await console.client.get("/operation")).text()
    steps = await (await console.client.get(f"/operation/errors/{error_id}")).text()

    assert [(one["error_id"], one["process"]) for one in state["errors"]] == [
        *((error_id, "host:<2>"),)
    ]
    assert {(one["model"], one["process"]) for one in state["health"]} == {
        *(("good", "host:<2>"), ("bad", "host:<2>"))
    }
    assert [(one["model"], one["busy"], one["process"]) for one in state["loaded"]] == [
        *(("small", 1, "host:<2>"),)
    ]
    assert "host:&lt;2&gt;" in page
    assert "ValueError: &lt;script&gt;" in page
    assert "turn_failed" in steps
    assert "x" * 1000 not in steps  # long values are cut before they are shared


async def test_process_without_a_readable_report_is_left_out(
    console: ConsoleUnderTest, values: FakeSharedValues
) -> None:
    values.keep("report:host:1", b"of another version")
    await NodeRegistry(console.database, CLOCK).enter("host:1", "worker", "0.1.0")
    await NodeRegistry(console.database, CLOCK).enter("host:2", "worker", "0.1.0")
    await console.log_in()

    answer = await console.client.get("/operation")

    assert answer.status == 200
    assert "Nothing has failed since the start." in await answer.text()

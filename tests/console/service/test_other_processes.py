"""The page of the operation shows what other processes tell of themselves."""

import pytest
from sqlalchemy import update

from bot.chat.access import Scope
from bot.chat.session import error_id_of
from bot.console.routes import (
    RouteGroup,
)
from bot.runtime.clock import SystemClock
from bot.service.jobs import ReportSharing
from bot.storage.database import Database
from bot.storage.operation import NodeRegistry
from bot.storage.tables import node
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

CLOCK = SystemClock()


@pytest.fixture
def make_parts() -> MakeParts:
    def make(database: Database) -> list[RouteGroup]:
        reports = NodeRegistry(database, CLOCK).reports
        return [operation_page(database, providers=PROVIDERS, elsewhere=reports)]

    return make


async def test_errors_and_models_of_another_process_are_shown(
    console: ConsoleUnderTest,
) -> None:
    elsewhere = Parts(RecentEvents())
    elsewhere.log("error", "turn_failed", exception=f"{'x' * 1500}\nValueError: <script>")
    nodes = NodeRegistry(console.database, CLOCK)
    backends = {"remote": WatchedBackend([]), "local": LocalBackend([])}
    sharing = ReportSharing(nodes, "host:<2>", backends, elsewhere.events, CLOCK)
    await nodes.enter("host:<2>", "worker", "0.1.0")
    await nodes.share("host:<2>", sharing.report())
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
    console: ConsoleUnderTest,
) -> None:
    nodes = NodeRegistry(console.database, CLOCK)
    await nodes.enter("host:1", "worker", "0.1.0")
    await nodes.enter("host:2", "worker", "0.1.0")
    other_version = update(node).where(node.c.owner == "host:1").values(report=b"of another one")
    await console.database.write(lambda c: c.execute(other_version).rowcount)
    await console.log_in()

    answer = await console.client.get("/operation")

    assert answer.status == 200
    assert "Nothing has failed since the start." in await answer.text()

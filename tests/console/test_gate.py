"""Every route of the table refuses who is not let in."""

import json
from pathlib import Path

import pytest

from bot.chat.access import Scope
from bot.console.routes import ConsolePart
from bot.console.service.channels_page import ChannelsPage
from bot.console.service.usage_page import UsagePage
from bot.runtime.clock import SystemClock
from bot.storage.console.service_state import SqlServiceState
from bot.storage.sql.database import Database
from bot.storage.usage.totals import SqlUsageTotals
from tests.console.answers.test_answer_pages import answer_pages
from tests.console.conftest import ConsoleUnderTest, MakeParts
from tests.console.service.operation import operation_page


@pytest.fixture
def make_parts(tmp_path: Path) -> MakeParts:
    """Make every page of the product."""
    clock = SystemClock()

    def make(database: Database) -> list[ConsolePart]:
        state = SqlServiceState(database, clock)
        return [
            answer_pages(database, tmp_path),
            ChannelsPage(state, "assistant").part,
            operation_page(database),
            UsagePage(SqlUsageTotals(database), clock).part,
        ]

    return make


def routes_of(console: ConsoleUnderTest) -> list[tuple[str, str]]:
    """Return method and path of every route that needs a log-in, with numbers filled in."""
    registered = [
        (route.method, str(route.resource.canonical))
        for route in console.client.app.router.routes()
        if route.resource is not None
    ]
    public = {"/login", "/look", "/static/{name}"}
    return [(method, path) for method, path in registered if path not in public]


def filled(path: str) -> str:
    return "/".join("1" if part.startswith("{") else part for part in path.split("/"))


async def statuses(console: ConsoleUnderTest, headers: dict[str, str]) -> dict[str, int]:
    return {
        f"{method} {path}": (
            await console.client.request(
                method, filled(path), headers=headers, json={}, allow_redirects=False
            )
        ).status
        for method, path in routes_of(console)
    }


async def test_every_route_refuses_without_a_log_in(console: ConsoleUnderTest) -> None:
    found = await statuses(console, {"Origin": console.origin})

    assert len(found) >= 18
    assert set(found.values()) == {401}


async def test_every_route_refuses_an_unknown_token(console: ConsoleUnderTest) -> None:
    found = await statuses(console, {"Authorization": "Bearer troupe_guessed"})

    assert set(found.values()) == {401}


async def test_every_route_refuses_a_token_without_scopes(console: ConsoleUnderTest) -> None:
    assert set((await statuses(console, await console.bearer())).values()) == {403}


async def test_every_route_refuses_another_site(console: ConsoleUnderTest) -> None:
    await console.log_in()

    for origin in ("https://evil.example", "null", console.origin + "0"):
        assert set((await statuses(console, {"Origin": origin})).values()) == {403}


async def test_every_route_refuses_a_foreign_host(console: ConsoleUnderTest) -> None:
    await console.log_in()

    for host in ("evil.example", "127.0.0.1.evil.example", "[::1"):
        found = await statuses(console, {"Host": host, "Origin": f"http://{host}"})
        assert set(found.values()) == {403}


async def test_public_pages_refuse_a_foreign_host(console: ConsoleUnderTest) -> None:
    for path in ("/login", "/static/console.css"):
        answer = await console.client.get(path, headers={"Host": "evil.example"})
        assert answer.status == 403


async def test_wrong_scope_is_named(console: ConsoleUnderTest) -> None:
    headers = await console.bearer(Scope.READ)

    refused = await console.client.get("/api/v1/tokens", headers=headers)

    assert refused.status == 403
    assert await refused.json() == {"error": "This token lacks the scope operate."}


async def test_revoked_token_is_refused(console: ConsoleUnderTest) -> None:
    headers = await console.bearer(Scope.READ)
    assert (await console.client.get("/api/v1/audit", headers=headers)).status == 200

    assert await console.tokens.revoke_api_token("read")

    assert (await console.client.get("/api/v1/audit", headers=headers)).status == 401


@pytest.mark.parametrize("limit", ["0", "many", "1001"])
async def test_wrong_value_of_a_query_is_named(console: ConsoleUnderTest, limit: str) -> None:
    headers = await console.bearer(Scope.READ)

    refused = await console.client.get(f"/api/v1/audit?limit={limit}", headers=headers)

    assert refused.status == 422
    assert "limit" in (await refused.json())["error"]


async def test_openapi_names_every_route_of_the_api(console: ConsoleUnderTest) -> None:
    headers = await console.bearer(Scope.READ)
    document = await (await console.client.get("/api/v1/openapi.json", headers=headers)).json()

    described = {(m.upper(), path) for path, one in document["paths"].items() for m in one}
    assert document["openapi"] == "3.1.0"
    assert described == {one for one in routes_of(console) if one[1].startswith("/api/")}
    references = {
        text.rpartition("/")[2]
        for text in json.dumps(document).split('"')
        if text.startswith("#/components/schemas/")
    }
    assert references <= document["components"]["schemas"].keys()

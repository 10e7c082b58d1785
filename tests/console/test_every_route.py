"""Access to every route of a process: refused requests, and the limits of a read token.

The routes are those of the running service, so a new route without access checks fails.
"""

import json
import sqlite3
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from bot.chat.access import ApiScope
from bot.console.routes import Route
from bot.platforms.web import SPEC
from bot.service.run import Service, open_service
from bot.settings import Settings
from tests.fakes import FakeClock
from tests.platforms.web.channel import open_channel, write_settings
from tests.support.console import MARLOWE, NORA, ConsoleUnderTest

PUBLIC = {
    ("GET", "/healthz"),
    ("GET", "/readyz"),
    ("GET", "/metrics"),
    ("GET", "/login"),
    ("POST", "/login"),
    ("POST", "/look"),
    ("GET", "/static/{name}"),
}
"""The routes that anybody may request; all others require a login."""

READING_POSTS = {
    ("POST", "/logout"),
    ("POST", "/api/v1/preset-check"),
    ("POST", "/api/v1/presets/{name}/test"),
}
"""POST requests allowed for a read token, which change nothing and ask no model."""

SECRETS = {
    "key of a provider": "sk-canary-4b1d7e90c2aa",
    "password of an address": "pw-canary-77aa01",
    "token of the settings": "settings-canary-token-91",
    "key of stored texts": "Zm9yLXRlc3RzLW9ubHktbm90LWEtc2VjcmV0LWtleTA=",
}


@dataclass
class ServedConsole(ConsoleUnderTest):
    """All routes of a service with its console."""

    service: Service
    settings: Settings

    @property
    def routes(self) -> set[tuple[str, str]]:
        """The methods and paths of all routes; HEAD counts as GET."""
        return {
            (route.method.replace("HEAD", "GET"), str(route.resource.canonical))
            for route in self.client.app.router.routes()
            if route.resource is not None
        }

    @property
    def table(self) -> Mapping[tuple[str, str], Route]:
        console = self.service.console.make_console({})
        return {(route.method, route.path): route for route in console.routes}

    async def status(self, method: str, path: str, headers: Mapping[str, str]) -> int:
        return (await self.ask(method, path, headers))[0]

    async def ask(self, method: str, path: str, headers: Mapping[str, str]) -> tuple[int, str]:
        """Send a request; return the status, and the body unless it is an event stream."""
        url = "/".join(FILLED.get(part, part) for part in path.split("/"))
        body = None if method == "GET" else {"content": "{}"}
        async with self.client.request(
            method, url, headers=headers, json=body, allow_redirects=False
        ) as answer:
            is_stream = answer.content_type == "text/event-stream"
            return answer.status, "" if is_stream else await answer.text(errors="replace")

    def contents(self) -> tuple[list[str], dict[str, bytes]]:
        """Return all rows of the database, and all files of the presets folder."""
        with closing(sqlite3.connect(self.settings.data_dir / "troupe.db")) as database:
            rows = list(database.iterdump())
        folder = self.settings.presets_dir
        assert folder is not None
        return rows, {one.name: one.read_bytes() for one in folder.iterdir()}


FILLED = {
    "{name}": "nora",
    "{channel}": "c1",
    "{entry}": "1",
    "{number}": "1",
    "{other}": "1",
    "{message}": "m1",
    "{provider}": "paid",
    "{platform}": "telegram",
    "{error}": "84f844",
}


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[ServedConsole]:
    closed = "127.0.0.1:9/v1"
    paid = {"kind": "openai", "model": "m", "base_url": f"http://{closed}"}
    providers = {
        "echo": {"kind": "echo"},
        "paid": {**paid, "api_key": SECRETS["key of a provider"]},
        "other": {**paid, "base_url": f"http://u:{SECRETS['password of an address']}@{closed}"},
    }
    settings = write_settings(
        tmp_path,
        [NORA, {**MARLOWE, "provider": "paid", "fallbacks": [{"provider": "other"}]}],
        providers=providers,
        console={"port": 0, "token": SECRETS["token of the settings"]},
        encryption_keys=SECRETS["key of stored texts"],
    )
    async with open_service(settings, lambda _line: None, [SPEC]) as service:
        app = web.Application()
        for add_routes in service.http_routes():
            add_routes(app)
        container = service.container
        server = TestServer(app)
        async with TestClient(server, cookie_jar=aiohttp.CookieJar(unsafe=True)) as client:
            yield ServedConsole(
                client,
                container.console_tokens,
                FakeClock(time.time()),
                container.database,
                service,
                settings,
            )


async def test_only_public_routes_respond_without_login(
    served: ServedConsole,
) -> None:
    before = served.contents()

    for headers in ({"Origin": served.origin}, {"Authorization": "Bearer troupe_guessed"}):
        asked = sorted(served.routes - PUBLIC)
        found = {one: await served.status(*one, headers) for one in asked}
        assert {one: status for one, status in found.items() if status != 401} == {}

    assert served.routes >= PUBLIC
    assert len(served.routes) > 90
    assert served.contents() == before


async def test_every_route_refuses_tokens_without_its_scope(served: ServedConsole) -> None:
    table = served.table
    enough = {
        one: frozenset({table[one].scope, table[one].other_scope} & set(ApiScope))
        for one in served.routes - PUBLIC
    }
    lacking = {one: await served.bearer(*(set(ApiScope) - one)) for one in set(enough.values())}
    nothing, only_presets = await served.bearer(), await served.bearer(ApiScope.PRESETS)
    before = served.contents()

    found = {}
    for one, scopes in sorted(enough.items()):
        assert scopes, one
        found[one] = {
            await served.status(*one, lacking[scopes]),
            await served.status(*one, nothing),
        }
    reads = await served.status("GET", "/api/v1/presets", only_presets)

    assert reads == 200
    assert {one: statuses for one, statuses in found.items() if statuses != {403}} == {}
    assert served.contents() == before


async def test_every_route_refuses_requests_from_other_sites_and_hosts(
    served: ServedConsole,
) -> None:
    await served.log_in()
    before = served.contents()
    foreign = [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Host": "evil.example", "Origin": "http://evil.example"},
        {"Host": "[::1", "Origin": "http://[::1"},
    ]

    console = sorted(served.routes & served.table.keys())
    found = {one: {await served.status(*one, headers) for headers in foreign} for one in console}

    assert {one: statuses for one, statuses in found.items() if statuses != {403}} == {}
    assert served.contents() == before


async def test_read_token_can_neither_change_anything_nor_see_secrets(
    served: ServedConsole,
) -> None:
    reader = await served.bearer(ApiScope.READ)
    await served.bearer(ApiScope.OPERATE)
    override = {"X-HTTP-Method-Override": "DELETE", "X-HTTP-Method": "POST"}
    reads = [one for one in served.table if served.table[one].scope is ApiScope.READ]
    assert {one for one in reads if one[0] != "GET"} == READING_POSTS

    for has_content in (False, True):
        if has_content:
            await open_channel(served.service)
        before = served.contents()
        for one in sorted({*reads, *PUBLIC - {("GET", "/metrics")}}):
            status, body = await served.ask(*one, {**reader, **override})
            assert status < 500, one
            assert [name for name, secret in SECRETS.items() if secret in body] == [], one
            assert '"name":"operate"' not in body, one
            assert "<td>operate</td>" not in body, one
        assert served.contents() == before


@pytest.mark.parametrize("method", ["HEAD", "OPTIONS", "TRACE", "PROPFIND"])
async def test_unknown_http_methods_reach_no_handler(served: ServedConsole, method: str) -> None:
    await served.log_in()
    paths = {path for _, path in served.routes & served.table.keys()}

    found = {path: await served.status(method, path, {"Origin": served.origin}) for path in paths}

    assert set(found.values()) == {405}


async def test_openapi_document_contains_every_api_route(served: ServedConsole) -> None:
    headers = await served.bearer(ApiScope.READ)
    _, body = await served.ask("GET", "/api/v1/openapi.json", headers)
    document = json.loads(body)

    described = {(m.upper(), path) for path, one in document["paths"].items() for m in one}
    assert document["openapi"] == "3.1.0"
    assert described == {one for one in served.routes if one[1].startswith("/api/")}
    references = {
        text.rpartition("/")[2]
        for text in json.dumps(document).split('"')
        if text.startswith("#/components/schemas/")
    }
    assert references <= document["components"]["schemas"].keys()

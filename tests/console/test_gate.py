"""Requests are refused with their reason: the host, the scope, the query, the body.

tests/console/test_every_route.py asks every route of the service.
"""

import pytest

from bot.chat.access import Scope
from tests.console.conftest import ConsoleUnderTest


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


@pytest.mark.parametrize("body", ["[" * 100_000, '{"token":' * 50_000, "{", '"\\ud800"', "NaN", ""])
async def test_body_that_is_no_json_is_refused(console: ConsoleUnderTest, body: str) -> None:
    headers = {"Origin": console.origin, "Content-Type": "application/json"}

    refused = await console.client.post("/login", data=body, headers=headers)

    assert refused.status == 422

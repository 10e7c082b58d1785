"""Tokens are revoked on the page and over the API, and the audit log says by whom."""

import json

from bot.chat.access import AuditEntry, Scope
from bot.storage.chat_settings import SqlChatSettings
from bot.storage.operation import AuditLog
from tests.support.console import ConsoleUnderTest


async def test_token_is_revoked_on_the_page(console: ConsoleUnderTest) -> None:
    headers = await console.bearer(Scope.READ)
    await console.log_in()

    shown = await console.send_form("/access/revoke", "/access", name="read")

    assert shown.url.path == "/access"
    assert "revoke token read" in await shown.text()
    assert (await console.client.get("/api/v1/audit", headers=headers)).status == 401


async def test_page_shows_what_an_admin_changed_in_a_group(console: ConsoleUnderTest) -> None:
    settings = SqlChatSettings(console.database, console.clock)
    for value in ("<nora>", "fox"):
        await settings.set("telegram:-5", "preset", value, "telegram:9", audited=True)
    await console.log_in()
    page = await console.page("/access")
    assert "<td>telegram:9</td><td>set preset telegram:-5</td>" in page
    assert '<td class="people">&lt;nora&gt;</td><td class="people">fox</td>' in page


async def test_audit_tells_no_other_tokens_to_a_reader(console: ConsoleUnderTest) -> None:
    reader = await console.bearer(Scope.READ)
    operator = await console.bearer(Scope.OPERATE, Scope.READ)
    audit = AuditLog(console.database)
    for who, action, subject in (
        ("token deploy-bot", "publish", "nora v2"),
        ("command line", "add token", "deploy-bot"),
        ("token operate-read", "revoke token", "deploy-bot"),
        ("token read", "log out", "session"),
    ):
        await audit.record(AuditEntry(console.clock.now(), who, action, subject))

    told = []
    for headers in (reader, operator):
        page = await console.page("/access", **headers)
        entries = json.loads(await console.page("/api/v1/audit", **headers))
        told.append([(one["who"], one["subject"]) for one in entries["entries"]])
        assert ("deploy-bot" in page) == (headers is operator)
        assert ("<td>operate-read</td>" in page) == (headers is operator)  # the list of tokens

    assert told[0] == [
        ("token read", "session"),
        ("token", ""),
        ("command line", ""),
        ("token", "nora v2"),
    ]
    assert told[1][-1] == ("token deploy-bot", "nora v2")


async def test_token_is_revoked_over_the_api(console: ConsoleUnderTest) -> None:
    await console.bearer(Scope.READ)
    headers = await console.bearer(Scope.OPERATE, Scope.READ)

    revoked = await console.client.delete("/api/v1/tokens/read", headers=headers)
    again = await console.client.delete("/api/v1/tokens/read", headers=headers)
    audit = json.loads(await console.page("/api/v1/audit", **headers))

    assert (revoked.status, again.status) == (200, 404)
    [entry] = audit["entries"]
    assert (entry["who"], entry["action"], entry["subject"]) == (
        *("token operate-read", "revoke token", "read"),
    )

"""The page of one channel over HTTP, with the whole service behind it."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import quote

import pytest

from bot.chat.access import ApiScope, ApiToken
from bot.console.login import hash_token
from tests.platforms.web.channel import write_settings
from tests.support.console import MARLOWE, NORA, Playground, opened, post_say
from tests.waiting import PATIENCE_SECONDS

KEY = "00000000"


@pytest.fixture
async def playground(tmp_path: Path) -> AsyncIterator[Playground]:
    budgets = {"budget": {"day": 1.5}}
    async with opened(write_settings(tmp_path, [{**NORA, **budgets}, MARLOWE])) as one:
        await one.open()
        await one.send(f"{one.path}/people", name="alice<b>")
        await one.open(one.path)
        await one.say("@troupe hello", KEY, "web:alice<b>")
        await one.answered(2)
        yield one


def channel_key(playground: Playground) -> str:
    return f"web:{playground.path.rpartition('/')[2]}"


async def read(playground: Playground, path: str) -> tuple[int, str]:
    async with playground.client.get(playground.address + path) as response:
        return response.status, await response.text()


async def test_channel_page_shows_who_answers_and_why(playground: Playground) -> None:
    key = channel_key(playground)
    path = f"/channels/{quote(key, safe='')}"

    _, listed = await read(playground, "/channels")
    _, page = await read(playground, path)
    status, shown = await read(playground, f"/api/v1{path}")

    assert f'href="/channels/{key.replace(":", "%3A")}"' in listed
    found = json.loads(shown)
    assert status == 200
    assert (found["active"], found["active_from"]) == (["nora"], None)
    assert [(one["scope"], one["kind"]) for one in found["scopes"]] == [(key, "channel")]
    assert [one["id"] for one in found["people"]] == ["web:alice<b>"]
    assert [(one["number"], one["turns"]) for one in found["sessions"]] == [(1, 2)]
    assert [(one["kind"], one["limit"]) for one in found["budgets"]] == [("preset", 1.5)]
    assert "alice&lt;b&gt;" in page
    assert "alice<b>" not in page
    assert "$1.50" in page
    for unknown in ("web%3Anobody", "nobody", "%3A%3A", "%00", "web%3A%23"):
        assert (await read(playground, f"/channels/{unknown}"))[0] == 404, unknown

    # One of the playground has a page before its first message.
    _, created = await playground.send("/playground", name="empty")
    page = await playground.open(created)
    path = f"/channels/{quote(channel_key(playground), safe='')}"

    assert "Write a message below, and Nora will answer." in page
    assert f'href="{path}"' in page
    assert (await read(playground, path))[0] == 200


async def test_changing_a_channels_presets_is_audited(playground: Playground) -> None:
    key = channel_key(playground)
    path = f"/channels/{quote(key, safe='')}"
    resolver = playground.service.container.resolver

    async def choose(action: str, preset: str = "", scope: str = key) -> int:
        sent = {"action": action, "preset": preset, "scope": scope}
        return (await playground.send(f"{path}/presets", **sent))[0]

    async def active() -> list[str]:
        return [one.name for one in (await resolver.resolve([key])).presets]

    assert await choose("use", "marlowe") == 303
    assert await active() == ["marlowe"]
    assert await choose("add", "nora") == 303
    assert await active() == ["marlowe", "nora"]
    assert await choose("remove", "marlowe") == 303
    assert await active() == ["nora"]
    _, page = await read(playground, path)
    assert "applies here" in page
    own = "web:alice/mine\tnora"
    await playground.service.container.chat_settings.set(key, "preset", own, "web:alice")
    found = json.loads((await read(playground, f"/api/v1{path}"))[1])
    assert found["scopes"][0]["presets"] == ["web:alice/mine"]
    assert await choose("reset") == 303
    assert (await resolver.resolve([key])).first.scope is None
    assert await choose("use", "nobody") == 422
    assert await choose("use", "marlowe", "web:other") == 404
    _, audit = await read(playground, "/api/v1/audit")
    actions = [one["action"] for one in json.loads(audit)["entries"]]
    assert actions == ["preset reset", "preset remove", "preset add", "preset use"]


async def test_channel_is_exported_and_forgotten(playground: Playground) -> None:
    path = f"/channels/{quote(channel_key(playground), safe='')}"

    _, exported = await read(playground, f"{path}/export")
    texts = [(one["person"], one["text"]) for one in json.loads(exported)["messages"]]
    assert texts[0] == ("web:alice<b>", "hello")
    assert len(texts) == 2
    _, audit = await read(playground, "/api/v1/audit")
    [entry] = json.loads(audit)["entries"]
    assert (entry["action"], entry["subject"]) == ("export channel", channel_key(playground))

    assert (await playground.send(f"{path}/forget"))[0] == 303

    async with asyncio.timeout(PATIENCE_SECONDS):
        while json.loads((await read(playground, f"{path}/export"))[1])["messages"]:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    _, page = await read(playground, path)
    assert "No messages from people are stored." in page


async def test_access_rules_can_be_set_and_deleted(playground: Playground) -> None:
    key = channel_key(playground)
    path = f"/channels/{quote(key, safe='')}"
    for rule, value in (("person telegram:7", "block"), ("off", "on")):
        await playground.send(f"{path}/access", scope=key, rule=rule, action="block")
        found = json.loads((await read(playground, f"/api/v1{path}"))[1])
        shown = [(one["rule"], one["value"]) for one in found["access"]]
        assert (rule, value) in shown
    assert "block person telegram:7" in (await read(playground, path))[1]
    await playground.send(f"{path}/access", scope=key, rule="off", action="reset")
    found = json.loads((await read(playground, f"/api/v1{path}"))[1])
    assert [one["rule"] for one in found["access"]] == ["person telegram:7"]


async def test_blocking_without_naming_anybody_does_not_switch_the_bot_off(
    playground: Playground,
) -> None:
    key = channel_key(playground)
    path = f"/channels/{quote(key, safe='')}"
    _, page = await read(playground, path)
    typed, switch_off = re.findall(r'<input ([^>]*name="rule"[^>]*)>', page)
    assert ("value" in typed, "required" in typed) == (False, True)
    assert 'type="hidden"' in switch_off
    status, _ = await playground.send(f"{path}/access", scope=key, rule="", action="block")
    assert status == 422
    assert json.loads((await read(playground, f"/api/v1{path}"))[1])["access"] == []


async def test_say_sends_once_per_key_in_channels_allowed_by_the_token(
    playground: Playground,
) -> None:
    key, container = channel_key(playground), playground.service.container

    async def say(token: str, **body: str) -> int:
        return await post_say(playground.address, token, **body)

    async def add_token(name: str, *channels: str) -> str:
        new = ApiToken(name, (ApiScope.SAY,), container.clock.now(), channels)
        await container.console_tokens.add_api_token(hash_token(name), new)
        return name

    anywhere, elsewhere = await add_token("home"), await add_token("ci", "web:new")
    for _ in range(2):
        assert await say(anywhere, channel=key, text="The **washer** is done.", key="w1") == 200
    assert await say(elsewhere, channel=key, text="No.") == 403
    assert await say(anywhere, channel="web:nobody", text="No.") == 404
    assert await say(anywhere, channel="nobody", text="No.") == 422
    assert await say(anywhere, channel=key, text=" \n") == 422
    assert await say(elsewhere, channel="web:new", text="Built.") == 200  # not known before
    assert await say(anywhere, channel=key, text="And dry.", key="w2") == 200

    statuses = [await say(elsewhere, channel=key, text="No.") for _ in range(70)]
    assert {*statuses} == {403, 429}
    said = [one for one in await container.audit_log.newest(9) if one.action == "say"]
    assert [(one.who, one.subject) for one in said] == [
        *(("token home", key), ("token ci", "web:new"), ("token home", key), ("token home", key))
    ]

    channel = await playground.read_channel()
    shown = await channel.wait_for(lambda all_: all_[-1].text == "And dry.")
    assert [one.text for one in shown[2:]] == ["The **washer** is done.", "And dry."]
    _, exported = await read(playground, f"/channels/{quote(key, safe='')}/export")
    assert [one["preset"] for one in json.loads(exported)["messages"][2:]] == ["nora", "nora"]

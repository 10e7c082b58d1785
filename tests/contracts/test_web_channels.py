"""Contract of web channels: each change is read once, in order, with the current content."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

import pytest

from bot.chat.incoming import Person
from bot.chat.outgoing import Attachment, Button, ButtonStyle, Face
from bot.chat.web_channel import WebChannel, WebMessage, web_person
from bot.errors import Refused
from bot.runtime.in_process import InProcessSignals
from bot.storage.database import open_database
from bot.storage.web_channels import SqlWebChannels

ALICE = web_person("alice")
AT = datetime(2026, 11, 22, 20, 40, tzinfo=UTC)
CHANNEL = WebChannel("c1", "harbour-inn", "discord", (ALICE,), AT, "zh_CN")


def message(name: str, text: str = "hi", author: Person | None = ALICE) -> WebMessage:
    return WebMessage(name, author, text, AT)


@pytest.fixture
async def channels(empty_database: str) -> AsyncIterator[SqlWebChannels]:
    async with open_database(empty_database) as database:
        store = SqlWebChannels(database, InProcessSignals())
        await store.create(CHANNEL)
        yield store


async def test_channel_is_read_as_it_was_stored(channels: SqlWebChannels) -> None:
    renamed = replace(CHANNEL, name="quay", people=(ALICE, web_person("Bob")), look="")
    assert await channels.change("c1", lambda _: renamed) == renamed
    assert await channels.change("c2", lambda _: renamed) is None
    assert await channels.get("c1") == renamed
    assert await channels.all() == [renamed]


async def test_people_added_concurrently_are_all_stored(channels: SqlWebChannels) -> None:
    people = [web_person(f"guest {number}") for number in range(9)]
    async with asyncio.TaskGroup() as group:
        for one in people:
            added = partial(_with_person, one)
            group.create_task(channels.change("c1", added))
    found = await channels.get("c1")
    assert found is not None
    assert set(found.people) == {ALICE, *people}


def _with_person(person: Person, channel: WebChannel) -> WebChannel:
    return replace(channel, people=(*channel.people, person))


async def test_message_is_read_as_it_was_stored(channels: SqlWebChannels) -> None:
    whole = WebMessage(
        "m1",
        None,
        "lit \0 lamp",
        AT,
        face=Face("Nora", "https://x.test/n.png", True),
        buttons=(Button("Stop", "stop:m1/0", ButtonStyle.DANGER, 1),),
        reply_to="m0",
        file=Attachment("prompt.txt", "You are Nora."),
        edited_at=AT,
    )
    await channels.add("c1", [whole])
    expected = replace(whole, text="lit \ufffd lamp", position=1, revision=1)
    assert await channels.find("c1", "m1") == expected
    assert await channels.newest("c1", 10) == [expected]


async def test_message_is_added_once(channels: SqlWebChannels) -> None:
    await channels.add("c1", [message("m1", "first")])
    await channels.add("c1", [message("m1", "again"), message("m2")])
    assert [one.text for one in await channels.newest("c1", 10)] == ["first", "hi"]


async def test_reader_gets_each_changed_message_once(channels: SqlWebChannels) -> None:
    await channels.add("c1", [message("m1"), message("m2"), message("m3")])
    for text in ("a", "ab", "abc"):
        assert await channels.replace("c1", message("m2", text))

    changes = await channels.list_changed_messages("c1", 1, 10)

    assert [(one.id, one.text) for one in changes] == [("m3", "hi"), ("m2", "abc")]
    assert await channels.list_changed_messages("c1", changes[-1].revision, 10) == []
    assert [one.id for one in await channels.newest("c1", 2)] == ["m2", "m3"]


async def test_deleted_message_is_reported_and_cannot_be_restored(channels: SqlWebChannels) -> None:
    await channels.add("c1", [message("m1", "secret")])
    assert await channels.replace("c1", message("m1").to_tombstone())

    assert not await channels.replace("c1", message("m1", "back"))
    assert await channels.find("c1", "m1") is None
    assert await channels.newest("c1", 10) == []
    [told] = await channels.list_changed_messages("c1", 0, 10)
    assert (told.is_deleted, told.text) == (True, "")


async def test_message_to_an_unknown_channel_is_not_stored(channels: SqlWebChannels) -> None:
    with pytest.raises(Refused):
        await channels.add("c2", [message("m1")])
    assert not await channels.replace("c2", message("m1"))
    assert await channels.get("c2") is None


async def test_deleted_channel_is_gone_with_its_messages(channels: SqlWebChannels) -> None:
    await channels.add("c1", [message("m1")])
    await channels.delete("c1")
    assert await channels.all() == []
    assert await channels.list_changed_messages("c1", 0, 10) == []


async def test_handler_gets_changes_until_it_unsubscribes(channels: SqlWebChannels) -> None:
    told: list[str] = []
    end = channels.on_change(told.extend)
    await channels.add("c1", [message("m1")])
    await channels.replace("c1", message("m1", "x"))
    end()
    await channels.add("c1", [message("m2")])
    assert told == ["c1", "c1"]

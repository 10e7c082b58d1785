"""Test a web channel together with the whole service."""

import os
from collections.abc import AsyncIterator
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from bot.chat.incoming import IncomingMessage, MessageDeletion, MessageEdit, WakeReason
from bot.chat.outgoing import MessageContent, MessageSearch, OutgoingMessage
from bot.chat.web_channel import WebChannel, WebMessage, web_person
from bot.errors import MessageNotFound
from bot.platforms.spec import PlatformContext, PlatformSpec
from bot.platforms.terminal.platform import TerminalPlatform
from bot.platforms.web import SPEC, to_incoming
from bot.ports import Platform
from bot.service.run import Service, open_service
from tests.contracts.test_web_channels import ALICE, AT, CHANNEL, message
from tests.platforms.web.channel import Channel, open_channel, serving, write_settings

BOB = web_person("Bob")
NORA: dict[str, object] = {"name": "nora", "role_name": "Nora", "system": "You are Nora."}
MARLOWE: dict[str, object] = {
    "name": "marlowe",
    "role_name": "Marlowe",
    "system": "You are Marlowe.",
}


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[Service]:
    async with serving(write_settings(tmp_path, [NORA])) as service:
        yield service


@pytest.fixture
async def channel(service: Service) -> Channel:
    return await open_channel(service)


def said(
    channel: WebChannel, one: WebMessage, replied_to: WebMessage | None = None
) -> IncomingMessage:
    event = to_incoming(channel, replace(one, position=1, revision=1), replied_to, 0)
    assert isinstance(event, IncomingMessage)
    return event


def test_messages_in_a_channel_with_one_person_are_for_the_bot() -> None:
    assert said(CHANNEL, message("m1", "hello")).wake is WakeReason.DM


def test_with_several_people_a_message_must_address_the_bot() -> None:
    group = replace(CHANNEL, people=(ALICE, BOB))
    answer = message("m0", "Sit.", None)
    assert said(group, message("m1", "hello")).wake is None
    assert said(group, message("m1", "/help")).wake is WakeReason.COMMAND
    assert said(group, message("m1", "yes"), answer).wake is WakeReason.REPLY
    mentioned = said(group, message("m1", "@troupe, hello"))
    assert (mentioned.wake, mentioned.text) == (WakeReason.MENTION, "hello")
    assert said(group, message("m1", "@bob are you there?")).mentions == (BOB.id,)


def test_change_becomes_a_new_message_edit_or_deletion() -> None:
    one = replace(message("m1", "new text"), position=3, revision=8, edited_at=AT)
    unread, read = to_incoming(CHANNEL, one, None, 2), to_incoming(CHANNEL, one, None, 3)
    assert isinstance(unread, IncomingMessage)
    assert isinstance(read, MessageEdit)
    assert read.said == unread
    deleted = replace(one.to_tombstone(), position=3, revision=9)
    assert to_incoming(CHANNEL, deleted, None, 2) is None
    assert isinstance(to_incoming(CHANNEL, deleted, None, 3), MessageDeletion)


async def test_message_is_answered_and_a_restart_loses_nothing(tmp_path: Path) -> None:
    settings = write_settings(tmp_path, [NORA])
    async with serving(settings) as service:
        channel = await open_channel(service)
        await channel.say("hello")
        await channel.wait_for_texts("hello", "hello")
    async with serving(settings) as service:
        again = Channel(service.container.web_channels, channel.channel)
        assert await again.texts() == ["hello", "hello"]
        again._said = 1
        await again.say("more")
        await again.wait_for_texts("hello", "hello", "more", "more")


async def test_edit_is_answered_again_in_the_same_message(channel: Channel) -> None:
    name = await channel.say("helo")
    before = await channel.wait_for_texts("helo", "helo")
    found = await channel.store.find("c1", name)
    assert found is not None
    await channel.store.replace("c1", replace(found, text="hello", edited_at=AT))
    after = await channel.wait_for_texts("hello", "hello")
    assert [one.id for one in after] == [one.id for one in before]


async def test_buttons_retry_and_show_versions(channel: Channel) -> None:
    async def shown_with(label: str) -> WebMessage:
        shown = await channel.wait_for(
            lambda all_: len(all_) == 2 and any(label in one.label for one in all_[-1].buttons)
        )
        return shown[-1]

    await channel.say("hello")
    await channel.press(await shown_with("Retry"), "Retry")
    await channel.press(await shown_with("2/2"), "‹")
    await shown_with("1/2")
    assert await channel.texts() == ["hello", "hello"]


async def test_missing_answer_is_explained(channel: Channel) -> None:
    bob = await channel.add_person("Bob")
    name = await channel.say("good evening", bob)
    shown = await channel.wait_for(lambda all_: len(all_) == 2)
    assert (shown[-1].is_note, shown[-1].reply_to) == (True, name)
    assert shown[-1].text == "nora is the only character here, was not addressed"
    await channel.say("nora, good evening", bob)
    shown = await channel.wait_for(lambda all_: len(all_) == 4)
    assert shown[-1].author is None


async def test_answer_is_split_as_on_the_imitated_platform(service: Service) -> None:
    # 3,389 characters: two messages of Discord, one of Telegram
    long = " ".join(f"word{number}" for number in range(400))
    channel = await open_channel(service, look="discord")
    await channel.say(long)
    shown = await channel.wait_for(lambda all_: len(all_) == 3 and bool(all_[-1].buttons))
    assert all(len(one.text) <= 2000 for one in shown[1:])
    await channel.store.change(channel.channel.id, lambda one: replace(one, look="telegram"))
    await channel.say(long)
    shown = await channel.wait_for(lambda all_: len(all_) == 5 and bool(all_[-1].buttons))
    assert shown[-1].text == long


async def test_forgotten_messages_are_removed_from_the_channel(channel: Channel) -> None:
    await channel.say("my secret")
    await channel.wait_for(lambda all_: len(all_) == 2)
    await channel.say("/forget channel")
    shown = await channel.wait_for(
        lambda all_: len(all_) == 2 and "Deleted for good" in all_[-1].text
    )
    assert shown[0].text == "/forget channel"
    changes = await channel.store.list_changed_messages("c1", 0, 100)
    assert "secret" not in "".join(one.text for one in changes)


async def test_characters_answer_with_their_own_names_and_pictures(tmp_path: Path) -> None:
    async with serving(write_settings(tmp_path, [NORA, MARLOWE])) as service:
        channel = await open_channel(service)
        await channel.say("/preset add marlowe")
        await channel.wait_for(lambda all_: len(all_) >= 2)
        await channel.say("marlowe, are you there?")
        shown = await channel.wait_for(
            lambda all_: any(one.face and one.face.name == "Marlowe" for one in all_)
        )
        assert not any(one.is_note for one in shown)


async def test_message_that_is_sent_again_appears_once(service: Service, channel: Channel) -> None:
    surface = service.container.platforms["web"].surface
    answer = OutgoingMessage(channel.channel.address, MessageContent("Sit."), nonce="n1")
    assert await surface.find(answer, MessageSearch(None, set())) is None
    for _ in range(2):
        assert await surface.send(answer) == "n1"
    assert await channel.texts() == ["Sit."]
    assert await surface.find(answer, MessageSearch(None, set())) == "n1"
    await surface.delete(answer.address, "n1")
    await surface.delete(answer.address, "n1")
    with pytest.raises(MessageNotFound):
        await surface.edit(answer.address, "n1", MessageContent("Stand."), interaction=None)
    assert await channel.texts() == []


async def test_service_ends_when_only_companion_platforms_are_left(tmp_path: Path) -> None:
    settings = write_settings(tmp_path, [NORA])
    screen, (input_fd, end) = StringIO(), os.pipe()
    os.write(end, b"hello\n")
    os.close(end)
    spec = PlatformSpec(kind="terminal", factory=f"{__name__}:make_lines", uses_terminal=True)
    LINES.update(input_fd=input_fd, output=screen)
    async with open_service(settings, lambda _line: None, [spec, SPEC]) as service:
        await service.serve()
    assert "hello" in screen.getvalue()


LINES: dict[str, Any] = {}


def make_lines(_settings: None, context: PlatformContext) -> Platform:
    return TerminalPlatform(wait_until_idle=context.wait_until_idle, **LINES)

"""Test private replies, and topics and drafts in private chats, even after kills."""

import pytest

from tests.support.chats import Chat, DiscordChat, Platforms, TelegramChat
from tests.support.features import ALONE_AND_IN_PAIRS, ON_THE_WIRES, at
from tests.support.model_server import Model
from tests.support.service_process import TESTER, Service
from tests.support.shapes import Pair
from tests.waiting import wait_until

pytestmark = [*ON_THE_WIRES, pytest.mark.runs_with(TESTER, TROUPE_TELEGRAM__DRAFTS="true")]

HINT = "My reply is for you alone."
LOCK = "🔒 Only you can read this."


async def answered_group(platforms: Platforms) -> TelegramChat:
    where = platforms.telegram_group()
    where.make_admins(where.people[1])
    await where.ask_and_wait()
    return where


@at("channel")
@pytest.mark.parametrize("point", ["before_finish", "after_http"])
async def test_native_command_is_answered_once_for_its_author_only(
    where: DiscordChat, running: Service, point: str
) -> None:
    await where.ask_and_wait()
    async with running.killed_at(point):
        called = await where.people[0].slash(where.handle, "context")
    await where.wait_until(lambda: called.response and called.response.content)
    assert called.ephemeral
    assert called.response.content.startswith("tester")
    assert len(where.texts()) == 1


@ALONE_AND_IN_PAIRS
@pytest.mark.parametrize("point", ["before_finish", "after_finish", "after_take", "after_http"])
async def test_ephemeral_command_is_answered_once_for_its_author_only(
    platforms: Platforms, running: Service, point: str
) -> None:
    where = await answered_group(platforms)
    person = where.people[0]
    async with running.killed_at(point):
        platforms.telegram.whisper(person, "/context", where.chat)
    await where.wait_until(
        lambda: [one for one in where.private_texts() if one.startswith("tester")]
    )
    [_] = [one for one in where.private_texts() if one.startswith("tester")]
    assert len(where.texts()) == 1


@ALONE_AND_IN_PAIRS
async def test_server_without_ephemeral_messages_shows_nothing(
    platforms: Platforms, running: Service
) -> None:
    where, wire = await answered_group(platforms), platforms.telegram
    person = where.people[0]
    await running.restart()  # it knows nothing of the server
    wire.knows_ephemeral = False
    try:
        wire.whisper(person, "/context", where.chat)
        await where.shows_new(f"{HINT} Open a chat with me (t.me/sim_bot)")
        assert len(where.texts()) == 2
        [(_, gone)] = wire.deleted[where.chat]
        assert gone["text"] == LOCK
        wire.chat(person)
        for number, line in enumerate(("/context", "/settings me"), 1):
            before = len(where.private_texts())
            if number == 1:
                wire.whisper(person, line, where.chat)
            else:
                where.say(line)
            await where.wait_until(lambda: len(where.private_texts()) > before)  # noqa: B023
        assert len(where.texts()) == 2
        processes = [running, running.second] if isinstance(running, Pair) else [running]
        logs = [one.log.read_text() for one in processes]
        tries = [log.count("ephemeral_messages_unsupported") for log in logs]
        assert max(tries) == 1, "each process tries it once"
        assert len(wire.deleted[where.chat]) == sum(tries)
    finally:
        wire.knows_ephemeral = True
        wire.chats.pop(person, None)


@ALONE_AND_IN_PAIRS
@at("channel")
async def test_refusal_of_a_typed_command_comes_by_direct_message(
    where: DiscordChat, running: Service
) -> None:
    await where.ask_and_wait()
    before = len(where.private_texts())
    async with running.killed_at("after_http"):
        where.tell("/settings why")
    await where.wait_until(lambda: len(where.private_texts()) > before)
    assert where.private_texts()[before:] == ["⚠ Only an admin can see why I answer messages here."]
    assert len(where.texts()) == 1


@at("channel", "telegram_group")
@pytest.mark.parametrize("point", ["before_finish", "after_take", "after_http"])
async def test_recap_is_shown_once_to_its_author_only(
    where: Chat, running: Service, point: str
) -> None:
    if isinstance(where, TelegramChat):  # messages of supergroups have links
        where = where.platforms.in_telegram_group(-1_001_000_000_000 + where.chat)
    await where.ask_and_wait()
    missed = await where.ask_and_wait(who=1)
    before = where.texts()
    async with running.killed_at(point):
        if isinstance(where, TelegramChat):
            where.platforms.telegram.whisper(where.people[0], "/recap", where.chat)
            link = f"https://t.me/c/{-where.chat - 1_000_000_000_000}/"
            link += str(missed.message["message_id"])
        else:
            where.tell("/recap")
            link = f"https://discord.com/channels/{where.platforms.guild.id}/{where.chat}/"
            link += str(missed.message.id)

    def told() -> list[str]:
        return [one for one in where.private_texts() if missed.answer in one]

    await where.wait_until(told)
    await where.ask_and_wait()
    [recap] = told()
    assert recap.startswith("1 message here since ")
    assert recap.endswith(f"What you missed begins here: {link}")
    assert where.texts()[: len(before)] == before
    assert len(where.texts()) == len(before) + 1


@ALONE_AND_IN_PAIRS
@at("telegram_dm_topic")
async def test_topic_of_a_private_chat_has_its_own_preset_and_history(
    where: TelegramChat, running: Service, model: Model
) -> None:
    other = TelegramChat(where.platforms, where.kind, where.chat, where.people, topic=12)
    where.say("/preset use nova")
    await where.shows_new("nova answers here")
    await running.restart()
    for chat in (where, other):
        question = chat.ask(text=f"in topic {chat.topic}")
        await chat.wait_until(lambda: question.answer in chat.texts())  # noqa: B023
        request = model.requests[-1]["messages"]
        assert (request[0]["content"] == "You are a tester.") == (chat is other)
        said = str(request)
        assert [f"in topic {one}" in said for one in (11, 12)] == [chat is where, chat is other]


@ALONE_AND_IN_PAIRS
@at("telegram_dm", "telegram_dm_topic")
@pytest.mark.parametrize("is_killed", [False, True])
async def test_native_stop_of_a_draft_ends_the_answer(
    where: TelegramChat, running: Service, model: Model, *, is_killed: bool
) -> None:
    wire = where.platforms.telegram
    with model.held():
        async with model.reaching_half():
            question = where.ask(words=40)
        await where.wait_until(lambda: (where.chat, 1) in wire.drafts)
        drafted = [one["params"] for one in wire.log if one["method"] == "sendMessageDraft"][-1]
        assert (drafted["can_stop"], drafted.get("message_thread_id")) == (True, where.topic)
        if is_killed:
            await running.kill()
        wire.stop_draft(where.chat, 1, where.topic)
        if is_killed:
            await running.start_and_wait()
        await where.wait_until(lambda: "Stopped. /retry answers again." in where.texts())
    *begun, _ = where.texts()
    assert begun or is_killed, "a stop may be read before the first word is written again"
    for text in begun:
        assert question.answer.startswith(text[:10])
        assert text != question.answer
    await wait_until(lambda: wire.lint == [])

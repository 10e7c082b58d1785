"""Test the path of a message on both platforms, and failures on the way."""

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest
from simcord.backend.errors import SetupError

from tests.support.chats import Chat, DiscordChat, Platforms, Question, TelegramChat
from tests.support.features import EVERYWHERE, ON_THE_WIRES, at
from tests.support.model_server import Model
from tests.support.service_process import Service
from tests.support.transcripts import check_transcripts
from tests.waiting import wait_until

pytestmark = ON_THE_WIRES

KINDS = (*EVERYWHERE, "discord_thread", "telegram_topic")


async def answered(where: Chat, question: Question) -> None:
    """Wait for the answer to a question, and check that it was sent only once."""
    await where.wait_until(lambda: question.answer in where.texts())
    assert where.texts().count(question.answer) == 1


# --- answers -------------------------------------------------------------------------------------


@at(*KINDS)
async def test_question_is_answered_in_its_conversation(where: Chat) -> None:
    await where.shows(where.ask())


@at("channel", "telegram_group")
async def test_reply_needs_no_mention(where: Chat) -> None:
    first = where.ask()
    await where.shows(first)
    where.reply("and Tab01:3")
    await where.shows(first, Question("ab01", 3, None))


async def test_messages_to_other_people_are_ignored(running: Service, platforms: Platforms) -> None:
    channel, group = platforms.channel(), platforms.telegram_group()
    other = platforms.discord.member(platforms.guild, "other", bot=True)
    platforms.discord.say(other, channel.chat, f"{channel.mention}hello")
    platforms.telegram.user(99, is_bot=True)
    platforms.telegram.say(99, f"{group.mention}hello", chat=group.chat)
    for where in (channel, group):
        where.say("not to you")
        await where.shows(where.ask())


@at("channel", "telegram_dm")
async def test_long_answer_is_split_in_order(where: Chat, model: Model) -> None:
    model.grow_slowly()
    question = where.ask(words=1300)
    await where.wait_until(lambda: " ".join(where.texts()) == question.answer)
    assert len(where.texts()) > 1
    assert all(len(part) <= (4096 if where.is_telegram else 2000) for part in where.texts())


# --- failures of platforms -----------------------------------------------------------------------


@at("telegram_dm")
@pytest.mark.parametrize("method", ["sendMessage", "editMessageText"])
async def test_telegram_rate_limit_is_respected(
    where: TelegramChat, model: Model, method: str
) -> None:
    wire = where.platforms.telegram
    begun = len(wire.log)
    model.grow_slowly()
    wire.fault(method, retry_after=2)
    await where.shows(where.ask())
    [refused] = [one for one in wire.log[begun:] if one["status"] == 429]
    window = [one for one in wire.log if refused["t"] < one["t"] < refused["t"] + 2]
    assert [one["method"] for one in window if "chat_id" in one["params"]] == []


@at("channel")
@pytest.mark.parametrize("retry_after", [2.0, 8.0])
async def test_discord_rate_limit_is_respected(where: DiscordChat, retry_after: float) -> None:
    wire = where.platforms.discord
    begun = len(wire.log)
    wire.fault("POST", "/channels/*/messages", retry_after=retry_after)
    await where.shows(where.ask())
    [refused] = [one for one in wire.log[begun:] if one["status"] == 429]
    window = [one for one in wire.log if refused["t"] < one["t"] < refused["t"] + retry_after]
    assert [one["path"] for one in window] == []


@dataclass
class Lost:
    """A failed call, which the platform may have executed before the failure (`after`)."""

    method: str
    fault: dict[str, Any]
    after: bool


LOST_ON_TELEGRAM = [
    Lost(method, fault, after)
    for method in ("sendMessage", "editMessageText")
    for fault in ({"error_code": 502}, {"drop": True}, {"raw": "<html>"})
    for after in (False, True)
]


async def test_message_is_sent_once_even_if_telegrams_response_is_lost(
    running: Service, platforms: Platforms, model: Model
) -> None:
    """All cases run concurrently, each in its own group, to stay below 20 calls a minute."""
    model.grow_slowly()
    asked = []
    for lost in LOST_ON_TELEGRAM:
        where = platforms.telegram_group()
        match = {"chat_id": str(where.chat)}
        platforms.telegram.fault(lost.method, after=lost.after, match=match, **lost.fault)
        asked.append((lost, where, where.ask()))
    for lost, where, question in asked:
        await where.wait_until(lambda: question.answer in where.texts())  # noqa: B023
        assert where.texts() == [question.answer], lost
    assert platforms.telegram.faults == []


@at("channel")
@pytest.mark.parametrize("fault", [{"status": 502}, {"drop": True}])
@pytest.mark.parametrize("after", [False, True])
async def test_message_is_sent_once_even_if_discords_response_is_lost(
    where: DiscordChat, after: bool, fault: dict[str, Any]
) -> None:
    where.platforms.discord.fault("POST", "/channels/*/messages", after=after, **fault)
    await where.shows(where.ask())


@at("channel")
async def test_dropped_gateway_connection_loses_nothing(
    where: DiscordChat, running: Service
) -> None:
    identified = where.platforms.identifies()
    await where.platforms.discord.cut()
    await where.shows(where.ask())
    assert where.platforms.identifies() == identified
    await running.wait_until_ready()


async def test_new_session_fetches_missed_messages(running: Service, platforms: Platforms) -> None:
    private = platforms.discord_dm()
    # Discord names a bot's private chats nowhere: only one that was stored before can be read.
    await private.ask_and_wait()
    identified = platforms.identifies()
    await platforms.discord.forget()
    for where in (platforms.channel(), platforms.discord_thread(), private):
        await answered(where, where.ask())
    assert platforms.identifies() == identified + 1
    await running.wait_until_ready()


async def test_closed_discord_client_is_replaced(running: Service, platforms: Platforms) -> None:
    channel, private = platforms.channel(), platforms.telegram_dm()
    platforms.discord.gw_faults["accept"] = False
    await platforms.discord.cut(4010)  # discord.py does not reconnect after this code
    await running.wait_until_ready(status=503)
    await private.shows(private.ask())
    missed = channel.ask()
    platforms.discord.gw_faults["accept"] = True
    await channel.shows(missed)
    await running.wait_until_ready()


# --- commands ------------------------------------------------------------------------------------


@at("channel")
async def test_only_an_admin_can_change_a_preset(where: DiscordChat, model: Model) -> None:
    platforms, member = where.platforms, where.people[0]
    with pytest.raises(SetupError, match="default-member-permissions"):
        await where.slash(member, "preset list")
    platforms.offer_to_everybody("preset")
    refused = await where.slash(member, "preset use", name="nova")
    assert refused.ephemeral
    assert refused.content.startswith("⚠ Only an admin")
    changed = await where.slash(platforms.admin, "preset use", name="nova")
    assert not changed.ephemeral, "what changes the channel is for everybody"
    assert changed.content.startswith("nova answers here")
    listed = await where.slash(member, "preset list")
    assert listed.ephemeral
    assert "→ nova" in listed.content
    await where.ask_and_wait()
    assert model.requests[-1]["messages"][0]["content"] == "You are Nova."


@at("channel")
async def test_preset_names_are_completed(where: DiscordChat) -> None:
    interactions = where.platforms.discord.b.interactions
    known = set(interactions)
    await where.platforms.admin.autocomplete(where.handle, "preset use", "name", "no")
    [asked] = set(interactions) - known
    choices = await wait_until(lambda: interactions[asked].autocomplete_choices)
    assert choices == [{"name": "nova", "value": "nova"}]


@at("telegram_topic")
async def test_admin_gets_the_prompt_as_a_file_on_telegram(where: TelegramChat) -> None:
    wire = where.platforms.telegram
    await where.ask_and_wait()
    where.say("/context prompt")
    await where.shows_new("My reply is for you alone. Open a chat with me (t.me/sim_bot)")
    admin = where.people[1]
    where.make_admins(admin)
    wire.chat(admin)
    wire.fault("sendDocument", drop=True, after=True)

    where.say("/context prompt", 1)
    await where.ask_and_wait()

    await where.wait_until(lambda: where.documents(admin))
    [sent] = where.documents(admin)
    assert not where.documents()
    assert sent["caption"].startswith("The exact prompt of receipt")
    text = wire.files[sent["document"]["file_id"]][1].decode()
    assert text.startswith("receipt: ")
    assert "You are a tester." in text


@at("channel")
async def test_only_the_admin_can_see_the_exact_prompt_on_discord(where: DiscordChat) -> None:
    question = await where.ask_and_wait()
    refused = await where.slash(where.people[0], "context", show="prompt")
    assert refused.ephemeral
    assert (refused.content[:15], refused.attachments) == ("⚠ Only an admin", [])
    shown = await where.slash(where.platforms.admin, "context", show="prompt")
    assert shown.ephemeral
    [file] = shown.attachments
    text = where.platforms.discord.b.cdn.get(file.url).decode()
    assert '"content": "You are a tester."' in text
    assert where.texts() == [question.answer]


# --- kill and stop ------------------------------------------------------------------------------


async def test_question_is_answered_after_a_kill(
    running: Service, platforms: Platforms, model: Model
) -> None:
    with model.held():
        asked = [(where, where.ask(words=40)) for where in map(platforms.open, EVERYWHERE)]
        for where, question in asked:
            await where.wait_until_begun(question)
        await running.kill()
    await running.start_and_wait()
    for where, question in asked:
        await where.shows(question)


async def test_graceful_shutdown_finishes_answers(
    running: Service, platforms: Platforms, model: Model
) -> None:
    chats = (platforms.channel(), platforms.telegram_dm())
    with model.held():
        async with model.reaching_half(len(chats)):
            asked = [(where, where.ask()) for where in chats]
        stopping = asyncio.create_task(running.stop())
        await running.wait_until_ready(status=503)
    assert await stopping == 0
    for where, question in asked:
        assert where.texts() == [question.answer]


async def test_every_question_in_the_tests_above_was_answered_once(
    platforms: Platforms, service: Service
) -> None:
    if service.is_running:
        assert await service.stop() == 0
    notices = (
        "My reply is for you alone",
        "⚠ Only an admin",
        "The exact prompt",
        "nova answers",
        "Changed by admin",
        "→ nova",
    )
    result = check_transcripts(
        post for post in platforms.messages() if not (post.by_bot and post.text.startswith(notices))
    )
    assert result.is_clean, str(result)
    assert platforms.telegram.lint == []

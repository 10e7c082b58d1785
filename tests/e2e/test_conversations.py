"""Test which messages are answered, what the model reads, and which character answers."""

from functools import partial

import pytest
from simcord.builders import GuildHandle, UserHandle

from tests.support.chats import Chat, DiscordChat, Platforms, Question, TelegramChat
from tests.support.features import ALONE_AND_IN_PAIRS, GROUPS, ON_THE_WIRES, at
from tests.support.model_server import Model
from tests.support.service_process import TESTER, Service, preset_json
from tests.support.transcripts import expected_answer
from tests.waiting import wait_until

pytestmark = [*ON_THE_WIRES, pytest.mark.usefixtures("reads_all_messages")]

GREETING = "Well met, all."


# --- what wakes it -------------------------------------------------------------------------------


@at(*GROUPS)
async def test_message_with_the_name_as_a_whole_word_is_answered_unless_it_is_to_others(
    where: Chat,
) -> None:
    where.say("the testers say Tab01:3")
    theirs = where.say("good morning", 1)
    where.say("ask the tester for Tab02:3", reply_to=where.id_of(theirs))
    other = "@somebody_else" if where.is_telegram else f"<@{where.people[1].id}>"
    where.say(f"{other} ask the tester for Tab03:3")
    where.say("please, Tester, Tab04:3")
    await where.shows(expected_answer("Tab04:3"))


@at(*GROUPS)
async def test_message_that_is_only_a_mention_is_answered(where: Chat) -> None:
    where.say(where.mention.strip())  # the model has nothing to answer, which is told
    await where.shows_new()


@at("discord_thread")
async def test_thread_needs_no_mention_after_the_first_answer(where: Chat) -> None:
    where.say("among us Tbc01:3")
    first = where.ask()
    await where.shows(first)
    where.say("and Tbc03:3", 1)
    await where.shows(first, expected_answer("Tbc03:3"))


# --- who shares a history ------------------------------------------------------------------------


async def set_scope(where: Chat, scope: str, told: str) -> None:
    where.tell_as_admin(f"/settings scope {scope}")
    await where.shows_new(f"From the next message on, {told}")


def questions_in_prompt(model: Model, question: Question, *others: Question) -> list[Question]:
    """Return which of the other questions were in the prompt of a question."""
    request = str(model.asked_about(question.token)[-1]["messages"])
    return [one for one in others if one.token in request]


@at(*GROUPS)
async def test_people_and_reply_chains_have_separate_histories(where: Chat, model: Model) -> None:
    await set_scope(where, "user", "each person")
    with model.held():
        async with model.reaching_half(2):
            first, second = where.ask(), where.ask(who=1)
    await where.wait_until(lambda: {*where.texts()[-2:]} == {first.answer, second.answer})
    third = await where.ask_and_wait()
    assert questions_in_prompt(model, second, first) == []
    assert questions_in_prompt(model, third, first, second) == [first]

    await set_scope(where, "replies", "each reply chain")
    root = await where.ask_and_wait()
    root_answer = where.id_of(where.bot_messages()[-1])
    await where.ask_and_wait()  # whoever sends the next answer knows the id of the one before
    where.say("please Tae01:12", reply_to=root_answer)
    reply = Question("ae01", 12, None)
    await where.shows_new(reply.answer)
    alone = await where.ask_and_wait()
    assert questions_in_prompt(model, reply, first, root) == [root]
    assert questions_in_prompt(model, alone, first, root, reply) == []


# --- who speaks ----------------------------------------------------------------------------------


@at(*GROUPS)
async def test_two_characters_answer_under_their_own_names(where: Chat) -> None:
    where.tell_as_admin("/preset add nova")
    added = await where.shows_new("nova was added")
    answer = where.ask(text="nova and tester,").answer
    if isinstance(where, DiscordChat):
        await where.wait_until(
            lambda: where.webhook_texts() == [("nova", answer), ("tester", answer)]
        )
    else:
        await where.shows(added, f"nova\n{answer}", f"tester\n{answer}")
        assert [one["entities"] for one in where.bot_messages()[1:]] == [
            [{"type": "bold", "offset": 0, "length": len(name)}] for name in ("nova", "tester")
        ]


# --- what was said before, or not to the bot -----------------------------------------------------


def count_history_requests(where: DiscordChat) -> int:
    """Count the API requests for the message history of a channel."""
    path = f"/channels/{where.chat}/messages"
    return sum((one["method"], one["path"]) == ("GET", path) for one in where.platforms.discord.log)


async def test_observed_messages_are_context_even_after_a_restart(
    platforms: Platforms, model: Model, installed: Service
) -> None:
    service = installed
    channel, other, group = platforms.channel(), platforms.channel(), platforms.telegram_group()
    channel.say("the old lighthouse burnt", 1)
    other.say("nobody can read this", 1)
    path = f"/channels/{other.chat}/messages"
    platforms.discord.fault("GET", path, times=1, status=403, code=50001)
    await service.run_with()
    question = other.ask()
    await other.shows(question)
    assert "nobody can read this" not in model.newest_message(question.token)
    group.say("the cat is called Tom", 1)
    asked = {channel: channel.ask(), group: group.ask()}
    for where, words in ((channel, "> bob:the old lighthouse burnt"), (group, "called Tom")):
        await where.shows(asked[where])
        assert words in model.newest_message(asked[where].token)
    channel.say("and the harbour flooded", 1)
    group.say("no, Tim", 1)
    assert await service.stop() == 0  # killed, it might read the channel to reconcile an answer

    platforms.forget_sessions()  # what was missed is not replayed but read from the channels
    missed = {where: where.ask() for where in asked}
    await service.run_with(TESTER, TROUPE_DELIVERY__ANSWERABLE_MINUTES="0")
    # What it finds when it catches up is late; what is said from then on is not.
    await wait_until(lambda: count_history_requests(channel) == 2)
    for where, words in ((channel, "harbour"), (group, "no, Tim")):
        question = where.ask()
        await where.shows(asked[where], question)
        said = model.newest_message(question.token)
        assert words in said
        assert f"please {missed[where].token}" in said
    assert count_history_requests(channel) == 2  # once before the first answer, once to catch up


@at("channel")
@pytest.mark.parametrize("is_private", [False, True], ids=["in a channel", "in a DM"])
async def test_person_can_opt_out_with_a_native_command(
    where: DiscordChat, model: Model, *, is_private: bool
) -> None:
    platforms, who = where.platforms, where.people[1]
    places = [where, where.another()]

    async def choose_consent(choice: str) -> str:
        user = UserHandle(who._env, platforms.discord.b.users[who.id])
        asked = user.slash if is_private else partial(who.slash, where.handle)
        result = await asked("settings me", value=choice)
        await wait_until(lambda: bool(result.response and result.response.content))
        assert is_private or result.ephemeral
        return str(result.response.content)

    assert "From now on, I don't store" in await choose_consent("off")
    for place in places:
        place.say("the code is SECRET", 1)
        await place.ask_and_wait()
        assert "SECRET" not in str(model.requests[-1])
    assert "Where a channel" in await choose_consent("here")
    for place in places:
        place.say("the key is KNOWN", 1)
        question = await place.ask_and_wait()
        assert "KNOWN" in model.newest_message(question.token)


# --- greetings -----------------------------------------------------------------------------------


@ALONE_AND_IN_PAIRS
@pytest.mark.runs_with(preset_json("tester", greeting=GREETING, role_name="Nora"))
async def test_each_group_is_greeted_once(platforms: Platforms, running: Service) -> None:
    group, later = platforms.telegram_group(), platforms.telegram_group()
    guild, later_guild = platforms.open_guild("Friends"), platforms.open_guild("Neighbours")
    in_system_channel = [("welcome", "Nora", GREETING)]

    def is_greeted(group: TelegramChat, guild: GuildHandle) -> bool:
        greeted, *noticed = group.texts() or [""]
        is_noticed = [one.startswith("What I do with what you write here:") for one in noticed] == [
            True
        ]
        return greeted == GREETING and is_noticed and count_privacy_notices(platforms, guild) == 1

    platforms.send_guild(guild, was_unavailable=False)  # as when somebody has added the bot
    platforms.telegram.invite(1, group.chat)
    await wait_until(lambda: is_greeted(group, guild))
    await running.kill()
    platforms.telegram.invite(1, later.chat)  # while it is down
    platforms.send_guild(later_guild, was_unavailable=False)
    await running.start_and_wait()
    await wait_until(lambda: is_greeted(later, later_guild))
    platforms.send_guild(guild, was_unavailable=True)  # after an outage of Discord
    await group.shows(*group.texts(), group.ask())
    assert count_privacy_notices(platforms, guild) == 1
    assert greetings_in(platforms, guild) == in_system_channel
    channel = platforms.channel()
    channel.tell("/new")
    await channel.wait_until(lambda: channel.webhook_texts() == [("Nora", GREETING)])
    assert (
        greetings_in(platforms, guild) == greetings_in(platforms, later_guild) == in_system_channel
    )


def count_privacy_notices(platforms: Platforms, guild: GuildHandle) -> int:
    """Return the number of privacy notices in all channels of a server."""
    found = [one for one in platforms.discord.b.channels.values() if one.guild_id == guild.id]
    channels = [DiscordChat(platforms, "channel", one.id) for one in found]
    return sum(
        "What I do with what you write here:" in text for one in channels for text in one.texts()
    )


def greetings_in(platforms: Platforms, guild: GuildHandle) -> list[tuple[str, str, str]]:
    """Return the channel, character, and text of all webhook messages in a server."""
    channels = [one for one in platforms.discord.b.channels.values() if one.guild_id == guild.id]
    return [
        (one.name, *spoken)
        for one in channels
        for spoken in DiscordChat(platforms, "channel", one.id).webhook_texts()
    ]

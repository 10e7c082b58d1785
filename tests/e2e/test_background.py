"""Background on both platforms, with the service as a process that is started again."""

from functools import partial
from typing import Any

import pytest
from simcord.builders import UserHandle

from tests.e2e.loopback_platforms import Conversation, LoopbackPlatforms
from tests.e2e.model_server import ModelServer
from tests.e2e.service_process import ServiceProcess
from tests.e2e.transcript_checker import expected_answer
from tests.e2e.waiting import wait_until

pytestmark = [pytest.mark.service, pytest.mark.asyncio(loop_scope="module")]


def newest_prompt(model: ModelServer, token: str) -> str:
    """Return the newest message of the request that was asked about a token."""
    texts: list[str] = [one["messages"][-1]["content"] for one in model.requests]
    return next(text for text in texts if token in text.splitlines()[-1])


async def answered(platforms: LoopbackPlatforms, where: Conversation, *tokens: str) -> None:
    expected = [expected_answer(f"T{token}:12") for token in tokens]
    await wait_until(lambda: platforms.bot_texts(where) == expected)


def reads(platforms: LoopbackPlatforms, where: Conversation) -> list[Any]:
    path = f"/channels/{where.name.removeprefix('discord:')}/messages"
    return [one for one in platforms.discord.log if (one["method"], one["path"]) == ("GET", path)]


async def test_what_people_said_is_background_also_after_a_restart(
    platforms: LoopbackPlatforms, model: ModelServer, service: ServiceProcess
) -> None:
    platforms.telegram.me["can_read_all_group_messages"] = True
    channel, group = platforms.channel(), platforms.telegram_group()
    channel.say("the old lighthouse burnt", 1)
    platforms.discord.fault("GET", "/channels/*/messages", times=1, status=403, code=50001)
    other = platforms.channel()
    other.say("nobody can read this", 1)
    await service.start_and_wait()
    other.ask("b1")  # what was said before cannot be read
    await answered(platforms, other, "b1")
    assert "nobody can read this" not in newest_prompt(model, "Tb1:")
    channel.ask("b2")
    group.say("the cat is called Tom", 1)
    group.ask("b3")
    await answered(platforms, channel, "b2")
    await answered(platforms, group, "b3")
    assert "> bob:the old lighthouse burnt" in newest_prompt(model, "Tb2:")
    assert "the cat is called Tom" in newest_prompt(model, "Tb3:")
    channel.say("and the harbour flooded", 1)
    group.say("no, Tim", 1)
    assert await service.stop() == 0  # killed, it might read the channel to reconcile an answer

    platforms.forget_sessions()  # what was missed is not replayed but read from the channels
    late = [(channel, "b4"), (group, "b5")]
    for where, token in late:
        where.ask(token)
    await service.start(TROUPE_DELIVERY__ANSWERABLE_MINUTES="0")
    await service.wait_until_ready()
    # What it finds when it catches up is late; what is said from then on is not.
    await wait_until(lambda: len(reads(platforms, channel)) == 2)
    for where, token, words in ((channel, "b6", "harbour"), (group, "b7", "no, Tim")):
        where.ask(token)
        first = "b2" if where is channel else "b3"
        await answered(platforms, where, first, token)
        assert words in newest_prompt(model, f"T{token}:")
    assert "please Tb4:12" in newest_prompt(model, "Tb6:")
    assert "please Tb5:12" in newest_prompt(model, "Tb7:")
    assert len(reads(platforms, channel)) <= 2  # once before the first answer, once to catch up


async def test_person_stops_being_observed(
    platforms: LoopbackPlatforms, model: ModelServer, service: ServiceProcess
) -> None:
    platforms.telegram.me["can_read_all_group_messages"] = True
    if not service.is_running:
        await service.start_and_wait()
    for number, where in enumerate((platforms.channel(), platforms.telegram_group())):
        where.say("the code is SECRET", 1)
        where.say(f"{where.mention}/settings me off", 1)
        await wait_until(lambda: "nowhere" in str(platforms.bot_texts(where)), 30)  # noqa: B023
        where.say("the key is SECRET", 1)
        other = platforms.channel() if number == 0 else platforms.telegram_group()
        other.say("elsewhere it is SECRET", 1)
        for place, token in ((where, f"d{number}1"), (other, f"d{number}2")):
            place.ask(token)
            answer = expected_answer(f"T{token}:12")
            await wait_until(lambda: answer in platforms.bot_texts(place), 30)  # noqa: B023
            assert "SECRET" not in str(model.requests[-1])
        where.say(f"{where.mention}/settings me on", 1)
        await wait_until(lambda: "Where a channel" in str(platforms.bot_texts(where)), 30)  # noqa: B023


@pytest.mark.parametrize("is_private", [False, True], ids=["in a channel", "in a DM"])
async def test_person_stops_being_observed_by_a_native_command(
    platforms: LoopbackPlatforms, model: ModelServer, service: ServiceProcess, *, is_private: bool
) -> None:
    if not service.is_running:
        await service.start_and_wait()
    who, where = platforms.people[1], platforms.guild.create_text_channel("decisions")

    async def decide(choice: str) -> str:
        user = UserHandle(who._env, platforms.discord.b.users[who.id])
        asked = user.slash if is_private else partial(who.slash, where)
        result = await asked("settings me", value=choice)
        await wait_until(lambda: bool(result.response and result.response.content), 30)
        assert is_private or result.ephemeral
        return str(result.response.content)

    assert "nowhere" in await decide("off")
    places = platforms.channel(), platforms.channel()
    for number, place in enumerate(places):
        place.say("the code is SECRET", 1)
        place.ask(f"f{number}{is_private:d}")
        await answered(platforms, place, f"f{number}{is_private:d}")
        assert "SECRET" not in str(model.requests[-1])
    assert "Where a channel" in await decide("on")
    for number, place in enumerate(places):
        place.say("the key is KNOWN", 1)
        place.ask(f"a{number}{is_private:d}")
        await answered(platforms, place, f"f{number}{is_private:d}", f"a{number}{is_private:d}")
        assert "KNOWN" in newest_prompt(model, f"Ta{number}{is_private:d}:")


async def test_channel_stays_new_while_its_preset_is_chosen(
    platforms: LoopbackPlatforms, model: ModelServer, service: ServiceProcess
) -> None:
    if not service.is_running:
        await service.start_and_wait()
    where = platforms.channel()
    where.say("the ferry sank", 0)
    where.say(f"{where.mention}/preset use tester", 1)
    await wait_until(lambda: platforms.bot_texts(where), 30)
    where.ask("e1")
    await wait_until(lambda: expected_answer("Te1:12") in platforms.bot_texts(where), 30)
    assert "the ferry sank" in newest_prompt(model, "Te1:")

"""Who said what, as the model was told it: the sequence of ChatHaruhi 3.0 on both platforms."""

import itertools
from typing import Any

import pytest

from tests.e2e.checker import right_answer
from tests.e2e.model import Model
from tests.e2e.service import Service
from tests.e2e.test_walk import until
from tests.e2e.world import Place, World

pytestmark = [pytest.mark.service, pytest.mark.asyncio(loop_scope="module")]
_names = (f"{number:04x}" for number in itertools.count(0xA000))


async def asked(world: World, model: Model, place: Place, who: int) -> tuple[str, str, Any]:
    """Let one of the people ask; gives the question, the answer and what the model was sent."""
    question = f"please T{next(_names)}:3"
    place.say(f"{place.call}{question}", who)
    answer = right_answer(question)
    await until(lambda: answer in world.said_in(place), 30)
    return question, answer, model.requests[-1]


@pytest.mark.parametrize("kind", ["channel", "group"])
async def test_names_begin_with_the_second_speaker_and_go_back_to_the_first_line(
    world: World, model: Model, service: Service, kind: str
) -> None:
    if not service.running:
        await service.begin()
    place = {"channel": world.channel, "group": world.group}[kind]()
    first, second = {"channel": ("alice", "bob"), "group": ("U1", "U2")}[kind]

    one, one_answer, _ = await asked(world, model, place, 0)
    two, two_answer, alone = await asked(world, model, place, 0)
    three, _, crowd = await asked(world, model, place, 1)

    assert [(each["role"], each["content"]) for each in alone["messages"]] == [
        ("system", "You are a tester."),
        ("user", one),
        ("assistant", one_answer),
        ("user", two),
    ]
    assert [(each["role"], each["content"]) for each in crowd["messages"]] == [
        ("system", "You are a tester."),
        ("user", f"{first}:{one}"),
        ("assistant", f"tester:{one_answer}"),
        ("user", f"{first}:{two}"),
        ("assistant", f"tester:{two_answer}"),
        ("user", f"{second}:{three}"),
    ]
    assert "stop" not in alone
    assert crowd["stop"] == [f"\n{second}:", f"\n{first}:"]


async def test_two_characters_in_a_channel_of_discord_say_who_they_are(
    world: World, model: Model, service: Service
) -> None:
    if not service.running:
        await service.begin()
    channel = world.guild.create_text_channel("stage")
    place = world._in_guild(channel.id)
    result = await world.admin.slash(channel, "preset add", name="nova")
    await until(lambda: result.response and result.response.content)

    name = next(_names)
    place.say(f"{place.call}nova and tester, T{name}:2", 0)

    answer = right_answer(f"T{name}:2")
    expected = [f"**nova**\n{answer}", f"**tester**\n{answer}"]
    await until(lambda: world.said_in(place)[1:] == expected, 30)


async def test_two_characters_in_a_group_of_telegram_say_who_they_are_in_bold(
    world: World, model: Model, service: Service
) -> None:
    if not service.running:
        await service.begin()
    place = world.group()
    chat = int(place.name.removeprefix("telegram:"))
    place.say("hello", 0)  # the group is there from its first message on
    world.telegram.chats[chat]["_admins"] = {1}
    place.say("/preset add nova", 0)
    await until(lambda: [one for one in world.said_in(place) if one.startswith("nova joins")], 30)

    name = next(_names)
    place.say(f"{place.call}nova and tester, T{name}:2", 0)

    answer = right_answer(f"T{name}:2")
    expected = [f"nova\n{answer}", f"tester\n{answer}"]
    await until(lambda: world.said_in(place)[1:] == expected, 30)
    posts = list(world.telegram.msgs[chat].values())[-2:]
    assert [post["entities"] for post in posts] == [
        [{"type": "bold", "offset": 0, "length": size}] for size in (4, 6)
    ]

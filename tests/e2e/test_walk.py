"""One service, both platforms: every way to talk to it, and all that can go wrong meanwhile."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import psutil
import pytest
import pytest_asyncio

from tests.e2e.checker import judge, right_answer
from tests.e2e.model import Model
from tests.e2e.service import Service
from tests.e2e.world import TELEGRAM_PEOPLE, Place, World

pytestmark = [pytest.mark.service, pytest.mark.asyncio(loop_scope="module")]

KINDS = ("channel", "discord_thread", "discord_private", "group", "topic", "telegram_private")
_EPHEMERAL = 1 << 6
_names = (f"{number:04x}" for number in itertools.count())


async def until(what: Callable[[], Any], seconds: float = 15) -> Any:
    """Wait until `what()` is true, and give it."""
    async with asyncio.timeout(seconds):
        while not (found := what()):  # noqa: ASYNC110 # another process makes it so
            await asyncio.sleep(0.02)
    return found


@dataclass
class Rooms:
    """A place of every kind, and the service that listens there."""

    world: World
    model: Model
    service: Service
    places: dict[str, Place]

    def ask(self, kind: str, words: int = 12) -> str:
        """Ask something in a place; gives the right answer."""
        name = next(_names)
        self.places[kind].ask(name, words)
        return right_answer(f"T{name}:{words}")

    def answers(self, kind: str) -> list[str]:
        return self.world.said_in(self.places[kind])

    async def answered(self, kind: str, answer: str, seconds: float = 15) -> None:
        """Wait until this was said, and see that it was not said twice."""
        await until(lambda: answer in self.answers(kind), seconds)
        assert self.answers(kind).count(answer) == 1

    def identifies(self) -> int:
        return sum(name == "<op2" for _, name, _ in self.world.discord.events)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def rooms(world: World, model: Model, service: Service) -> AsyncIterator[Rooms]:
    places = {
        "channel": world.channel(),
        "discord_thread": world.discord_thread(),
        "discord_private": world.discord_private(),
        "group": world.group(),
        "topic": world.topics()[1],
        "telegram_private": world.telegram_private(),
    }
    await service.begin()
    yield Rooms(world, model, service, places)
    if service.running:
        await service.stop()


@pytest.fixture(autouse=True)
def even_pace(model: Model) -> None:
    model.pauses, model.pieces = (0.01,), 4
    model.open.set()


# --- talking -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
async def test_question_is_answered_where_it_was_asked(rooms: Rooms, kind: str) -> None:
    answer = rooms.ask(kind)
    await rooms.answered(kind, answer)


@pytest.mark.parametrize("kind", ["channel", "group"])
async def test_reply_needs_no_mention(rooms: Rooms, kind: str) -> None:
    await rooms.answered(kind, rooms.ask(kind))
    name = next(_names)
    rooms.places[kind].reply(f"and T{name}:3")
    await rooms.answered(kind, right_answer(f"T{name}:3"))


async def test_others_and_their_bots_are_not_answered(rooms: Rooms) -> None:
    world, before = rooms.world, len([post for post in rooms.world.posts() if post.by_bot])
    other = world.discord.member(world.guild, "other", bot=True)
    channel = int(rooms.places["channel"].name.removeprefix("discord:"))
    world.discord.say(other, channel, f"{rooms.places['channel'].call}hello")
    world.telegram.user(99, is_bot=True)
    group = int(rooms.places["group"].name.removeprefix("telegram:"))
    world.telegram.say(99, f"{rooms.places['group'].call}hello", chat=group)
    rooms.places["channel"].say("not to you", 0)
    rooms.places["group"].say("not to you", 0)

    for kind in ("channel", "group"):
        await rooms.answered(kind, rooms.ask(kind))

    assert len([post for post in world.posts() if post.by_bot]) == before + 2


@pytest.mark.parametrize(("kind", "limit"), [("channel", 2000), ("telegram_private", 4096)])
async def test_long_answer_is_split_in_order(rooms: Rooms, kind: str, limit: int) -> None:
    rooms.model.pauses, rooms.model.pieces = (0.4,), 8  # so that it is seen growing
    before = len(rooms.answers(kind))
    answer = rooms.ask(kind, 1300)
    await until(lambda: " ".join(rooms.answers(kind)[before:]) == answer, 30)
    parts = rooms.answers(kind)[before:]
    assert len(parts) > 1
    assert all(len(part) <= limit for part in parts)


# --- a platform that has trouble -----------------------------------------------------------------


@pytest.mark.parametrize("method", ["sendMessage", "editMessageText"])
async def test_telegram_is_left_alone_while_it_says_so(rooms: Rooms, method: str) -> None:
    wire = rooms.world.telegram
    wire.fault(method, retry_after=2)
    answer = rooms.ask("telegram_private")
    refused = await until(lambda: next((e for e in wire.log if e["status"] == 429), None))
    await rooms.answered("telegram_private", answer)
    refused["status"] = "seen"
    window = [e for e in wire.log if refused["t"] < e["t"] < refused["t"] + 2]
    assert [e["method"] for e in window if "chat_id" in e["params"]] == []


@pytest.mark.parametrize("retry_after", [2.0, 8.0])
async def test_discord_is_left_alone_while_it_says_so(rooms: Rooms, retry_after: float) -> None:
    wire = rooms.world.discord
    wire.fault("POST", "/channels/*/messages", retry_after=retry_after)
    answer = rooms.ask("channel")
    refused = await until(lambda: next((e for e in wire.log if e["status"] == 429), None))
    await rooms.answered("channel", answer)
    refused["status"] = "seen"
    window = [e for e in wire.log if refused["t"] < e["t"] < refused["t"] + retry_after]
    assert [e["path"] for e in window] == []


@pytest.mark.parametrize("fault", [{"error_code": 502}, {"drop": True}, {"raw": "<html>"}])
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("method", ["sendMessage", "editMessageText"])
async def test_lost_answer_of_telegram_is_cleared_up(
    rooms: Rooms, method: str, after: bool, fault: dict[str, Any]
) -> None:
    rooms.world.telegram.fault(method, after=after, **fault)
    await rooms.answered("group", rooms.ask("group"))
    assert "…" not in rooms.answers("group")


@pytest.mark.parametrize("fault", [{"status": 502}, {"drop": True}])
@pytest.mark.parametrize("after", [False, True])
async def test_lost_answer_of_discord_is_cleared_up(
    rooms: Rooms, after: bool, fault: dict[str, Any]
) -> None:
    rooms.world.discord.fault("POST", "/channels/*/messages", after=after, **fault)
    await rooms.answered("channel", rooms.ask("channel"))


async def test_cut_gateway_is_resumed_without_a_gap(rooms: Rooms) -> None:
    identified = rooms.identifies()
    await rooms.world.discord.cut()
    answer = rooms.ask("channel")
    await rooms.answered("channel", answer, 30)
    assert rooms.identifies() == identified
    await rooms.service.ready()


async def test_lost_session_is_caught_up_with(rooms: Rooms) -> None:
    identified = rooms.identifies()
    await rooms.world.discord.forget()
    asked = {kind: rooms.ask(kind) for kind in ("channel", "discord_thread", "discord_private")}
    for kind, answer in asked.items():
        await rooms.answered(kind, answer, 40)
    assert rooms.identifies() == identified + 1
    await rooms.service.ready()


async def test_dead_discord_client_is_seen_and_replaced(rooms: Rooms) -> None:
    rooms.world.discord.gw_faults["accept"] = False
    await rooms.world.discord.cut(4010)  # discord.py gives up on this one
    await rooms.service.ready(status=503)
    await rooms.answered("telegram_private", rooms.ask("telegram_private"))
    missed = rooms.ask("channel")
    rooms.world.discord.gw_faults["accept"] = True
    await rooms.answered("channel", missed, 40)
    await rooms.service.ready()


async def test_without_its_valkey_it_answers_all_the_same(rooms: Rooms) -> None:
    def valkeys() -> list[psutil.Process]:
        children = psutil.Process(rooms.service.process.pid).children()
        return [child for child in children if "valkey" in child.name()]

    rooms.model.pauses = (0.2,)
    asked = [(kind, rooms.ask(kind)) for kind in KINDS]
    (valkey,) = valkeys()
    valkey.kill()
    asked += [(kind, rooms.ask(kind)) for kind in KINDS]
    for kind, answer in asked:
        await rooms.answered(kind, answer, 30)
    (another,) = await until(valkeys)
    assert another.pid != valkey.pid


# --- commands ------------------------------------------------------------------------------------


def newest(answers: list[str], beginning: str) -> bool:
    return bool(answers) and answers[-1].startswith(beginning)


async def test_preset_of_a_group_is_the_admins_choice(rooms: Rooms) -> None:
    place, wire = rooms.places["group"], rooms.world.telegram
    wire.chats[int(place.name.removeprefix("telegram:"))]["_admins"] = {TELEGRAM_PEOPLE[1]}
    place.say("/preset use nova", 0)
    await until(lambda: newest(rooms.answers("group"), "⚠ Only an admin"))

    place.say("/preset use nova", 1)
    await until(lambda: newest(rooms.answers("group"), "nova answers here"))
    await rooms.answered("group", rooms.ask("group"))
    assert rooms.model.requests[-1]["messages"][0]["content"] == "You are Nova."

    place.say(f"/preset@{wire.me['username']} reset", 1)
    await until(lambda: newest(rooms.answers("group"), "Back to tester"))


async def test_preset_of_a_channel_is_the_admins_choice(rooms: Rooms) -> None:
    world = rooms.world
    channel = world.guild.create_text_channel("stage")

    async def command(who: Any, words: str, **options: str) -> str:
        """What the person sees in answer to a slash command; nobody else does."""
        result = await who.slash(channel, words, **options)
        seen = await until(lambda: result.response and result.response.content and result.response)
        assert seen.ephemeral
        return str(seen.content)

    assert (await command(world.people[0], "preset use", name="nova")).startswith("⚠ Only an admin")
    assert (await command(world.admin, "preset use", name="nova")).startswith("nova answers here")
    assert "→ nova" in await command(world.people[0], "preset list")

    name = next(_names)
    world.discord.say(world.people[0], channel.id, f"<@{world.discord.b.bot_user.id}> T{name}:3")
    await until(lambda: rooms.model.requests[-1]["messages"][-1]["content"].endswith(f"T{name}:3"))
    assert rooms.model.requests[-1]["messages"][0]["content"] == "You are Nova."


async def test_names_are_completed_while_somebody_types(rooms: Rooms) -> None:
    channel = rooms.world.guild.create_text_channel("typing")
    known = set(rooms.world.discord.b.interactions)
    await rooms.world.people[0].autocomplete(channel, "preset use", "name", "no")
    (asked,) = set(rooms.world.discord.b.interactions) - known
    interaction = rooms.world.discord.b.interactions[asked]
    choices = await until(lambda: interaction.autocomplete_choices)
    assert choices == [{"name": "nova", "value": "nova"}]


async def test_admin_gets_the_exact_prompt_as_a_file_on_telegram(rooms: Rooms) -> None:
    place, wire = rooms.places["topic"], rooms.world.telegram
    chat, _, topic = place.name.removeprefix("telegram:").partition(":")
    await rooms.answered("topic", rooms.ask("topic"))
    place.say("/context prompt", 0)
    await until(lambda: newest(rooms.answers("topic"), "⚠ Only an admin"))
    wire.chats[int(chat)]["_admins"] = {TELEGRAM_PEOPLE[1]}
    wire.fault("sendDocument", drop=True, after=True)

    place.say("/context prompt", 1)
    await rooms.answered("topic", rooms.ask("topic"))

    (sent,) = [said for said in wire.msgs[int(chat)].values() if "document" in said]
    assert str(sent["message_thread_id"]) == topic
    assert sent["caption"].startswith("The exact prompt of receipt")
    text = wire.files[sent["document"]["file_id"]][1].decode()
    assert text.startswith("receipt: ")
    assert "You are a tester." in text


async def test_admin_alone_sees_the_exact_prompt_on_discord(rooms: Rooms) -> None:
    world, name = rooms.world, next(_names)
    channel = world.guild.create_text_channel("prompts")

    def said() -> list[str]:
        """What everybody sees."""
        shown = world.discord.messages(channel.id)
        return [one["content"] for one in shown if not one["flags"] & _EPHEMERAL]

    world.discord.say(world.people[0], channel.id, f"<@{world.discord.b.bot_user.id}> T{name}:3")
    await until(lambda: right_answer(f"T{name}:3") in said())
    before = said()

    async def shown_to(who: Any) -> Any:
        result = await who.slash(channel, "context", show="prompt")
        seen = await until(lambda: result.response and result.response.content and result.response)
        assert seen.ephemeral
        return seen

    refused = await shown_to(world.people[0])
    assert (refused.content[:15], refused.attachments) == ("⚠ Only an admin", [])
    (file,) = (await shown_to(world.admin)).attachments
    text = world.discord.b.cdn.get(file.url).decode()
    assert '"content": "You are a tester."' in text
    assert said() == before


async def test_new_conversation_knows_nothing_of_the_old_one(rooms: Rooms) -> None:
    place = rooms.places["telegram_private"]
    await rooms.answered("telegram_private", rooms.ask("telegram_private"))
    place.say("/new", 0)
    await until(lambda: newest(rooms.answers("telegram_private"), "A new conversation"))
    await rooms.answered("telegram_private", rooms.ask("telegram_private"))
    assert [one["role"] for one in rooms.model.requests[-1]["messages"]] == ["system", "user"]


async def test_help_names_the_commands(rooms: Rooms) -> None:
    rooms.places["telegram_private"].say("/help", 0)
    await until(lambda: newest(rooms.answers("telegram_private"), "I am"))
    assert "/preset" in rooms.answers("telegram_private")[-1]


# --- an end and a new beginning -----------------------------------------------------------------


async def test_killed_in_the_middle_of_an_answer_it_begins_again(rooms: Rooms) -> None:
    world = rooms.world
    rooms.model.open.clear()
    asked = {}
    # Where little was said lately: in a busy group an answer is not shown growing.
    for make in (world.channel, world.discord_private, world.group, world.telegram_private):
        place, name = make(), next(_names)
        place.ask(name, 40)
        asked[place] = right_answer(f"T{name}:40")

    def begun(place: Place, answer: str) -> bool:
        return any(text != "…" and answer.startswith(text) for text in world.said_in(place))

    await until(lambda: all(begun(place, answer) for place, answer in asked.items()))
    await rooms.service.kill()
    rooms.model.open.set()
    await rooms.service.begin()
    await until(lambda: all(world.said_in(place) == [asked[place]] for place in asked))


async def test_answers_under_way_are_finished_before_it_stops(rooms: Rooms) -> None:
    kinds = ("channel", "telegram_private")
    rooms.model.open.clear()
    half_way = rooms.model.half_way
    asked = {kind: rooms.ask(kind) for kind in kinds}
    await until(lambda: rooms.model.half_way == half_way + len(kinds))

    stopping = asyncio.create_task(rooms.service.stop())
    await asyncio.sleep(1)
    rooms.model.open.set()

    assert await stopping == 0
    assert {kind: rooms.answers(kind)[-1] for kind in kinds} == asked


async def test_in_the_end_every_question_has_its_one_answer(rooms: Rooms) -> None:
    assert await rooms.service.stop() == 0
    notices = (
        "⚠ Only an admin",
        "The exact prompt",
        "nova answers",
        "Back to",
        "A new conv",
        "I am",
        "→ nova",
    )
    verdict = judge(
        post for post in rooms.world.posts() if not (post.by_bot and post.text.startswith(notices))
    )
    assert verdict.clean, str(verdict)
    assert rooms.world.telegram.lint == []

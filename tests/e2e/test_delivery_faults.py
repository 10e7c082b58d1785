"""Whatever platforms, stores and clocks do: every question has its one answer, in its order."""

import asyncio
import itertools
import signal
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from redis.asyncio import Redis

from tests.attacks import with_ours
from tests.e2e.checker import Verdict, judge, right_answer
from tests.e2e.model import Model
from tests.e2e.service import Service
from tests.e2e.world import TELEGRAM_PEOPLE, Place, World

pytestmark = [
    pytest.mark.service,
    pytest.mark.timeout(180),
    pytest.mark.asyncio(loop_scope="module"),
]

_names = (f"{number:04x}" for number in itertools.count())


async def until(what: Callable[[], Any], seconds: float = 60) -> Any:
    """Wait until `what()` is true, and give it."""
    async with asyncio.timeout(seconds):
        while not (found := what()):  # noqa: ASYNC110 # another process makes it so
            await asyncio.sleep(0.02)
    return found


@dataclass
class Siege:
    """Both platforms and the service on them, which each scene has to leave in health."""

    world: World
    model: Model
    service: Service

    @property
    def database(self) -> Path:
        return self.service.data / "troupe.db"

    def ask(self, *places: Place, words: int = 12) -> None:
        for place in places:
            place.ask(next(_names), words)

    def verdict(self, *places: Place) -> Verdict:
        names = {place.name for place in places}
        notices = ("⚠", "Deleted for good", "→ tester")
        return judge(
            post
            for post in self.world.posts()
            if post.place in names and not (post.by_bot and post.text.startswith(notices))
        )

    def nothing_waits(self) -> bool:
        with closing(sqlite3.connect(f"file:{self.database}?mode=ro", uri=True)) as database:
            waiting = database.execute(
                "SELECT (SELECT count(*) FROM inbox WHERE state = 'new')"
                " + (SELECT count(*) FROM outbox WHERE state NOT IN ('sent', 'dead'))"
            ).fetchone()
        return bool(waiting[0] == 0)

    async def all_right(self, *places: Place) -> None:
        """Wait until all questions are answered and nothing is left to do; then judge."""
        await until(lambda: not self.verdict(*places).lost)
        await until(self.nothing_waits)
        verdict = self.verdict(*places)
        assert verdict.clean, str(verdict)
        assert verdict.questions

    async def half_way(self, *places: Place) -> None:
        """Ask, and stop the model in the middle of its answers."""
        self.model.open.clear()
        reached = self.model.half_way + len(places)
        self.ask(*places, words=40)
        await until(lambda: self.model.half_way >= reached)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def siege(world: World, model: Model, service: Service) -> AsyncIterator[Siege]:
    await service.begin()
    yield Siege(world, model, service)
    if service.running:
        await service.stop()


# --- Telegram --------------------------------------------------------------------------------


async def update_again_and_again(siege: Siege) -> None:
    wire, place = siege.world.telegram, siege.world.telegram_private()
    name = next(_names)
    said = place.ask(name)
    for _ in range(4):
        wire.push({"message": wire._out(said)})
    wire.fault("getUpdates", drop=True, after=True, times=2)
    siege.ask(place)
    await siege.all_right(place)


def polls_fail(times: int, **fault: Any) -> "Scene":
    async def scene(siege: Siege) -> None:
        place = siege.world.group()
        siege.world.telegram.fault("getUpdates", times=times, **fault)
        siege.ask(place)
        siege.ask(place, words=3)
        await siege.all_right(place)

    return scene


async def chat_moves_while_we_speak(siege: Siege) -> None:
    wire, old, new = siege.world.telegram, siege.world.group(), siege.world.group()
    chat = int(new.name.removeprefix("telegram:"))
    wire.chat(chat, "supergroup")
    here = {"chat_id": old.name.removeprefix("telegram:")}
    wire.fault("sendMessage", times=50, migrate_to=chat, match=here)
    wire.fault("editMessageText", times=50, migrate_to=chat, match=here)
    name = next(_names)
    old.ask(name)
    answer = right_answer(f"T{name}:12")
    await until(lambda: siege.world.said_in(new) == [answer])
    await until(siege.nothing_waits)
    assert siege.world.said_in(new) == [answer]
    assert siege.world.said_in(old) == []


async def person_has_blocked_us(siege: Siege) -> None:
    wire, place = siege.world.telegram, siege.world.telegram_private()
    wire.fault("sendMessage", error_code=403, description="Forbidden: bot was blocked by the user")
    asked = len(wire.log)
    siege.ask(place)
    await until(lambda: any(call["status"] == 403 for call in wire.log[asked:]))
    await until(siege.nothing_waits)
    sends = [call for call in wire.log[asked:] if call["method"] == "sendMessage"]
    assert len(sends) == 1, "nobody insists"
    name = next(_names)
    place.ask(name)
    await until(lambda: siege.world.said_in(place) == [right_answer(f"T{name}:12")])


def telegram_fails(method: str, place: str = "group", **fault: Any) -> "Scene":
    async def scene(siege: Siege) -> None:
        here = siege.world.group() if place == "group" else siege.world.telegram_private()
        siege.world.telegram.fault(method, **fault)
        siege.ask(here)
        siege.ask(here, words=3)
        await siege.all_right(here)

    return scene


# --- Discord ---------------------------------------------------------------------------------


def discord_fails(**fault: Any) -> "Scene":
    async def scene(siege: Siege) -> None:
        place, other = siege.world.channel(), siege.world.channel()
        siege.world.discord.fault("POST", "/channels/*/messages", **fault)
        siege.ask(place, other)
        siege.ask(place, words=3)
        await siege.all_right(place, other)

    return scene


async def session_is_lost(siege: Siege) -> None:
    place, wire = siege.world.channel(), siege.world.discord
    wire.gw_faults["invalid_session"] = 1
    await wire.cut()
    siege.ask(place)
    await siege.all_right(place)


async def reconnects_again_and_again(siege: Siege) -> None:
    place, wire = siege.world.channel(), siege.world.discord
    for _ in range(6):
        connected = [name for _, name, _ in wire.events].count("<op6")
        wire.op(7)
        siege.ask(place, words=3)
        await until(partial(_resumed_since, wire, connected))
    await siege.all_right(place)


async def long_replay(siege: Siege) -> None:
    """As many events of others as the rig keeps come at once, and one question among them."""
    place, wire = siege.world.channel(), siege.world.discord
    hall = siege.world.guild.create_text_channel("crowded")
    wire.gw_faults["accept"] = False
    await wire.cut()
    for number in range(1900):
        wire.say(siege.world.people[0], hall.id, f"chatter {number}")
        if number == 950:
            siege.ask(place)
    wire.gw_faults["accept"] = True
    await siege.all_right(place)
    await siege.service.ready()


def command_fares(method: str, path: str, **fault: Any) -> "Scene":
    """Who used a native command is told all the same, once; in the channel if need be."""

    async def scene(siege: Siege) -> None:
        wire = siege.world.discord
        channel = siege.world.guild.create_text_channel(f"desk-{next(_names)}")
        wire.fault(method, path, **fault)
        await siege.world.people[0].slash(channel, "preset list")
        await until(lambda: any(one["content"] for one in wire.messages(channel.id)))
        await until(siege.nothing_waits)
        said = [one["content"] for one in wire.messages(channel.id) if one["content"]]
        assert [text.partition("\n")[0] for text in said] == ["· nova"]

    return scene


async def nothing_is_allowed(siege: Siege) -> None:
    """A refusal is no reason to insist: Discord shuts out who does so 10,000 times."""
    wire, place = siege.world.discord, siege.world.channel()
    begun = len(wire.log)
    wire.fault("POST", "/channels/*", status=403, code=50013, times=None)
    for _ in range(5):
        siege.ask(place)
    await until(lambda: len(siege.model.requests) and _refused(wire, begun) >= 5)
    await until(siege.nothing_waits)
    assert _refused(wire, begun) <= 5 * 4, "typing, opening, and what is left of the answer"


def _resumed_since(wire: Any, times: int) -> bool:
    return [name for _, name, _ in wire.events].count("<op6") > times


def _refused(wire: Any, begun: int) -> int:
    return sum(call["status"] in {401, 403, 429} for call in wire.log[begun:])


# --- stores, clocks, processes -----------------------------------------------------------------


async def valkey_is_wiped(siege: Siege) -> None:
    places = [siege.world.channel(), siege.world.group()]
    await siege.half_way(*places)
    socket = next(siege.service.data.glob("*.sock"))
    async with Redis.from_url(f"unix://{socket}") as valkey:
        await valkey.flushall()
        siege.ask(*places)
        await valkey.flushall()
    siege.model.open.set()
    await siege.all_right(*places)


async def service_freezes(siege: Siege) -> None:
    places = [siege.world.channel(), siege.world.group()]
    await siege.half_way(*places)
    siege.service.process.send_signal(signal.SIGSTOP)
    siege.ask(*places)
    await asyncio.sleep(3)
    siege.model.open.set()
    siege.service.process.send_signal(signal.SIGCONT)
    await siege.all_right(*places)


async def database_is_locked(siege: Siege) -> None:
    """For longer than SQLite waits by itself."""
    places = [siege.world.channel(), siege.world.group()]
    with closing(sqlite3.connect(siege.database, isolation_level=None)) as backup:
        backup.execute("BEGIN IMMEDIATE")
        siege.ask(*places)
        await until(lambda: "database is locked" in siege.service.said())
        backup.execute("ROLLBACK")
    await siege.all_right(*places)


# --- people ------------------------------------------------------------------------------------


async def question_is_edited(siege: Siege) -> None:
    on_discord, on_telegram = siege.world.channel(), siege.world.group()
    wires = siege.world
    channel = int(on_discord.name.removeprefix("discord:"))
    chat = int(on_telegram.name.removeprefix("telegram:"))
    await siege.half_way(on_discord, on_telegram)
    asked = wires.discord.messages(channel)[0]
    edited = {"content": asked["content"] + " please!"}
    wires.discord.b.edit_message(channel, int(asked["id"]), edited)
    first = min(wires.telegram.msgs[chat])
    text = wires.telegram.msgs[chat][first]["text"]
    wires.telegram.edit(TELEGRAM_PEOPLE[0], chat, first, f"{text} please!")
    siege.model.open.set()
    await siege.all_right(on_discord, on_telegram)


async def question_is_deleted(siege: Siege) -> None:
    on_discord, on_telegram = siege.world.channel(), siege.world.group()
    wires = siege.world
    channel = int(on_discord.name.removeprefix("discord:"))
    chat = int(on_telegram.name.removeprefix("telegram:"))
    await siege.half_way(on_discord, on_telegram)
    wires.discord.b.delete_message(channel, int(wires.discord.messages(channel)[0]["id"]))
    del wires.telegram.msgs[chat][min(wires.telegram.msgs[chat])]
    siege.model.open.set()
    await until(lambda: all(map(wires.said_in, (on_discord, on_telegram))))
    await until(siege.nothing_waits)
    for place in (on_discord, on_telegram):
        [said] = wires.said_in(place)
        assert said == right_answer("T" + said[2:].split(maxsplit=1)[0])


async def forgets_during_an_answer(siege: Siege) -> None:
    place = siege.world.telegram_private()
    await siege.half_way(place)
    place.say("/forget", 0)
    siege.model.open.set()
    siege.ask(place)
    await siege.all_right(place)
    assert sum(said.startswith("Forgotten") for said in siege.world.said_in(place)) == 1


Scene = Callable[[Siege], Awaitable[None]]
CONFLICT = "Conflict: terminated by other getUpdates request"
SCENES: Mapping[str, Scene] = {
    "same Telegram update delivered 5×": update_again_and_again,
    "two pollers → 409 Conflict": polls_fail(3, error_code=409, description=CONFLICT),
    "getUpdates returns 502 for 10 min": polls_fail(6, error_code=502, description="Bad Gateway"),
    "chat migrated to supergroup mid-send": chat_moves_while_we_speak,
    "user blocked the bot (403)": person_has_blocked_us,
    "429 on final send after stream": telegram_fails("editMessageText", "alone", retry_after=2),
    "sendMessage accepted, response lost (TCP reset)": telegram_fails(
        "sendMessage", drop=True, after=True
    ),
    "sendMessage accepted after client timeout": telegram_fails("sendMessage", delay=10.5),
    "Discord RESUME → op 9 d=false": session_is_lost,
    "Discord op 7 every 5 s for 1 min": reconnects_again_and_again,
    "gateway replays 5,000 events on RESUME": long_replay,
    "interaction not acked in 3 s": command_fares(
        "POST", "/interactions/*/callback", status=404, code=10062
    ),
    "interaction token expired (15 min)": command_fares(
        "PATCH", "/webhooks/*", status=401, code=50027
    ),
    "429 scope=shared": discord_fails(retry_after=1.0, scope="shared"),
    "10,000 invalid requests window nearly full": nothing_is_allowed,
    "5xx on POST message then success with same nonce": discord_fails(status=502, after=True),
    "Redis FLUSHALL during work": valkey_is_wiped,
    "worker SIGSTOP 30 s then SIGCONT": service_freezes,
    "SQLite file locked by backup": database_is_locked,
    "user edits question while answering": question_is_edited,
    "user deletes question while answering": question_is_deleted,
    "/forget during an answer": forgets_during_an_answer,
}
OURS: Mapping[str, Scene] = {
    "getUpdates answers with a page": polls_fail(2, raw="<html>gateway</html>"),
    "typing is refused": telegram_fails("sendChatAction", times=5, error_code=403),
    "two answers in a row are lost": telegram_fails("sendMessage", drop=True, after=True, times=2),
    "edits are lost": telegram_fails("editMessageText", drop=True, times=2),
    "global 429": discord_fails(retry_after=1.0, is_global=True),
    "429 of a gateway in front": discord_fails(retry_after=1.0, via=False),
}
_KILLS = "tests/e2e/test_kill.py kills at every point"
_FATAL = "tests/e2e/test_bad_settings.py and the tests of each platform have it"
NOT_HERE = {
    "bot token revoked (401)": _FATAL,
    "close 4014 / 4004": _FATAL,
    "kill -9 after HTTP 200 before commit": _KILLS,
    "kill -9 between parts 2 and 3 of 5": _KILLS,
    "kill -9 while reconciling": _KILLS,
    "IDENTIFY budget: 1000/day reached": "Discord then resets the token: that is close 4004",
    "Redis primary lost with 1 s of writes": "tests/e2e/test_walk.py kills the Valkey",
    "Postgres failover, last 10 ms lost (async standby)": "SQLite has no standby",
    "clock skew 60 s between workers": "tests/contracts/test_store.py: an epoch fences, no clock",
    "/stop after final token, before send": "there is no /stop yet",
}


@pytest.mark.parametrize(("title", "given"), with_ours("delivery", OURS))
async def test_every_question_has_its_one_answer(siege: Siege, title: str, given: Any) -> None:
    scene = OURS.get(title) or SCENES.get(title)
    if scene is None:
        pytest.skip(NOT_HERE.get(title, "there is no scene for this"))
    siege.model.open.set()
    try:
        await scene(siege)
    finally:
        siege.world.telegram.faults.clear()
        siege.world.discord.faults.clear()

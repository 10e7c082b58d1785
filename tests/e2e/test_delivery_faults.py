"""Faults of platforms, stores and processes: every question is answered once and in order."""

import asyncio
import itertools
import json
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
from tests.e2e.child_launcher import running_launcher
from tests.e2e.loopback_platforms import TELEGRAM_PEOPLE, Conversation, LoopbackPlatforms
from tests.e2e.model_server import ModelServer
from tests.e2e.service_process import ServiceProcess
from tests.e2e.transcript_checker import CheckResult, check_transcripts, expected_answer
from tests.e2e.waiting import wait_until
from tests.valkey import find_valkey, run_valkey

pytestmark = [
    pytest.mark.service,
    pytest.mark.timeout(180),
    pytest.mark.asyncio(loop_scope="module"),
]

_names = (f"{number:04x}" for number in itertools.count())


@dataclass
class Deployment:
    """Both platforms and the service; every scenario must leave them working."""

    platforms: LoopbackPlatforms
    model: ModelServer
    service: ServiceProcess

    @property
    def database(self) -> Path:
        return self.service.data / "troupe.db"

    def ask(self, *conversations: Conversation, words: int = 12) -> None:
        for conversation in conversations:
            conversation.ask(next(_names), words)

    def result(self, *conversations: Conversation) -> CheckResult:
        names = {conversation.name for conversation in conversations}
        notices = ("⚠", "Deleted for good", "→ tester")
        return check_transcripts(
            post
            for post in self.platforms.messages()
            if post.conversation in names and not (post.by_bot and post.text.startswith(notices))
        )

    def queues_are_empty(self) -> bool:
        with closing(sqlite3.connect(f"file:{self.database}?mode=ro", uri=True)) as database:
            waiting = database.execute(
                "SELECT (SELECT count(*) FROM inbox WHERE state = 'new')"
                " + (SELECT count(*) FROM outbox WHERE state NOT IN ('sent', 'dead'))"
            ).fetchone()
        return bool(waiting[0] == 0)

    async def wait_until_right(self, *conversations: Conversation) -> None:
        """Wait until all questions are answered and the queues are empty; then check."""
        await wait_until(lambda: not self.result(*conversations).lost)
        await wait_until(self.queues_are_empty)
        result = self.result(*conversations)
        assert result.is_clean, str(result)
        assert result.questions

    async def ask_and_hold(self, *conversations: Conversation) -> None:
        """Ask, and hold the model in the middle of its answers."""
        self.model.gate.clear()
        reached = self.model.halfway + len(conversations)
        self.ask(*conversations, words=40)
        await wait_until(lambda: self.model.halfway >= reached)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def service(
    platforms: LoopbackPlatforms, model: ModelServer, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[ServiceProcess]:
    async with running_launcher() as launcher:
        installed = ServiceProcess(tmp_path_factory.mktemp("service"), platforms, model, launcher)
        yield installed
        if installed.is_running:
            await installed.kill()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def deployment(
    platforms: LoopbackPlatforms,
    model: ModelServer,
    service: ServiceProcess,
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[Deployment]:
    async with run_valkey(tmp_path_factory.mktemp("valkey")) as url:
        service.settings["TROUPE_REDIS_URL"] = url  # the kill test runs without
        await service.start_and_wait()
        yield Deployment(platforms, model, service)
        if service.is_running:
            await service.stop()


# --- Telegram --------------------------------------------------------------------------------


async def update_is_redelivered(deployment: Deployment) -> None:
    wire, conversation = deployment.platforms.telegram, deployment.platforms.telegram_dm()
    name = next(_names)
    said = conversation.ask(name)
    for _ in range(4):
        wire.push({"message": wire._out(said)})
    wire.fault("getUpdates", drop=True, after=True, times=2)
    deployment.ask(conversation)
    await deployment.wait_until_right(conversation)


def polls_fail(times: int, **fault: Any) -> "Scenario":
    async def scenario(deployment: Deployment) -> None:
        conversation = deployment.platforms.telegram_group()
        deployment.platforms.telegram.fault("getUpdates", times=times, **fault)
        deployment.ask(conversation)
        deployment.ask(conversation, words=3)
        await deployment.wait_until_right(conversation)

    return scenario


async def group_becomes_a_supergroup(deployment: Deployment) -> None:
    wire, old, new = (
        deployment.platforms.telegram,
        deployment.platforms.telegram_group(),
        deployment.platforms.telegram_group(),
    )
    chat = int(new.name.removeprefix("telegram:"))
    wire.chat(chat, "supergroup")
    here = {"chat_id": old.name.removeprefix("telegram:")}
    wire.fault("sendMessage", times=50, migrate_to=chat, match=here)
    wire.fault("editMessageText", times=50, migrate_to=chat, match=here)
    name = next(_names)
    old.ask(name)
    answer = expected_answer(f"T{name}:12")
    await wait_until(lambda: deployment.platforms.bot_texts(new) == [answer])
    await wait_until(deployment.queues_are_empty)
    assert deployment.platforms.bot_texts(new) == [answer]
    assert deployment.platforms.bot_texts(old) == []


async def user_blocked_the_bot(deployment: Deployment) -> None:
    wire, conversation = deployment.platforms.telegram, deployment.platforms.telegram_dm()
    wire.fault("sendMessage", error_code=403, description="Forbidden: bot was blocked by the user")
    asked = len(wire.log)
    deployment.ask(conversation)
    await wait_until(lambda: any(call["status"] == 403 for call in wire.log[asked:]))
    await wait_until(deployment.queues_are_empty)
    sends = [call for call in wire.log[asked:] if call["method"] == "sendMessage"]
    assert len(sends) == 1, "it was not repeated"
    name = next(_names)
    conversation.ask(name)
    await wait_until(
        lambda: deployment.platforms.bot_texts(conversation) == [expected_answer(f"T{name}:12")]
    )


def telegram_fails(method: str, conversation: str = "group", **fault: Any) -> "Scenario":
    async def scenario(deployment: Deployment) -> None:
        here = (
            deployment.platforms.telegram_group()
            if conversation == "group"
            else deployment.platforms.telegram_dm()
        )
        deployment.platforms.telegram.fault(method, **fault)
        deployment.ask(here)
        deployment.ask(here, words=3)
        await deployment.wait_until_right(here)

    return scenario


# --- Discord ---------------------------------------------------------------------------------


def discord_fails(**fault: Any) -> "Scenario":
    async def scenario(deployment: Deployment) -> None:
        conversation, other = deployment.platforms.channel(), deployment.platforms.channel()
        deployment.platforms.discord.fault("POST", "/channels/*/messages", **fault)
        deployment.ask(conversation, other)
        deployment.ask(conversation, words=3)
        await deployment.wait_until_right(conversation, other)

    return scenario


async def session_is_lost(deployment: Deployment) -> None:
    conversation, wire = deployment.platforms.channel(), deployment.platforms.discord
    wire.gw_faults["invalid_session"] = 1
    await wire.cut()
    deployment.ask(conversation)
    await deployment.wait_until_right(conversation)


async def repeated_reconnects(deployment: Deployment) -> None:
    conversation, wire = deployment.platforms.channel(), deployment.platforms.discord
    for _ in range(6):
        connected = [name for _, name, _ in wire.events].count("<op6")
        wire.op(7)
        deployment.ask(conversation, words=3)
        await wait_until(partial(_resumed_since, wire, connected))
    await deployment.wait_until_right(conversation)


async def long_replay(deployment: Deployment) -> None:
    """Replay as many events as the server keeps, with one question among them."""
    conversation, wire = deployment.platforms.channel(), deployment.platforms.discord
    busy = deployment.platforms.guild.create_text_channel("busy")
    wire.gw_faults["accept"] = False
    await wire.cut()
    for number in range(1900):
        wire.say(deployment.platforms.people[0], busy.id, f"chatter {number}")
        if number == 950:
            deployment.ask(conversation)
    wire.gw_faults["accept"] = True
    await deployment.wait_until_right(conversation)
    await deployment.service.wait_until_ready()


def command_response_fails(method: str, path: str, **fault: Any) -> "Scenario":
    """A native command is answered once; in the channel if its response fails."""

    async def scenario(deployment: Deployment) -> None:
        wire = deployment.platforms.discord
        channel = deployment.platforms.guild.create_text_channel(f"commands-{next(_names)}")
        wire.fault(method, path, **fault)
        await deployment.platforms.admin.slash(channel, "preset list")
        await wait_until(lambda: any(one["content"] for one in wire.messages(channel.id)))
        await wait_until(deployment.queues_are_empty)
        said = [one["content"] for one in wire.messages(channel.id) if one["content"]]
        assert [text.partition("\n")[0] for text in said] == ["· nova"]

    return scenario


async def every_request_is_refused(deployment: Deployment) -> None:
    """Refused requests are not repeated: Discord bans clients after 10,000 of them."""
    wire, conversation = deployment.platforms.discord, deployment.platforms.channel()
    begun = len(wire.log)
    wire.fault("POST", "/channels/*", status=403, code=50013, times=None)
    for _ in range(5):
        deployment.ask(conversation)
    await wait_until(lambda: len(deployment.model.requests) and _refused(wire, begun) >= 1)
    await wait_until(deployment.queues_are_empty)
    assert _refused(wire, begun) <= 5 * 4, "typing, opening, and what is left of the answer"


async def bot_is_kicked_from_a_guild(deployment: Deployment) -> None:
    """Remove the bot during an answer: nobody waits for it, and its rows come to their end."""
    wire, other = deployment.platforms.discord, deployment.platforms.channel()
    guild = wire.guild(f"Guild {next(_names)}")
    member, channel = wire.member(guild, next(_names)), guild.create_text_channel("lobby")
    deployment.model.gate.clear()
    reached = deployment.model.halfway + 1
    wire.say(member, channel.id, f"<@{wire.b.bot_user.id}> please T{next(_names)}:40")
    await wait_until(lambda: deployment.model.halfway >= reached)
    begun = len(wire.log)
    wire.b.remove_guild(guild.id)
    deployment.model.gate.set()
    deployment.ask(other)
    await deployment.wait_until_right(other)  # all queues are empty by then
    here = [one for one in wire.log[begun:] if str(channel.id) in one["path"]]
    assert len(here) <= 6, "what is refused is not repeated"
    await deployment.service.wait_until_ready()


def _resumed_since(wire: Any, times: int) -> bool:
    return [name for _, name, _ in wire.events].count("<op6") > times


def _refused(wire: Any, begun: int) -> int:
    return sum(call["status"] in {401, 403, 429} for call in wire.log[begun:])


# --- stores, clocks, processes -----------------------------------------------------------------


async def valkey_is_wiped(deployment: Deployment) -> None:
    conversations = [deployment.platforms.channel(), deployment.platforms.telegram_group()]
    await deployment.ask_and_hold(*conversations)
    async with Redis.from_url(deployment.service.settings["TROUPE_REDIS_URL"]) as valkey:
        await valkey.flushall()
        deployment.ask(*conversations)
        await valkey.flushall()
    deployment.model.gate.set()
    await deployment.wait_until_right(*conversations)


async def service_freezes(deployment: Deployment) -> None:
    conversations = [deployment.platforms.channel(), deployment.platforms.telegram_group()]
    await deployment.ask_and_hold(*conversations)
    deployment.service.process.send_signal(signal.SIGSTOP)
    deployment.ask(*conversations)
    await asyncio.sleep(3)
    deployment.model.gate.set()
    deployment.service.process.send_signal(signal.SIGCONT)
    await deployment.wait_until_right(*conversations)


async def database_is_locked(deployment: Deployment) -> None:
    """Hold the lock for longer than SQLite's busy timeout."""
    conversations = [deployment.platforms.channel(), deployment.platforms.telegram_group()]
    with closing(sqlite3.connect(deployment.database, isolation_level=None)) as backup:
        backup.execute("BEGIN IMMEDIATE")
        deployment.ask(*conversations)
        await wait_until(lambda: "database is locked" in deployment.service.output())
        backup.execute("ROLLBACK")
    await deployment.wait_until_right(*conversations)


async def valkey_is_lost(deployment: Deployment) -> None:
    """Kill the Valkey during answers: nothing that it held is there in the next one."""
    conversations = [deployment.platforms.channel(), deployment.platforms.telegram_group()]
    await deployment.ask_and_hold(*conversations)
    valkey = find_valkey()
    assert valkey is not None
    valkey.kill()
    deployment.ask(*conversations)
    deployment.model.gate.set()
    await deployment.wait_until_right(*conversations)


def killed_at(point: str, count: int = 1, words: int = 12) -> "Scenario":
    """The process dies when it has passed a crash point so many times, and is started again."""

    async def scenario(deployment: Deployment) -> None:
        conversations = [deployment.platforms.channel(), deployment.platforms.telegram_group()]
        telegram, discord = deployment.platforms.telegram, deployment.platforms.discord
        async with deployment.service.killed_at(point, count):
            if point == "during_reconcile":
                telegram.fault("sendMessage", drop=True, after=True)
                discord.fault("POST", "/channels/*/messages", status=502, after=True)
            deployment.ask(*conversations, words=words)
        await deployment.wait_until_right(*conversations)

    return scenario


async def telegram_token_is_revoked(deployment: Deployment) -> None:
    wire, service = deployment.platforms.telegram, deployment.service
    conversation, other = deployment.platforms.telegram_group(), deployment.platforms.channel()
    token, wire.token = wire.token, "123456789:AAH-" + "z" * 31

    def refused() -> int:
        return sum(call["status"] == 401 for call in wire.log)

    try:
        await wait_until(lambda: "token_rejected" in service.output())
        calls = refused()
        deployment.ask(conversation, other)
        await wait_until(lambda: deployment.platforms.bot_texts(other))
        assert refused() <= calls + 1, "a refused token is tried every 30 s only"
        assert await service.readiness() == 503
    finally:
        wire.token = token
    await service.stop()
    await service.start_and_wait()
    await deployment.wait_until_right(conversation, other)


async def discord_refuses_the_bot(deployment: Deployment) -> None:
    await _discord_closes(deployment, 4014, "platform_failed")
    await _discord_closes(deployment, 4004, "token_rejected")  # it may be accepted later


async def _discord_closes(deployment: Deployment, code: int, event: str) -> None:
    wire, service = deployment.platforms.discord, deployment.service
    conversation, other = deployment.platforms.channel(), deployment.platforms.telegram_group()
    wire.gw_faults |= {"refuse_identify": code, "invalid_session": 1}

    def sessions_begun() -> int:
        return [name for _, name, _ in wire.events].count("<op2")

    try:
        await wire.cut()
        await wait_until(lambda: event in service.output())
        begun = sessions_begun()
        deployment.ask(conversation, other)
        await wait_until(lambda: deployment.platforms.bot_texts(other))
        assert sessions_begun() <= begun + 1, "a refused bot is tried every 30 s at most"
        assert service.output().count(event) == 1
        assert await service.readiness() == 503
    finally:
        del wire.gw_faults["refuse_identify"]
    await service.stop()
    await service.start_and_wait()
    await deployment.wait_until_right(conversation, other)


# --- people ------------------------------------------------------------------------------------


async def question_is_edited(deployment: Deployment) -> None:
    on_discord, on_telegram = deployment.platforms.channel(), deployment.platforms.telegram_group()
    wires = deployment.platforms
    channel = int(on_discord.name.removeprefix("discord:"))
    chat = int(on_telegram.name.removeprefix("telegram:"))
    await deployment.ask_and_hold(on_discord, on_telegram)
    asked = wires.discord.messages(channel)[0]
    edited = {"content": asked["content"] + " please!"}
    wires.discord.b.edit_message(channel, int(asked["id"]), edited)
    first = min(wires.telegram.msgs[chat])
    text = wires.telegram.msgs[chat][first]["text"]
    wires.telegram.edit(TELEGRAM_PEOPLE[0], chat, first, f"{text} please!")
    deployment.model.gate.set()
    await deployment.wait_until_right(on_discord, on_telegram)


async def question_is_deleted(deployment: Deployment) -> None:
    on_discord, on_telegram = deployment.platforms.channel(), deployment.platforms.telegram_group()
    wires = deployment.platforms
    channel = int(on_discord.name.removeprefix("discord:"))
    chat = int(on_telegram.name.removeprefix("telegram:"))
    await deployment.ask_and_hold(on_discord, on_telegram)
    wires.discord.b.delete_message(channel, int(wires.discord.messages(channel)[0]["id"]))
    del wires.telegram.msgs[chat][min(wires.telegram.msgs[chat])]
    await wait_until(lambda: not wires.bot_texts(on_discord))
    deployment.model.gate.set()
    await wait_until(lambda: wires.bot_texts(on_telegram))
    await wait_until(deployment.queues_are_empty)
    assert wires.bot_texts(on_discord) == []
    [said] = wires.bot_texts(on_telegram)  # where bots hear of no deletion
    assert said == expected_answer("T" + said[2:].split(maxsplit=1)[0])


async def forgets_during_an_answer(deployment: Deployment) -> None:
    conversation = deployment.platforms.telegram_dm()
    await deployment.ask_and_hold(conversation)
    conversation.say("/forget", 0)
    deployment.model.gate.set()
    deployment.ask(conversation)
    await deployment.wait_until_right(conversation)
    assert (
        sum(
            said.startswith("Deleted for good")
            for said in deployment.platforms.bot_texts(conversation)
        )
        == 1
    )


async def stops_what_is_being_sent(deployment: Deployment) -> None:
    """Stop an answer that is complete and on its way: it arrives once, and /stop is answered."""
    wire, conversation = deployment.platforms.telegram, deployment.platforms.telegram_dm()
    wire.fault("sendMessage", delay=3)
    begun, name = len(wire.log), next(_names)
    conversation.ask(name)
    await wait_until(
        lambda: any(call["method"].lower() == "sendmessage" for call in wire.log[begun:])
    )
    conversation.say("/stop", 0)
    expected = [expected_answer(f"T{name}:12"), "⚠ No answer is being written here."]
    await wait_until(lambda: deployment.platforms.bot_texts(conversation) == expected)
    await wait_until(deployment.queues_are_empty)
    assert deployment.platforms.bot_texts(conversation) == expected


def _corrupt(event: Any) -> Any:
    """Make each message "odd" of an event one that no library can parse."""
    if isinstance(event, dict) and event.get("content") == "odd":
        return {**event, "mentions": 7, "thread": None}
    if isinstance(event, dict):
        return {key: _corrupt(value) for key, value in event.items()}
    return [_corrupt(one) for one in event] if isinstance(event, list) else event


def corrupt_odd_messages(wire: Any) -> None:
    """Have Discord's server send every message "odd" as one that no library can parse."""
    write = wire._wire
    wire._wire = lambda event: write(_corrupt(json.loads(json.dumps(event, default=str))))


async def unreadable_and_undeliverable_in_fifty_chats(deployment: Deployment) -> None:
    """Nobody waits for a message that cannot be parsed, or an answer that is never taken."""
    telegram, wire = deployment.platforms.telegram, deployment.platforms.discord
    groups = [deployment.platforms.telegram_group() for _ in range(25)]
    channels = [deployment.platforms.channel() for _ in range(25)]
    write, take_fault = wire._wire, wire._take_fault

    def fault_of(method: str, path: str) -> Any:
        posted = wire.log[-1]["json"]
        if isinstance(posted, dict) and posted.get("content") == text:
            wire.fault(method, path, status=500)
        return take_fault(method, path)

    first, refused, last = next(_names), next(_names), next(_names)
    text = expected_answer(f"T{refused}:12")
    telegram.fault("sendMessage", times=10**6, match={"text": text}, error_code=500)
    wire._take_fault = fault_of
    corrupt_odd_messages(wire)
    try:
        for conversation in (*groups, *channels):
            conversation.ask(first)
            if conversation in channels:
                conversation.say("odd", 1)
            else:
                telegram.push({"message": {"message_id": "odd", "chat": 7}})
            conversation.ask(refused)
            conversation.ask(last)
        expected = [expected_answer(f"T{name}:12") for name in (first, last)]

        def texts(where: Conversation, *, notices: bool) -> list[str]:
            shown = deployment.platforms.bot_texts(where)
            return [one for one in shown if one.startswith("⚠ A part of my answer") is notices]

        for conversation in (*groups, *channels):
            await wait_until(
                lambda where=conversation: texts(where, notices=False) == expected  # type: ignore[misc]
            )
        for conversation in (*groups, *channels):
            await wait_until(
                lambda where=conversation: len(texts(where, notices=True)) == 1  # type: ignore[misc]
            )
        await wait_until(deployment.queues_are_empty)
    finally:
        wire._wire, wire._take_fault = write, take_fault


Scenario = Callable[[Deployment], Awaitable[None]]
CONFLICT = "Conflict: terminated by other getUpdates request"
SCENARIOS: Mapping[str, Scenario] = {
    "same Telegram update delivered 5×": update_is_redelivered,
    "two pollers → 409 Conflict": polls_fail(3, error_code=409, description=CONFLICT),
    "getUpdates returns 502 for 10 min": polls_fail(6, error_code=502, description="Bad Gateway"),
    "chat migrated to supergroup mid-send": group_becomes_a_supergroup,
    "user blocked the bot (403)": user_blocked_the_bot,
    "429 on final send after stream": telegram_fails("editMessageText", "alone", retry_after=2),
    "sendMessage accepted, response lost (TCP reset)": telegram_fails(
        "sendMessage", drop=True, after=True
    ),
    "sendMessage accepted after client timeout": telegram_fails("sendMessage", delay=10.5),
    "Discord RESUME → op 9 d=false": session_is_lost,
    "Discord op 7 every 5 s for 1 min": repeated_reconnects,
    "gateway replays 5,000 events on RESUME": long_replay,
    "interaction not acked in 3 s": command_response_fails(
        "POST", "/interactions/*/callback", status=404, code=10062
    ),
    "interaction token expired (15 min)": command_response_fails(
        "PATCH", "/webhooks/*", status=401, code=50027
    ),
    "429 scope=shared": discord_fails(retry_after=1.0, scope="shared"),
    "10,000 invalid requests window nearly full": every_request_is_refused,
    "5xx on POST message then success with same nonce": discord_fails(status=502, after=True),
    "Redis FLUSHALL during work": valkey_is_wiped,
    "Redis primary lost with 1 s of writes": valkey_is_lost,
    "bot token revoked (401)": telegram_token_is_revoked,
    "close 4014 / 4004": discord_refuses_the_bot,
    "kill -9 after HTTP 200 before commit": killed_at("after_http"),
    "kill -9 between parts 2 and 3 of 5": killed_at("between_parts", 2, words=1900),
    "kill -9 while reconciling": killed_at("during_reconcile"),
    "worker SIGSTOP 30 s then SIGCONT": service_freezes,
    "SQLite file locked by backup": database_is_locked,
    "user edits question while answering": question_is_edited,
    "user deletes question while answering": question_is_deleted,
    "/forget during an answer": forgets_during_an_answer,
    "/stop after final token, before send": stops_what_is_being_sent,
}
OURS: Mapping[str, Scenario] = {
    "getUpdates answers with a page": polls_fail(2, raw="<html>gateway</html>"),
    "typing is refused": telegram_fails("sendChatAction", times=5, error_code=403),
    "two answers in a row are lost": telegram_fails("sendMessage", drop=True, after=True, times=2),
    "edits are lost": telegram_fails("editMessageText", drop=True, times=2),
    "bot kicked from a guild during an answer": bot_is_kicked_from_a_guild,
    "unreadable and undeliverable in fifty chats": unreadable_and_undeliverable_in_fifty_chats,
    "global 429": discord_fails(retry_after=1.0, is_global=True),
    "429 of a gateway in front": discord_fails(retry_after=1.0, via=False),
}
ELSEWHERE = {
    "IDENTIFY budget: 1000/day reached": (
        "tests/platforms/discord/test_shards.py::test_used_up_budget_is_waited_for"
    ),
    # Without a synchronous standby the lost commits are lost (docs/delivery.md).
    "Postgres failover, last 10 ms lost (async standby)": (
        "tests/e2e/test_outages.py::test_failover_to_a_synchronous_standby_loses_nothing"
    ),
    "clock skew 60 s between workers": (
        "tests/contracts/test_races.py::test_clock_that_is_ahead_takes_no_live_lease"
    ),
}


@pytest.mark.parametrize(("title", "given"), with_ours("delivery", OURS))
async def test_every_question_is_answered_once(
    deployment: Deployment, title: str, given: Any
) -> None:
    scenario = OURS.get(title) or SCENARIOS.get(title)
    if scenario is None:
        pytest.skip(f"runs in {ELSEWHERE[title]}")
    deployment.model.gate.set()
    try:
        await scenario(deployment)
    finally:
        deployment.platforms.telegram.faults.clear()
        deployment.platforms.discord.faults.clear()

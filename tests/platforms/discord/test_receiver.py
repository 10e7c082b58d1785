"""Test that every Discord message is stored once and in order, despite failures."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any

import aiohttp
import discord
import pytest
from structlog.testing import capture_logs

from bot.chat.incoming import IncomingMessage, MessageDeletion, MessageEdit, WakeReason
from bot.errors import PlatformError, Unreachable
from bot.platforms.discord.gateway import Gateway, GatewayEvent, SessionStarted, wait_for_events
from bot.platforms.discord.internals import parse_or_skip
from tests.platforms.discord.conftest import closed_at_the_end, platform_for, running, wait_until
from tests.rigs.simwire import SimWire
from tests.support.intake import FakeIntake
from tests.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.service


class Server:
    """A guild with one channel and one member, Alice, and a platform that receives its messages."""

    def __init__(self, wire: SimWire) -> None:
        self.wire = wire
        self.guild = wire.guild("Guild")
        self.channel = self.guild.create_text_channel("general")
        self.alice = wire.member(self.guild, "alice")
        self.bot = wire.b.bot_user
        self.platform, self.intake = platform_for(wire), FakeIntake()

    def say(self, text: str, **more: Any) -> Any:
        return self.wire.say(self.alice, self.channel.id, text, **more)

    def write(self, text: str) -> Any:
        """Send a direct message to the bot."""
        direct = self.wire.b.get_dm_channel(self.alice.id)
        return self.wire.b.create_message(direct.id, self.alice.id, text)

    def running(self) -> AbstractAsyncContextManager[None]:
        return running(self.platform, self.intake)

    async def receives(self, text: str) -> None:
        await wait_until(lambda: text in self.intake.texts)

    async def receive_first(self) -> None:
        """Run the platform until it has received a first message."""
        async with self.running():
            self.say("before")
            await self.receives("before")

    @asynccontextmanager
    async def catching_up(self) -> AsyncIterator[None]:
        """Run a platform in a new session, so that it reads missed messages from the channels."""
        await self.wire.forget()
        async with running(platform_for(self.wire), self.intake):
            yield


@pytest.fixture
async def server(wire: SimWire) -> AsyncIterator[Server]:
    server = Server(wire)
    async with closed_at_the_end(server.platform):
        yield server


async def purge(server: Server, *messages: int) -> None:
    """Delete messages in one request, like a moderation bot."""
    path = f"/api/v10/channels/{server.channel.id}/messages/bulk-delete"
    headers = {"Authorization": f"Bot {server.wire.token}"}
    async with aiohttp.ClientSession() as session:
        body = {"messages": [str(one) for one in messages]}
        async with session.post(server.wire.base + path, json=body, headers=headers) as response:
            assert response.status == 204


def identify_count(wire: SimWire) -> int:
    return sum(name == "<op2" for _, name, _ in wire.events)


async def test_event_that_arrives_at_the_timeout_is_not_lost() -> None:
    """Otherwise, the stored session would be past an event that was never stored."""
    queue = asyncio.Queue[GatewayEvent]()
    started = SessionStarted(discord.utils.utcnow())
    waiting = asyncio.create_task(wait_for_events(queue, 0.01))
    await asyncio.sleep(0)
    asyncio.get_running_loop().call_later(0.001, queue.put_nowait, started)
    time.sleep(0.02)  # noqa: ASYNC251 # so that both are due in one pass of the event loop
    assert await waiting == [started]


async def test_messages_of_every_channel_type_are_received(server: Server) -> None:
    thread = server.wire.b.create_thread(server.channel.id, "plans", owner_id=server.bot.id)
    async with server.running():
        asked = server.write("in private")
        server.say("near the bot")
        server.say(f"<@{server.bot.id}> to the bot")
        answer = server.wire.b.create_message(server.channel.id, server.bot.id, "an answer")
        reference = {"message_id": str(answer.id), "channel_id": str(server.channel.id)}
        server.say("a reply", reference=reference)
        server.wire.say(server.alice, thread.id, "in a thread")
        await wait_until(lambda: len(server.intake.received) >= 5)

    received = server.intake.received
    assert {one.text: one.wake for one in received} == {
        "in private": WakeReason.DM,
        "near the bot": None,
        "to the bot": WakeReason.MENTION,
        "a reply": WakeReason.REPLY,
        "in a thread": None,
    }
    quote = received[3].quote
    assert quote is not None
    assert (quote.text, quote.is_ours) == ("an answer", True)
    assert received[4].scopes == (
        f"discord:{thread.id}",
        f"discord:{server.channel.id}",
        f"discord:guild:{server.guild.id}",
    )
    assert server.intake.stored[f"discord:channel {asked.channel_id}"] == f"{asked.id} 0"


async def test_messages_of_bots_are_dropped_unparsed_and_have_no_cursor(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = server.wire.member(server.guild, "other", bot=True)
    bots = server.guild.create_text_channel("bots")
    parse, parsed = discord.Message, list[str]()

    def note(**given: Any) -> discord.Message:
        parsed.append(given["data"]["content"])
        return parse(**given)

    monkeypatch.setattr("discord.state.Message", note)
    async with server.running():
        server.wire.say(other, bots.id, f"<@{server.bot.id}> hello")
        server.say("a person")
        await wait_until(lambda: server.intake.received)
        answer = server.wire.say(other, server.channel.id, "an answer")
        server.write("in private")
        await server.receives("in private")
        read_so_far = f"{answer.id} {server.guild.id}"
        channel = f"discord:channel {server.channel.id}"
        await wait_until(lambda: server.intake.stored.get(channel) == read_so_far)
    assert server.intake.texts == ["a person", "in private"] == parsed
    assert f"discord:channel {bots.id}" not in server.intake.stored


async def test_first_start_ignores_older_messages(server: Server) -> None:
    server.say("long ago")
    async with server.running():
        server.say("now")
        await wait_until(lambda: server.intake.received)
    assert server.intake.texts == ["now"]
    assert "discord:0/1 connected" in server.intake.stored


async def test_missed_messages_are_received_before_live_ones(server: Server) -> None:
    new = server.guild.create_text_channel("new")
    async with server.running():
        server.say("before")
        server.write("before, in private")
        await wait_until(lambda: len(server.intake.received) == 2)
    missed = [f"missed {number}" for number in range(230)]
    for text in missed:
        server.say(text)
    server.write("missed, in private")
    server.wire.say(server.alice, new.id, "missed, in a new channel")

    async with server.catching_up():
        server.say("after")
        await server.receives("after")

    here = f"discord:{server.channel.id}"
    assert [one.text for one in server.intake.received if one.scopes[0] == here] == [
        "before",
        *missed,
        "after",
    ]
    assert {"missed, in private", "missed, in a new channel"} <= set(server.intake.texts)
    assert len(server.intake.received) == 2 + 230 + 2 + 1


async def test_channel_without_new_messages_is_not_read(server: Server) -> None:
    await server.receive_first()
    server.wire.log.clear()
    async with server.catching_up():
        server.say("after")
        await wait_until(lambda: len(server.intake.received) == 2)
    assert not [entry for entry in server.wire.log if "/messages" in entry["path"]]


async def test_unreadable_channel_does_not_block_other_channels(server: Server) -> None:
    async with server.running():
        server.write("before, in private")
        server.say("before")
        await wait_until(lambda: len(server.intake.received) == 2)
    server.write("unreadable")
    server.say("missed")
    direct = server.wire.b.get_dm_channel(server.alice.id).id
    server.wire.fault("GET", f"/channels/{direct}*", times=None, status=403, code=50001)
    async with server.catching_up():
        await server.receives("missed")
    assert "unreadable" not in server.intake.texts


async def test_failed_history_request_is_retried(server: Server) -> None:
    await server.receive_first()
    server.say("missed")
    server.wire.fault("GET", "/channels/*/messages", drop=True, times=2)
    server.wire.fault("GET", "/channels/*/messages", status=503, times=2)
    async with server.catching_up():
        server.say("after")
        await server.receives("after")
    assert server.intake.texts == ["before", "missed", "after"]


async def test_cut_connection_is_resumed_without_a_gap(server: Server) -> None:
    async with server.running():
        server.say("before")
        await wait_until(lambda: server.intake.received)
        await server.wire.cut()
        server.say("meanwhile")
        await server.receives("meanwhile")
        server.say("after")
        await server.receives("after")
        await wait_until(lambda: server.platform.connection_error is None)
    assert server.intake.texts == ["before", "meanwhile", "after"]
    assert identify_count(server.wire) == 1


async def test_new_session_fetches_missed_messages(server: Server) -> None:
    async with server.running():
        server.say("before")
        await wait_until(lambda: server.intake.received)
        await server.wire.forget()
        server.say("meanwhile")
        await wait_until(lambda: server.platform.connection_error is not None)
        await server.receives("meanwhile")
        server.say("after")
        await server.receives("after")
    assert server.intake.texts == ["before", "meanwhile", "after"]
    assert identify_count(server.wire) == 2


ODD_FIELDS: dict[str, dict[str, Any]] = {
    "no thread": {"thread": None},
    "reference without a channel": {"message_reference": {"message_id": "1", "guild_id": "1"}},
    "odd member": {"member": {"roles": 5}},
    "mentions that are no list": {"mentions": 7},
    "no author": {"author": None},
    "attachments that are no list": {"attachments": 7},
    "bad embed": {"embeds": [{"title": "News", "timestamp": "soon"}]},
    "two bad parts": {"attachments": 7, "poll": {"question": 1, "expiry": "x"}},
}


def make_odd(server: Server, fields: dict[str, Any]) -> None:
    """Add these fields to every message "odd" that Discord sends from now on."""
    write = server.wire._wire

    def corrupt(obj: Any) -> Any:
        if isinstance(obj, list):
            return [corrupt(each) for each in obj]
        if not isinstance(obj, dict):
            return obj
        changed = {key: corrupt(value) for key, value in obj.items()}
        return {**changed, **fields} if obj.get("content") == "odd" else changed

    server.wire._wire = lambda obj: write(corrupt(json.loads(json.dumps(obj, default=str))))


@pytest.mark.parametrize("name", ODD_FIELDS)
async def test_unreadable_part_is_skipped_in_events_and_history(server: Server, name: str) -> None:
    make_odd(server, ODD_FIELDS[name])
    async with server.running():
        server.say("before")
        server.say("odd")
        server.say("after")
        await server.receives("after")
    for text in ("missed", "odd", "missed, too"):
        server.say(text)
    async with server.catching_up():
        await server.receives("missed, too")
    odd = [] if name == "no author" else ["odd"]
    assert server.intake.texts == ["before", *odd, "after", "missed", *odd, "missed, too"]
    assert identify_count(server.wire) == 2, "the connection was lost"


def test_log_of_a_skipped_event_quotes_no_text() -> None:
    with capture_logs() as logs:
        assert parse_or_skip("MESSAGE", lambda: int("canary")) is None
        assert parse_or_skip("MESSAGE", lambda: {"id": 1}["author"]) is None
    assert [entry["reason"] for entry in logs] == ["ValueError", "KeyError('author')"]


async def test_no_message_is_lost_while_the_database_fails(server: Server) -> None:
    async with server.running():
        server.intake.failures = 3
        for number in range(20):
            server.say(f"{number}")
        await wait_until(
            lambda: server.platform.connection_error == "messages from Discord cannot be stored"
        )
        await wait_until(lambda: len(server.intake.received) == 20)
        await wait_until(lambda: server.platform.connection_error is None)
    assert server.intake.texts == [f"{number}" for number in range(20)]


async def test_unstored_message_is_received_by_the_next_run(server: Server) -> None:
    async with server.running():
        server.say("before")
        await wait_until(lambda: server.intake.received)
        server.intake.failures = 1_000_000
        server.say("lost with the process")
        await wait_until(lambda: server.platform.connection_error)
    server.intake.failures = 0
    async with server.running():
        await wait_until(lambda: len(server.intake.received) == 2)
    assert server.intake.texts == ["before", "lost with the process"]


async def test_live_messages_wait_for_missed_ones(server: Server) -> None:
    await server.receive_first()
    server.say("missed")
    await server.wire.forget()
    server.wire.fault("GET", "/channels/*/messages", delay=1.0)
    sending = asyncio.create_task(say_during_backfill(server))
    async with server.running():
        await sending
        await server.receives("live")
    assert server.intake.texts == ["before", "missed", "live"]


async def say_during_backfill(server: Server) -> None:
    asked = len(server.wire.log)
    await wait_until(lambda: any("/messages" in entry["path"] for entry in server.wire.log[asked:]))
    await asyncio.sleep(0.2)
    server.say("live")


async def test_unreachable_gateway_ends_the_run_and_can_be_retried(server: Server) -> None:
    server.wire.gw_faults["accept"] = False
    with pytest.raises(Unreachable):
        await server.platform.run(server.intake)
    assert server.platform.connection_error == "not connected to Discord"
    server.wire.gw_faults["accept"] = True
    async with server.running():
        server.say("hello")
        await wait_until(lambda: server.intake.received)
    assert server.intake.texts == ["hello"]


async def test_is_admin_queries_current_permissions(server: Server) -> None:
    mods = server.guild.create_role("mods", permissions=discord.Permissions(manage_guild=True))
    mod = server.wire.member(server.guild, "mod", roles=[mods])
    async with server.running():
        server.say("by alice")
        server.wire.say(mod, server.channel.id, "by mod")
        server.write("in private")
        await wait_until(lambda: len(server.intake.received) == 3)
        by_alice, by_mod, private = server.intake.received
        assert not await server.platform.is_admin(by_alice)
        assert await server.platform.is_admin(by_mod)
        assert await server.platform.is_admin(private)
        server.wire.fault("GET", "/guilds/*/members/*", status=403, code=50013)
        with pytest.raises(PlatformError):
            await server.platform.is_admin(by_mod)
        assert await server.platform.is_admin(by_mod)


async def test_stop_ends_a_connection_that_swallows_cancellation(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """discord.py swallows a cancellation that arrives just when it connects (Python 3.11)."""
    connecting = asyncio.Event()

    async def connect(self: Gateway, *_: object) -> None:
        connecting.set()
        while not self.is_closed():
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0.01)

    monkeypatch.setattr(Gateway, "stay_connected", connect)
    run = asyncio.create_task(server.platform.run(server.intake))
    await connecting.wait()
    run.cancel()
    await asyncio.wait([run], timeout=PATIENCE_SECONDS)
    assert run.cancelled()


async def test_edits_and_deletions_of_people_are_received_in_order(server: Server) -> None:
    async with server.running():
        first, second = server.say("hello"), server.say("and")
        server.wire.edit(server.channel.id, first.id, "goodbye")
        server.wire.delete(server.channel.id, second.id)
        await purge(server, first.id, server.say("more").id)
        ours = server.wire.b.create_message(server.channel.id, server.bot.id, "an answer")
        server.wire.edit(server.channel.id, ours.id, "a longer answer")
        server.say("the end")
        await server.receives("the end")

    edited, deleted, purged = [
        one for one in server.intake.events if not isinstance(one, IncomingMessage)
    ]
    assert isinstance(edited, MessageEdit)
    assert (edited.message_id, edited.said.text) == (str(first.id), "goodbye")
    assert isinstance(deleted, MessageDeletion)
    assert deleted.message_ids == (str(second.id),)
    assert deleted.scopes == edited.scopes
    assert isinstance(purged, MessageDeletion)
    assert purged.message_ids[0] == str(first.id)
    assert len(purged.message_ids) == 2


async def test_messages_are_late_only_if_they_waited_too_long_before_startup(
    server: Server,
) -> None:
    await server.receive_first()
    server.say("while it was away")
    await server.wire.forget()  # so that missed messages are read from the channels
    async with running(platform_for(server.wire, answerable_seconds=0), server.intake):
        await server.receives("while it was away")
        server.say("live")
        await server.receives("live")
    assert [one.is_late for one in server.intake.received] == [False, True, False]


async def test_earlier_messages_of_people_are_read(server: Server) -> None:
    other = server.wire.member(server.guild, "other", bot=True)
    for number in range(60):
        server.say(f"line {number}")
    by_bot = server.wire.say(other, server.channel.id, "of a bot")
    server.say(f"<@{server.alice.id}> see <#{server.channel.id}>")
    async with server.running():
        server.say("a question")
        await wait_until(lambda: server.intake.received)
        server.say("later")
        found = await server.platform.read_before(server.intake.received[0], 50)
        opened = (server.channel.id, "News", server.alice.id)
        thread = server.wire.b.create_thread(*opened, message_id=by_bot.id)
        server.wire.say(server.alice, thread.id, "what is this about?")
        await server.receives("what is this about?")
        start = await server.platform.read_thread_starter(server.intake.received[-1])
        about = server.say("my fern is dying")
        ferns = server.wire.b.create_thread(
            server.channel.id, "Ferns", server.alice.id, message_id=about.id
        )
        server.wire.edit(server.channel.id, about.id, "my moss is dying")
        await wait_until(
            lambda: len([one for one in server.intake.events if isinstance(one, MessageEdit)]) == 2
        )
        server.wire.delete(server.channel.id, by_bot.id)
        await wait_until(
            lambda: (
                isinstance(server.intake.events[-1], MessageDeletion) and server.intake.events[-2:]
            )
        )
    assert [one.text for one in found[:2]] == ["line 12", "line 13"]
    assert (len(found), found[-1].text.split()[0]) == (49, "@alice")
    assert {one.author for one in found} == {server.intake.received[0].author}
    assert start is not None
    assert (start.text, start.author.name) == ("of a bot", "other")
    edits = [one.said for one in server.intake.events if isinstance(one, MessageEdit)]
    assert {(one.message_id, one.text) for one in edits} == {(str(about.id), "my moss is dying")}
    chats = [(one.address.chat, one.is_late) for one in edits]  # late: nothing is answered for it
    assert chats == [(str(server.channel.id), False), (str(ferns.id), True)]
    deletions = [one for one in server.intake.events if isinstance(one, MessageDeletion)]
    deleted = [(one.address.chat, one.message_ids) for one in deletions]
    assert deleted == [(str(one), (str(by_bot.id),)) for one in (server.channel.id, thread.id)]

"""Test sending to Discord: messages arrive once, notify nobody, and failures become our errors."""

from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from typing import Any

import discord
import pytest
from simcord.backend import serializers

from bot.chat.incoming import ChatJoin, IncomingMessage, WakeReason
from bot.chat.outgoing import Attachment, Button, ButtonStyle, MessageContent, OutgoingMessage
from bot.delivery.pacing import RateLimitedSurface
from bot.errors import (
    MessageNotFound,
    OutcomeUnknown,
    PlatformError,
    RateLimited,
    Refused,
    WordsRefused,
)
from bot.platforms.discord import rest
from bot.platforms.discord.platform import DiscordPlatform
from bot.platforms.discord.surface import DISCORD_LIMITS
from bot.runtime.clock import SystemClock
from bot.runtime.in_process import InProcessRateLimits
from tests.attacks import with_ours
from tests.fakes import FakeClock
from tests.platforms.discord.conftest import Stage, platform_for, running, wait_until
from tests.rigs.simwire import SimWire
from tests.support.intake import FakeIntake
from tests.support.surfaces import find
from tests.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.service
FILE = Attachment("prompt-1.txt", "You are Nora.")
_NO_PREVIEWS = 1 << 2
NOBODY = {"parse": [], "replied_user": False}
QUIET = {"allowed_mentions": NOBODY, "flags": _NO_PREVIEWS, "components": []}
ONCE = {"nonce": "n1", "enforce_nonce": True}


class Chat(Stage):
    """A channel, and a platform that receives its messages."""

    def __init__(self, wire: SimWire, platform: DiscordPlatform, intake: FakeIntake) -> None:
        super().__init__(wire, platform)
        self.intake = intake

    @property
    def texts(self) -> list[str]:
        return [message["content"] for message in self.wire.messages(self.channel.id)]

    def say(self, text: str) -> str:
        return str(self.wire.say(self.alice, self.channel.id, text).id)

    async def send(self, text: str = "hi", nonce: str = "n1", **more: Any) -> str:
        message = OutgoingMessage(self.address, MessageContent(text), nonce=nonce, **more)
        return await self.surface.send(message)


@pytest.fixture
async def chat(wire: SimWire) -> AsyncIterator[Chat]:
    platform, intake = platform_for(wire), FakeIntake()
    chat = Chat(wire, platform, intake)
    async with running(platform, intake):
        yield chat


async def test_request_bodies_match_the_discord_api(chat: Chat) -> None:
    asked = chat.say("hello")
    sent = await chat.send("hi @everyone", reply_to=asked)
    await chat.surface.edit(chat.address, sent, MessageContent("hi"), interaction=None)

    post = chat.requests("POST")[0]["json"]
    assert post.pop("message_reference")["message_id"] == asked
    assert post == {"content": "hi @everyone", **QUIET, **ONCE}
    assert chat.requests("PATCH", sent)[0]["json"] == {"content": "hi", **QUIET}


async def test_buttons_are_arranged_in_rows(chat: Chat) -> None:
    buttons = (Button("Stop", "stop", ButtonStyle.DANGER), Button("2/3", "next", row=1))
    content = MessageContent("hi", buttons=buttons)
    sent = await chat.surface.send(OutgoingMessage(chat.address, content, nonce="n1"))

    [message] = chat.wire.messages(chat.channel.id)
    looks = [(one["label"], one["custom_id"], one["style"]) for one in chat.wire.buttons(message)]
    assert looks == [("Stop", "stop", 4), ("2/3", "next", 2)]
    assert len(message["components"]) == 2

    await chat.surface.edit(chat.address, sent, MessageContent("hi"), interaction=None)
    [message] = chat.wire.messages(chat.channel.id)
    assert chat.wire.buttons(message) == []


MENTIONS = with_ours(
    "discord_mentions",
    {
        "all kinds at once": "@everyone @here <@1> <@!1> <@&1>",
        "behind a quote and a spoiler": "> @everyone\n||@here||",
        "in a link that unfolds": "https://evil.example/@everyone?h=<history>",
        "in the name of who speaks": "**@everyone**\nhello",
    },
)


@pytest.mark.parametrize(("title", "given"), MENTIONS)
async def test_mentions_notify_nobody_in_any_request(chat: Chat, title: str, given: Any) -> None:
    text = given if isinstance(given, str) else f"No preset {given['name']!r}."
    asked = chat.say("hello")
    await chat.alice.slash(chat.channel, "new")
    [command] = await wait_until(lambda: [one for one in chat.intake.received if one.interaction])
    clock = SystemClock()
    surface = RateLimitedSurface(chat.surface, InProcessRateLimits(clock), clock)
    for nonce, file, interaction in (
        ("n1", None, None),
        ("n2", FILE, None),
        ("n3", None, command.interaction),
        ("n4", FILE, command.interaction),
        ("n5", None, "1:spent"),  # sent to the channel instead
    ):
        sent = await surface.send(
            OutgoingMessage(
                chat.address,
                MessageContent(text),
                nonce=nonce,
                reply_to=asked,
                interaction=interaction,
                file=file,
            )
        )
        if interaction is None:
            await chat.surface.edit(
                chat.address, sent, MessageContent(f"{text} {nonce}"), interaction=None
            )

    bodies = [one["json"] for one in chat.wire.log if "content" in (one["json"] or {})]
    assert len(bodies) == 8, "the last one is tried twice"
    for body in bodies:
        assert body["allowed_mentions"] == NOBODY
        assert body["flags"] & _NO_PREVIEWS
    for message in chat.wire.b.messages[chat.channel.id].values():
        assert not message.mention_everyone
        assert not message.ping_user_ids


async def test_message_with_a_lost_response_is_found(chat: Chat) -> None:
    asked = chat.say("hello")
    chat.wire.fault("POST", "/channels/*/messages", drop=True, after=True)
    with pytest.raises(OutcomeUnknown):
        await chat.send(" hi\n", "n1")
    found = await find(chat.surface, chat.address, " hi\n", after=asked, known=set())
    assert found is not None
    assert await chat.send(" hi\n") == found
    assert len(chat.texts) == 2


async def test_find_returns_only_new_messages_of_the_bot(chat: Chat) -> None:
    await chat.send()
    asked = chat.say("hello")
    chat.say("hi")
    known = await chat.send("hi", "n2")
    assert await find(chat.surface, chat.address, "hi", after=asked, known={known}) is None
    assert await find(chat.surface, chat.address, "hi", after=asked, known=set()) == known
    assert await find(chat.surface, chat.address, "hi", after=None, known=set()) is not None


async def test_find_reads_many_messages_page_by_page(chat: Chat) -> None:
    asked = chat.say("hello")
    for number in range(230):
        chat.say(f"{number}")
    sent = await chat.send()
    assert await find(chat.surface, chat.address, "hi", after=asked, known=set()) == sent
    assert await find(chat.surface, chat.address, "ho", after=asked, known=set()) is None


async def test_deleting_a_deleted_message_succeeds(chat: Chat) -> None:
    sent = await chat.send()
    for _ in range(2):
        await chat.surface.delete(chat.address, sent)
    assert chat.texts == []
    with pytest.raises(MessageNotFound):
        await chat.surface.edit(chat.address, sent, MessageContent("ho"), interaction=None)


@pytest.mark.parametrize(
    ("fault", "error", "reason"),
    [
        ({"status": 403, "code": 50013}, Refused, "50013"),
        ({"status": 503, "after": True}, OutcomeUnknown, "503"),
        ({"delay": 1.0}, OutcomeUnknown, "within 0.5 s"),
        ({"status": 200, "body": "<html>", "after": True}, OutcomeUnknown, "proxy"),
        ({"retry_after": 3, "via": False}, RateLimited, None),  # of something before Discord
    ],
    ids=["forbidden", "unavailable", "slow", "proxy", "proxy's limit"],
)
async def test_error_tells_whether_the_message_may_have_arrived(
    chat: Chat,
    monkeypatch: pytest.MonkeyPatch,
    fault: dict[str, Any],
    error: type[PlatformError],
    reason: str | None,
) -> None:
    monkeypatch.setattr(
        rest, "_REQUEST_TIMEOUT_SECONDS", 0.5 if "delay" in fault else PATIENCE_SECONDS
    )
    chat.wire.fault("POST", "/channels/*/messages", **fault)
    with pytest.raises(error, match=reason):
        await chat.send()
    assert len(chat.requests("POST")) == 1


@pytest.mark.parametrize("seconds", [0.3, 40])
@pytest.mark.parametrize(("is_global", "scope"), [(False, "route"), (True, "bot")])
async def test_rate_limit_error_contains_the_scope_and_wait(
    chat: Chat, seconds: float, is_global: bool, scope: str
) -> None:
    chat.wire.fault("POST", "/channels/*/messages", retry_after=seconds, is_global=is_global)
    with pytest.raises(RateLimited) as limited:
        await chat.send()
    assert (limited.value.retry_after_seconds, limited.value.scope) == (seconds, scope)
    assert chat.texts == []


async def test_private_chat_is_opened_after_a_short_rate_limit(chat: Chat) -> None:
    chat.wire.fault("POST", "/users/@me/channels", retry_after=0.3)
    address = await chat.platform.find_private_chat(f"discord:{chat.alice.id}")
    await chat.surface.send(OutgoingMessage(address, MessageContent("for you"), nonce="n1"))
    private = chat.wire.messages(chat.wire.b.get_dm_channel(chat.alice.id).id)
    assert [one["content"] for one in private] == ["for you"]
    assert chat.texts == []


async def test_request_waits_until_a_global_rate_limit_is_over(chat: Chat) -> None:
    chat.wire.fault("POST", "/channels/*/messages", retry_after=1, is_global=True)
    with pytest.raises(RateLimited):
        await chat.send()
    [refused] = [e for e in chat.wire.log if e["status"] == 429]
    await chat.surface.typing(chat.address)

    [typing] = chat.requests("POST", "/typing")
    assert typing["t"] - refused["t"] >= 1, "Discord takes no request before"
    assert chat.texts == []


async def test_request_waits_until_its_bucket_is_free_again(chat: Chat) -> None:
    chat.wire.bucket_limit, chat.wire.bucket_window = 2, 0.5
    for number in range(5):
        await chat.send(str(number), f"n{number}")
    assert chat.texts == ["0", "1", "2", "3", "4"]
    assert [entry["status"] for entry in chat.requests("POST")] == [200] * 5


async def test_server_counts_as_joined_only_if_the_bot_is_new_there(chat: Chat) -> None:
    backend = chat.wire.b
    guild = backend.get_guild(chat.guild.id)
    guild.system_channel_id = chat.channel.id
    chat.guild.create_text_channel("another")
    times = ("2026-01-01T00:00:00+00:00", backend.now_iso())  # the first: after an outage
    for count, joined_at in enumerate(times, 1):
        guild.members[backend.bot_user.id].joined_at = joined_at
        backend.emit("GUILD_CREATE", serializers.guild_create_payload(backend, guild))
        chat.say("hello")
        await wait_until(partial(lambda number: len(chat.intake.received) == number, count))
    [joined] = [one for one in chat.intake.events if isinstance(one, ChatJoin)]
    assert (joined.address, joined.at.isoformat()) == (chat.address, joined_at)


async def test_commands_are_registered_only_if_they_changed(chat: Chat) -> None:
    registered = chat.requests("PUT", "/commands")
    async with running(platform_for(chat.wire), chat.intake):
        assert chat.requests("PUT", "/commands") == registered
    assert len(registered) == 1
    chat.intake.stored["discord:commands"] = "of a version before"
    async with running(platform_for(chat.wire), chat.intake):
        await wait_until(lambda: len(chat.requests("PUT", "/commands")) == 2)


async def test_command_is_deferred_received_and_answered_privately(chat: Chat) -> None:
    result = await chat.alice.slash(chat.channel, "preset use", name="nova")
    [incoming] = await wait_until(lambda: chat.intake.received)
    assert result.acknowledged
    assert result.ephemeral
    assert (incoming.text, incoming.wake, incoming.message_id) == (
        "/preset use nova",
        WakeReason.COMMAND,
        None,
    )
    assert incoming.external_key == f"i{result._interaction.id}"
    assert incoming.author_is_admin is False
    assert incoming.address == chat.address

    first, again = [
        await chat.send("nova it is", interaction=incoming.interaction) for _ in range(2)
    ]
    assert first == again == str(result.response.id)
    assert result.response.content == "nova it is"
    assert not chat.requests("POST")


async def test_command_that_changes_the_channel_is_answered_in_public(chat: Chat) -> None:
    may = discord.Permissions(manage_guild=True)
    admin = chat.wire.member(chat.guild, "admin", [chat.guild.create_role("mods", permissions=may)])
    result = await admin.slash(chat.channel, "preset use", name="nova")
    [incoming] = await wait_until(lambda: chat.intake.received)
    assert isinstance(incoming, IncomingMessage)
    assert incoming.has_public_response
    sent = await chat.send("nova it is", interaction=incoming.interaction)
    assert sent == str(result.response.id)
    assert (result.response.content, result.ephemeral) == ("nova it is", False)
    shown = await admin.slash(chat.channel, "preset list")
    await wait_until(lambda: shown.acknowledged)
    assert shown.ephemeral


async def test_refused_response_to_a_command_is_never_sent_to_the_channel(chat: Chat) -> None:
    result = await chat.alice.slash(chat.channel, "preset list")
    [incoming] = await wait_until(lambda: chat.intake.received)
    clock = SystemClock()
    surface = RateLimitedSurface(chat.surface, InProcessRateLimits(clock), clock)
    answer = OutgoingMessage(
        incoming.address, MessageContent("a word"), "n1", interaction=incoming.interaction
    )
    chat.wire.fault("PATCH", "/webhooks/*", status=400, code=200000)
    with pytest.raises(WordsRefused):
        await surface.send(answer)
    await surface.send(replace(answer, content=MessageContent("another word")))
    assert (result.response.content, result.ephemeral) == ("another word", True)
    assert not chat.requests("POST")


async def test_file_for_a_command_is_sent_privately_or_not_at_all(chat: Chat) -> None:
    result = await chat.alice.slash(chat.channel, "new")
    [incoming] = await wait_until(lambda: chat.intake.received)
    for _ in range(2):  # an unknown outcome is simply repeated
        await chat.send("here", interaction=incoming.interaction, file=FILE)
    assert result.ephemeral
    assert result.response.content == "here"
    assert [one.filename for one in result.response.attachments] == ["prompt-1.txt"]
    before = chat.texts
    chat.wire.fault("PATCH", "/webhooks/*", status=401, code=50027)
    with pytest.raises(Refused):
        await chat.send("here", interaction=incoming.interaction, file=FILE)
    assert chat.texts == before
    assert not chat.requests("POST")


async def test_message_with_a_file_notifies_nobody_and_has_a_nonce(chat: Chat) -> None:
    for _ in range(2):
        await chat.send("@everyone", file=FILE)
    files = [{"id": 0, "filename": "prompt-1.txt"}]
    body = {"content": "@everyone", **QUIET, **ONCE, "attachments": files}
    assert chat.requests("POST")[0]["json"] == body
    assert chat.texts == ["@everyone"]


async def test_command_with_an_expired_token_is_answered_in_the_channel(chat: Chat) -> None:
    clock = FakeClock()
    surface = RateLimitedSurface(chat.surface, InProcessRateLimits(clock), clock)

    async def respond(number: int) -> str:
        content = MessageContent(f"done {number}")
        return await surface.send(
            OutgoingMessage(chat.address, content, nonce=f"n{number}", interaction="1:spent")
        )

    async def edit(message_id: str, text: str) -> None:
        content = MessageContent(text)
        await surface.edit(chat.address, message_id, content, interaction="1:spent")

    sent = [await respond(number) for number in range(5)]
    for message_id in sent:
        await edit(message_id, f"more in {message_id}")
    assert chat.texts == [f"more in {message_id}" for message_id in sent]
    for call in (respond(5), edit(sent[0], "still more")):
        with pytest.raises(RateLimited):
            await call


async def test_command_that_could_not_be_deferred_is_still_received(chat: Chat) -> None:
    chat.wire.fault("POST", "/interactions/*", status=404, code=10062)
    await chat.alice.slash(chat.channel, "new")
    [incoming] = await wait_until(lambda: chat.intake.received)
    assert (incoming.text, incoming.interaction) == ("/new", None)


async def test_command_is_deferred_while_the_database_fails(chat: Chat) -> None:
    chat.intake.failures = 1_000_000
    result = await chat.alice.slash(chat.channel, "new")
    await wait_until(lambda: result.acknowledged)
    assert not chat.intake.received


async def test_commands_and_messages_keep_their_order(chat: Chat) -> None:
    chat.wire.fault("POST", "/interactions/*", delay=0.5)
    chat.say("before")
    await chat.alice.slash(chat.channel, "new")
    chat.say("after")
    await wait_until(lambda: len(chat.intake.received) == 3)
    assert chat.intake.texts == ["before", "/new", "after"]


async def test_presets_are_suggested_for_a_partial_option(chat: Chat) -> None:
    await chat.alice.autocomplete(chat.channel, "preset use", "name", "no")
    interaction = list(chat.wire.b.interactions.values())[-1]
    choices = await wait_until(lambda: interaction.autocomplete_choices)
    assert [choice["value"] for choice in choices] == ["nova", "nora"]
    assert not chat.intake.received


@pytest.mark.parametrize("emoji", ["👍", "👍🏽", "❤️", "🇩🇪", "1️⃣", "👨\u200d👩\u200d👧", "🦖"])
def test_any_emoji_can_be_a_reaction(emoji: str) -> None:
    assert DISCORD_LIMITS.convert_reaction is not None
    assert DISCORD_LIMITS.convert_reaction(emoji) == emoji


@pytest.mark.parametrize("text", ["", " ", "yes", "👍👍", "👍 ", ":thumbsup:", "<:cat:123>", "1"])
def test_text_that_is_not_one_emoji_cannot_be_a_reaction(text: str) -> None:
    assert DISCORD_LIMITS.convert_reaction is not None
    assert DISCORD_LIMITS.convert_reaction(text) == ""

"""Discord and Telegram servers on loopback, with people whose messages and ours can be read."""

import logging
import random
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import discord
from simcord.results import EPHEMERAL_FLAG
from typing_extensions import override

from tests.e2e.transcript_checker import PostedMessage
from tests.rigs.simwire import SimWire
from tests.rigs.tgwire import TgWire

TELEGRAM_PEOPLE = (1, 2)
_CARRIED_OUT = {200, "dropped"}
"""Of a call: `drop_responses` cuts off what was carried out."""
_TOPIC_TITLES = ("plans", "music", "food")


@dataclass(frozen=True, slots=True)
class Conversation:
    """A chat, thread or topic, and functions by which its people write there."""

    name: str
    """The name that its messages have in `PostedMessage.conversation`."""

    mention: str
    """The prefix of a message to the bot; empty in private chats."""

    say: Callable[[str, int], Any]
    """Send a text as one of the people, given by index."""

    reply: Callable[[str], Any]
    """Reply to the newest message of the bot."""

    people: Sequence[Any] = field(default=(), compare=False)
    """Who writes there, as the server knows them."""

    def ask(self, name: str, words: int = 12, who: int = 0) -> Any:
        """Ask a question that the checker knows the answer to; returns the server's message."""
        return self.say(f"{self.mention}please T{name}:{words}", who)


class LoopbackPlatforms:
    """Both servers, and the conversations created on them."""

    def __init__(self, on_discord: SimWire, on_telegram: TgWire) -> None:
        self.discord = on_discord
        self.telegram = on_telegram
        self.conversations: dict[str, Conversation] = {}
        self._earlier: dict[tuple[str, int], list[str]] = {}
        self._read = [0, 0]  # how many calls of each platform
        self._unfinished: list[dict[str, Any]] = []
        self.guild = on_discord.guild("Guild")
        mods = self.guild.create_role("mods", permissions=discord.Permissions(manage_guild=True))
        self.admin = on_discord.member(self.guild, "admin", roles=[mods])
        self.people = [on_discord.member(self.guild, name) for name in ("alice", "bob")]

    def offer_to_everybody(self, command: str) -> None:
        """Let a command that is for admins be seen by all members, as server settings can."""
        registered = self.discord.b.find_command(command, self.guild.id)
        everybody = dict.fromkeys(self.people, True)
        self.guild.set_command_permissions(int(registered["id"]), everybody)

    # --- conversations -----------------------------------------------------------------------

    def channel(self) -> Conversation:
        return self._in_guild(
            self.guild.create_text_channel(f"channel-{len(self.conversations)}").id
        )

    def discord_thread(self) -> Conversation:
        backend = self.discord.b
        parent = self.guild.create_text_channel(f"parent-{len(self.conversations)}")
        return self._in_guild(backend.create_thread(parent.id, "plans", self.people[0].id).id)

    def discord_dm(self) -> Conversation:
        who = self.discord.member(self.guild, f"friend-{len(self.conversations)}")
        chat = self.discord.b.get_dm_channel(who.id).id
        return self._on_discord(chat, [who, who], "")

    def telegram_group(self) -> Conversation:
        return self._in_group(-1000 - len(self.conversations), None)

    def in_telegram_group(self, chat: int) -> Conversation:
        """Return the group of this id."""
        return self._in_group(chat, None)

    def telegram_topics(self) -> list[Conversation]:
        """Create a group with topics; each is a conversation."""
        chat, wire = -1000 - len(self.conversations), self.telegram
        wire.chat(chat, "supergroup", is_forum=True)
        created = wire.topics.setdefault(chat, {})
        for title in _TOPIC_TITLES:
            opened = wire._new(chat, wire.user(1), forum_topic_created={"name": title})
            created[opened["message_id"]] = title
        return [self._in_group(chat, topic) for topic in created]

    def telegram_dm(self) -> Conversation:
        chat = 1000 + len(self.conversations)
        return self._on_telegram(chat, None, [chat, chat], "")

    def _in_guild(self, channel: int) -> Conversation:
        return self._on_discord(channel, self.people, f"<@{self.discord.b.bot_user.id}> ")

    def _in_group(self, chat: int, topic: int | None) -> Conversation:
        mention = f"@{self.telegram.me['username']} "
        return self._on_telegram(chat, topic, TELEGRAM_PEOPLE, mention)

    def _on_discord(self, channel: int, people: Sequence[Any], mention: str) -> Conversation:
        wire, me = self.discord, self.discord.b.bot_user.id

        def say(text: str, who: int) -> Any:
            return wire.say(people[who], channel, text)

        def reply(text: str) -> Any:
            posts = wire.b.messages[channel].values()
            *_, newest = (one.id for one in posts if one.author_id == me or one.webhook_id)
            reference = {"message_id": str(newest), "channel_id": str(channel)}
            return wire.say(people[0], channel, text, reference=reference)

        return self._keep(Conversation(f"discord:{channel}", mention, say, reply, people))

    def _on_telegram(
        self, chat: int, topic: int | None, people: Sequence[int], mention: str
    ) -> Conversation:
        wire = self.telegram

        def say(text: str, who: int) -> Any:
            return wire.say(people[who], text, chat=chat, thread=topic)

        def reply(text: str) -> Any:
            newest = max(
                number
                for number, message in wire.msgs[chat].items()
                if message["from"]["id"] == wire.me["id"]
            )
            return wire.say(people[0], text, chat=chat, thread=topic, reply_to=newest)

        return self._keep(Conversation(_telegram_name(chat, topic), mention, say, reply, people))

    def _keep(self, conversation: Conversation) -> Conversation:
        self.conversations[conversation.name] = conversation
        return conversation

    def edit(self, where: Conversation, message: Any, who: int, text: str) -> None:
        """Let one of the people, given by index, change what a message of theirs says."""
        if isinstance(message, dict):
            chat, number = message["chat"]["id"], message["message_id"]
            self._note_text(where, number, message["text"])
            self.telegram.edit(where.people[who], chat, number, text)
        else:
            self._note_text(where, message.id, message.content)
            self.discord.edit(message.channel_id, message.id, text)

    def _note_text(self, where: Conversation, message: int, text: str) -> None:
        self._earlier.setdefault((where.name, message), []).append(text)

    # --- messages ----------------------------------------------------------------------------

    def messages(self) -> Iterator[PostedMessage]:
        """Yield what everybody sees on both platforms, in the order of each conversation."""
        for channel in self.discord.b.messages:
            for message in self.discord.messages(channel):
                if message["flags"] & EPHEMERAL_FLAG:
                    continue
                by_bot = message["author"]["id"] == str(self.discord.b.bot_user.id)
                ours = by_bot or "webhook_id" in message
                name = f"discord:{channel}"
                earlier = self._earlier.get((name, int(message["id"])), ())
                yield PostedMessage(name, ours, message["content"], tuple(earlier))
        for chat, messages in self.telegram.msgs.items():
            for number in sorted(messages):
                message = messages[number]
                if "text" in message:
                    ours = message["from"]["id"] == self.telegram.me["id"]
                    conversation = _telegram_name(chat, message.get("message_thread_id"))
                    earlier = self._earlier.get((conversation, number), ())
                    yield PostedMessage(conversation, ours, message["text"], tuple(earlier))

    def bot_texts(self, conversation: Conversation) -> list[str]:
        """Return the bot's messages in a conversation."""
        return [
            post.text
            for post in self.messages()
            if post.by_bot and post.conversation == conversation.name
        ]

    def new_texts(self) -> Iterator[tuple[float, str]]:
        """Yield the bot's calls that showed a text since the last time: their moments and texts.

        Moments are those at which they arrived, in Unix seconds.
        """
        logs = (self.telegram.log, self.discord.log)
        calls = self._unfinished
        for number, log in enumerate(logs):
            calls += log[self._read[number] :]
            self._read[number] = len(log)
        self._unfinished = [call for call in calls if call["status"] is None]
        for call in calls:
            given = call.get("params") or call.get("json")
            if call["status"] in _CARRIED_OUT and isinstance(given, dict):
                yield call["t"], str(given.get("text") or given.get("content") or "")

    # --- faults ------------------------------------------------------------------------------

    def drop_responses(self, share: float, rng: random.Random) -> None:
        """Cut off this share of requests after the platform carried them out."""
        self.telegram.faults = _RandomFaults(
            share,
            rng,
            [
                {"method": method, "match": None, "delay": 0, "drop": True, "after": True}
                for method in ("sendmessage", "editmessagetext")
            ],
        )
        self.discord.faults = _RandomFaults(
            share,
            rng,
            [
                {"method": "POST", "path": "/channels/*/messages"},
                {"method": "PATCH", "path": "/channels/*/messages/*"},
                {"method": "POST", "path": "/webhooks/*"},
                {"method": "PATCH", "path": "/webhooks/*/messages/*"},
            ],
            {"delay": 0, "drop": True, "after": True},
        )

    def dropped_responses(self) -> int:
        calls = [*self.telegram.log, *self.discord.log]
        return sum(call["status"] == "dropped" for call in calls)

    def forget_sessions(self) -> None:
        """End Discord's sessions of killed bots; the server would keep them for ever."""
        gone = [key for key, session in self.discord.sessions.items() if session.ws is None]
        for key in gone:
            del self.discord.sessions[key]


def _telegram_name(chat: int, topic: int | None) -> str:
    return f"telegram:{chat}" if topic is None else f"telegram:{chat}:{topic}"


class _RandomFaults(list[dict[str, Any]]):
    """A list of faults for a server, in which each one appears with a probability."""

    def __init__(
        self,
        share: float,
        rng: random.Random,
        faults: list[dict[str, Any]],
        common: dict[str, Any] | None = None,
    ) -> None:
        super().__init__({**fault, **(common or {})} for fault in faults)
        self._share = share
        self._dice = rng

    @override
    def __iter__(self) -> Iterator[dict[str, Any]]:
        for fault in super().__iter__():
            if self._dice.random() < self._share:
                yield {**fault, "times": 2}  # the server counts it down, in this copy


@asynccontextmanager
async def running_platforms(
    telegram_token: str | None = None,
    make_discord: Callable[..., SimWire] = SimWire,
    make_telegram: Callable[..., TgWire] = TgWire,
) -> AsyncIterator[LoopbackPlatforms]:
    """Run both servers, each on a free port, within the block."""
    # It logs every response that is cut off on purpose.
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)
    given = {"token": telegram_token} if telegram_token else {}
    telegram = make_telegram(port=0, **given)
    await telegram.start()
    telegram.base = f"http://127.0.0.1:{telegram.runner.addresses[0][1]}"
    async with make_discord(port=0) as wire:
        try:
            yield LoopbackPlatforms(wire, telegram)
        finally:
            if telegram.waiter:
                telegram.waiter.set()  # a poll of a killed bot would delay the shutdown
            await telegram.stop()

"""Discord and Telegram on loopback, with people in chats; all that is said there can be read."""

import logging
import random
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import discord
from typing_extensions import override

from tests.e2e.checker import Post
from tests.rigs.simwire import SimWire
from tests.rigs.tgwire import TgWire

TELEGRAM_PEOPLE = (1, 2)
_TOPIC_TITLES = ("plans", "music", "food")


@dataclass(frozen=True, slots=True)
class Place:
    """A chat, thread or topic, and a way for one of its people to write in it."""

    name: str  # as in a `Post`
    call: str  # what a message to the bot begins with here
    say: Callable[[str, int], Any]  # the text, and which of the people says it
    reply: Callable[[str], Any]  # to what the bot said last

    def ask(self, name: str, words: int = 12, who: int = 0) -> Any:
        """Ask the question that the checker knows the answer to; gives the rig's message."""
        return self.say(f"{self.call}please T{name}:{words}", who)


class World:
    """Both platforms, and as many places of each kind as asked for."""

    def __init__(self, on_discord: SimWire, on_telegram: TgWire) -> None:
        self.discord = on_discord
        self.telegram = on_telegram
        self.places: dict[str, Place] = {}
        self.guild = on_discord.guild("Guild")
        mods = self.guild.create_role("mods", permissions=discord.Permissions(manage_guild=True))
        self.admin = on_discord.member(self.guild, "admin", roles=[mods])
        self.people = [on_discord.member(self.guild, name) for name in ("alice", "bob")]

    # --- places ------------------------------------------------------------------------------

    def channel(self) -> Place:
        return self._in_guild(self.guild.create_text_channel(f"room-{len(self.places)}").id)

    def discord_thread(self) -> Place:
        backend = self.discord.b
        parent = self.guild.create_text_channel(f"hall-{len(self.places)}")
        return self._in_guild(backend.create_thread(parent.id, "plans", self.people[0].id).id)

    def discord_private(self) -> Place:
        who = self.discord.member(self.guild, f"friend-{len(self.places)}")
        chat = self.discord.b.get_dm_channel(who.id).id
        return self._on_discord(chat, [who, who], "")

    def group(self) -> Place:
        return self._in_group(-1000 - len(self.places), None)

    def topics(self) -> list[Place]:
        """One group with topics, each of which is a place."""
        chat, wire = -1000 - len(self.places), self.telegram
        wire.chat(chat, "supergroup", is_forum=True)
        created = wire.topics.setdefault(chat, {})
        for title in _TOPIC_TITLES:
            opened = wire._new(chat, wire.user(1), forum_topic_created={"name": title})
            created[opened["message_id"]] = title
        return [self._in_group(chat, topic) for topic in created]

    def telegram_private(self) -> Place:
        chat = 1000 + len(self.places)
        return self._on_telegram(chat, None, [chat, chat], "")

    def _in_guild(self, channel: int) -> Place:
        return self._on_discord(channel, self.people, f"<@{self.discord.b.bot_user.id}> ")

    def _in_group(self, chat: int, topic: int | None) -> Place:
        call = f"@{self.telegram.me['username']} "
        return self._on_telegram(chat, topic, TELEGRAM_PEOPLE, call)

    def _on_discord(self, channel: int, people: Sequence[Any], call: str) -> Place:
        wire, me = self.discord, self.discord.b.bot_user.id

        def say(text: str, who: int) -> Any:
            return wire.say(people[who], channel, text)

        def reply(text: str) -> Any:
            newest = [one.id for one in wire.b.messages[channel].values() if one.author_id == me][
                -1
            ]
            reference = {"message_id": str(newest), "channel_id": str(channel)}
            return wire.say(people[0], channel, text, reference=reference)

        return self._keep(Place(f"discord:{channel}", call, say, reply))

    def _on_telegram(self, chat: int, topic: int | None, people: Sequence[int], call: str) -> Place:
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

        return self._keep(Place(_telegram_name(chat, topic), call, say, reply))

    def _keep(self, place: Place) -> Place:
        self.places[place.name] = place
        return place

    # --- what stands in the chats ------------------------------------------------------------

    def posts(self) -> Iterator[Post]:
        """Everything that can be read on both platforms, whoever wrote it, in its order."""
        for channel in self.discord.b.messages:
            for message in self.discord.messages(channel):
                ours = message["author"]["id"] == str(self.discord.b.bot_user.id)
                yield Post(f"discord:{channel}", ours, message["content"])
        for chat, messages in self.telegram.msgs.items():
            for number in sorted(messages):
                message = messages[number]
                if "text" in message:
                    ours = message["from"]["id"] == self.telegram.me["id"]
                    place = _telegram_name(chat, message.get("message_thread_id"))
                    yield Post(place, ours, message["text"])

    def said_in(self, place: Place) -> list[str]:
        """What the bot said here."""
        return [post.text for post in self.posts() if post.by_bot and post.place == place.name]

    # --- faults ------------------------------------------------------------------------------

    def lose_answers(self, share: float, dice: random.Random) -> None:
        """From now on cut this share of requests off after the platform did what they ask."""
        self.telegram.faults = _Dice(
            share,
            dice,
            [
                {"method": method, "match": None, "delay": 0, "drop": True, "after": True}
                for method in ("sendmessage", "editmessagetext")
            ],
        )
        self.discord.faults = _Dice(
            share,
            dice,
            [
                {"method": "POST", "path": "/channels/*/messages"},
                {"method": "PATCH", "path": "/channels/*/messages/*"},
            ],
            {"delay": 0, "drop": True, "after": True},
        )

    def lost_answers(self) -> int:
        calls = [*self.telegram.log, *self.discord.log]
        return sum(call["status"] == "dropped" for call in calls)

    def forget_sessions(self) -> None:
        """Discord's sessions end with a killed bot; the rig would feed them for ever."""
        self.discord.sessions.clear()


def _telegram_name(chat: int, topic: int | None) -> str:
    return f"telegram:{chat}" if topic is None else f"telegram:{chat}:{topic}"


class _Dice(list[dict[str, Any]]):
    """A rig's list of faults in which each one turns up with a probability, again and again."""

    def __init__(
        self,
        share: float,
        dice: random.Random,
        faults: list[dict[str, Any]],
        common: dict[str, Any] | None = None,
    ) -> None:
        super().__init__({**fault, **(common or {})} for fault in faults)
        self._share = share
        self._dice = dice

    @override
    def __iter__(self) -> Iterator[dict[str, Any]]:
        for fault in super().__iter__():
            if self._dice.random() < self._share:
                yield {**fault, "times": 2}  # the rig counts it down, in this copy


@asynccontextmanager
async def on_loopback() -> AsyncIterator[World]:
    """Run both platforms, each on a free port, for the length of the block."""
    # It tells of every answer that is lost on purpose.
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)
    telegram = TgWire(port=0)
    await telegram.start()
    telegram.base = f"http://127.0.0.1:{telegram.runner.addresses[0][1]}"
    async with SimWire(port=0) as wire:
        try:
            yield World(wire, telegram)
        finally:
            if telegram.waiter:
                telegram.waiter.set()  # the poll of a bot that is gone would hold up the end
            await telegram.stop()

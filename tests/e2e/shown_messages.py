"""What the bot's messages look like to people in a chat, and presses of the buttons under them."""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from simcord.builders import UserHandle
from simcord.results import EPHEMERAL_FLAG, ResponseMessage

from tests.e2e.loopback_platforms import Conversation, LoopbackPlatforms
from tests.e2e.waiting import wait_until

STOP, RETRY, CONTINUE, DELETE = "⏹ Stop", "🔄 Retry", "▶ Continue", "🗑 Delete"
OLDER, NEWER = "‹", "›"
AT_ONCE = [RETRY, CONTINUE, DELETE]
"""The buttons under the first version of an answer."""


@dataclass(frozen=True, slots=True)
class ShownMessages:
    """Reads the bot's messages as everybody sees them, those of its webhooks included."""

    platforms: LoopbackPlatforms

    def of(self, where: Conversation) -> list[Any]:
        """Return the messages of the servers, without those that one person sees alone."""
        platform, chat, *topic = where.name.split(":")
        if platform == "telegram":
            ours = self.platforms.telegram.me["id"]
            found = self.platforms.telegram.msgs.get(int(chat), {})
            thread = int(topic[0]) if topic else None
            said = (found[number] for number in sorted(found))
            here = (one for one in said if one.get("message_thread_id") == thread)
            return [one for one in here if one["from"]["id"] == ours]
        wire = self.platforms.discord
        ours = wire.b.bot_user.id
        said = wire.b.messages[int(chat)].values()
        by_bot = [one for one in said if one.author_id == ours or one.webhook_id]
        return [one for one in by_bot if not one.flags & EPHEMERAL_FLAG]

    def texts(self, where: Conversation) -> list[str]:
        """Return what the bot has told everybody there."""
        return [one["text"] if isinstance(one, dict) else one.content for one in self.of(where)]

    def buttons(self, where: Conversation) -> list[list[str]]:
        """Return the labels under each message of the bot."""
        return [[label for label, _ in self._buttons_of(where, one)] for one in self.of(where)]

    def _buttons_of(self, where: Conversation, message: Any) -> list[tuple[str, str]]:
        if where.name.startswith("telegram"):
            rows = (message.get("reply_markup") or {}).get("inline_keyboard", [])
            return [(one["text"], one["callback_data"]) for row in rows for one in row]
        [shown] = [
            one
            for one in self.platforms.discord.messages(message.channel_id)
            if one["id"] == str(message.id)
        ]
        found = self.platforms.discord.buttons(shown)
        return [(one["label"], one["custom_id"]) for one in found]

    async def press(
        self, where: Conversation, label: str, who: int = 0, seconds_later: float = 0
    ) -> Any:
        """Press a button of the newest message; returns what shows how it was acknowledged."""
        message = self.of(where)[-1]
        with self._later(message, seconds_later):
            return await self._press(where, message, label, who)

    @contextmanager
    def _later(self, message: Any, seconds: float) -> Iterator[None]:
        """Let a message be this old while the block runs."""
        clock = self.platforms.discord.b.clock
        if isinstance(message, dict):
            message["date"] -= int(seconds)
        clock.advance(seconds)
        try:
            yield
        finally:
            clock.advance(-seconds)

    async def _press(self, where: Conversation, message: Any, label: str, who: int) -> Any:
        [data] = [data for one, data in self._buttons_of(where, message) if one == label]
        if where.name.startswith("telegram"):
            wire, chat = self.platforms.telegram, message["chat"]["id"]
            return wire.click(where.people[who], chat, message["message_id"], data)
        wire, person = self.platforms.discord, where.people[who]
        if wire.b.get_channel(message.channel_id).guild_id is None:  # nobody is a member there
            person = UserHandle(wire.env, wire.b.get_user(person.id))
        return await person.click(ResponseMessage(wire.env, message), custom_id=data)

    async def words_alone(self, where: Conversation, press: Any) -> str:
        """Return what the person who pressed is told alone; empty if it is nothing."""
        if where.name.startswith("telegram"):
            queries = self.platforms.telegram.queries
            await wait_until(lambda: queries[press]["answered"] is not None)
            return str(queries[press]["answered"])
        await wait_until(lambda: bool(press.acknowledged))
        return str(press.response.content) if press.ephemeral else ""

    async def shows(self, where: Conversation, text: str, labels: list[str]) -> None:
        """Wait until one message of the bot is there, with this text and these buttons."""
        await wait_until(
            lambda: self.texts(where) == [text] and self.buttons(where) == [labels], 20
        )

    async def labelled(self, where: Conversation, labels: list[str]) -> None:
        """Wait until one message of the bot is there, with these buttons."""
        try:
            await wait_until(lambda: self.buttons(where) == [labels])
        except TimeoutError:
            pytest.fail(f"{where.name} shows {self.buttons(where)} below {self.texts(where)}")

    def counts(self, where: Conversation) -> Iterator[int]:
        """Yield how many messages of the bot there were, after each change on the screen."""
        platform, _, chat = where.name.partition(":")
        if platform == "telegram":
            yield from self._counts_on_telegram(int(chat))
            return
        shown: set[str] = set()
        ours = str(self.platforms.discord.b.bot_user.id)
        for _, event, said in self.platforms.discord.history(int(chat)):
            by_bot = said.get("webhook_id") or (said.get("author") or {}).get("id") == ours
            if event == "MESSAGE_CREATE" and by_bot:
                shown.add(said["id"])
            elif event == "MESSAGE_DELETE":
                shown.discard(said["id"])
            yield len(shown)

    def _counts_on_telegram(self, chat: int) -> Iterator[int]:
        wire = self.platforms.telegram
        gone = wire.deleted.get(chat, [])
        said = [*wire.msgs[chat].values(), *(one for _, one in gone)]
        ours = [one["_t"] for one in said if one["from"]["id"] == wire.me["id"]]
        changes = [(at, 1) for at in ours] + [(at, -1) for at, _ in gone]
        return itertools.accumulate(change for _, change in sorted(changes))

"""Loopback servers of Discord and Telegram, with simulated people who write and press buttons.

The visible messages of a chat are read from its server.
"""

import itertools
import logging
import random
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import discord
import pytest
from simcord.backend import serializers
from simcord.builders import ChannelHandle, GuildHandle, UserHandle
from simcord.results import EPHEMERAL_FLAG, ResponseMessage
from typing_extensions import override

from tests.rigs.simwire import SimWire
from tests.rigs.tgwire import TgWire
from tests.support.transcripts import PostedMessage, expected_answer
from tests.waiting import PATIENCE_SECONDS, wait_until

TELEGRAM_PEOPLE = (1, 2)
TELEGRAM_ADMIN = 3
STOP, RETRY, CONTINUE, DELETE = "⏹ Stop", "🔄 Retry", "▶ Continue", "🗑 Delete"
OLDER, NEWER = "‹", "›"
AT_ONCE = [RETRY, CONTINUE, DELETE]
"""The buttons under the first version of an answer."""

_CARRIED_OUT = {200, "dropped"}
"""Statuses of executed calls: `drop_responses` drops responses of calls that took effect."""
_TOPIC_TITLES = ("plans", "music", "food")
_names = (f"{number:04x}" for number in itertools.count(0x1000))


@dataclass(frozen=True, slots=True)
class Question:
    """A question that has one right answer (see `tests.support.transcripts`)."""

    name: str
    words: int
    message: Any
    """The server's message."""

    @property
    def token(self) -> str:
        return f"T{self.name}:{self.words}"

    @property
    def answer(self) -> str:
        return expected_answer(self.token)


class Chat(ABC):
    def __init__(
        self, platforms: "Platforms", kind: str, name: str, mention: str, people: Any
    ) -> None:
        self.platforms = platforms
        self.kind = kind
        """The method of `Platforms` that opened it."""
        self.name = name
        """As in `PostedMessage.conversation`."""
        self.mention = mention
        """The prefix of a message to the bot; empty in private chats."""
        self.people: Sequence[Any] = people
        """The server's users who write there."""
        self.chat = int(name.split(":")[1])

    @property
    def is_telegram(self) -> bool:
        return self.name.startswith("telegram")

    def another(self) -> "Chat":
        return self.platforms.open(self.kind)

    # --- what people do --------------------------------------------------------------------------

    @abstractmethod
    def say(self, text: str, who: int = 0, *, reply_to: int | None = None) -> Any:
        """Send a text as the person with an index; return the server's message."""

    @abstractmethod
    def tell_as_admin(self, text: str) -> Any:
        """Send a text to the bot as an admin of the group."""

    @abstractmethod
    def edit(self, message: Any, text: str, who: int = 0) -> None:
        """Edit the text of a person's message."""

    @abstractmethod
    async def press(
        self, label: str, who: int = 0, *, message: Any = None, seconds_later: float = 0
    ) -> Any:
        """Press a button of a message (default: the newest); return a press for `private_reply`."""

    @abstractmethod
    async def react(self, *emojis: str, who: int = 0) -> None:
        """React to the bot's newest message, replacing the person's earlier reactions."""

    def tell(self, text: str, who: int = 0) -> Any:
        return self.say(self.mention + text, who)

    def ask(self, name: str = "", words: int = 12, who: int = 0, text: str = "please") -> Question:
        name = name or next(_names)
        return Question(name, words, self.tell(f"{text} T{name}:{words}", who))

    def reply(self, text: str) -> Any:
        return self.say(text, reply_to=self.id_of(self.bot_messages()[-1]))

    async def ask_and_wait(
        self, name: str = "", words: int = 12, who: int = 0, text: str = "please"
    ) -> Question:
        question = self.ask(name, words, who, text)
        await wait_until(lambda: question.answer in self.texts())
        return question

    # --- what is seen ----------------------------------------------------------------------------

    @abstractmethod
    def bot_messages(self) -> list[Any]:
        """Return the public messages of the bot and its webhooks, oldest first."""

    @abstractmethod
    def text_of(self, message: Any) -> str: ...

    @abstractmethod
    def id_of(self, message: Any) -> int: ...

    @abstractmethod
    def buttons_of(self, message: Any) -> list[tuple[str, str]]:
        """Return the labels and data of the buttons under a message."""

    @abstractmethod
    async def private_reply(self, press: Any) -> str:
        """Return the private reply to a press, or an empty text."""

    @abstractmethod
    def private_texts(self, who: int = 0) -> list[str]:
        """Return the private messages of the bot to a person."""

    @abstractmethod
    def message_counts(self) -> Iterator[int]:
        """Yield the number of the bot's visible messages after each change."""

    def texts(self) -> list[str]:
        return [self.text_of(one) for one in self.bot_messages()]

    def buttons(self) -> list[list[str]]:
        return [[label for label, _ in self.buttons_of(one)] for one in self.bot_messages()]

    async def shows(
        self, *expected: str | Question | Sequence[Question], labels: Sequence[str] | None = None
    ) -> None:
        """Wait until exactly these messages of the bot are visible; a list has one joint answer."""
        texts = [one if isinstance(one, str) else _answer_to(one) for one in expected]
        await self.wait_until(
            lambda: self.texts() == texts and (labels is None or self.buttons()[-1] == [*labels])
        )

    async def wait_until_begun(self, question: Question) -> None:
        await self.wait_until(lambda: f"RS{question.name}" in "".join(self.texts()))

    async def shows_new(self, beginning: str = "", since: int = 0) -> str:
        """Wait for more than `since` texts, of which the newest begins like this; return it."""
        await self.wait_until(
            lambda: len(texts := self.texts()) > since and texts[-1].startswith(beginning)
        )
        return self.texts()[-1]

    async def wait_for_labels(self, *labels: str) -> None:
        await self.wait_until(lambda: self.buttons() == [[*labels]])

    async def wait_until(
        self, condition: Callable[[], Any], seconds: float = PATIENCE_SECONDS
    ) -> None:
        """Wait for a condition on the visible messages; on failure, report these messages."""
        try:
            await wait_until(condition, seconds)
        except TimeoutError:
            pytest.fail(f"{self.name} shows {self.texts()} with the buttons {self.buttons()}")


C = TypeVar("C", bound=Chat)


class TelegramChat(Chat):
    def __init__(
        self,
        platforms: "Platforms",
        kind: str,
        chat: int,
        people: Sequence[int] = TELEGRAM_PEOPLE,
        topic: int | None = None,
    ) -> None:
        mention = f"@{platforms.telegram.me['username']} " if chat < 0 else ""
        super().__init__(platforms, kind, _telegram_name(chat, topic), mention, people)
        self.topic = topic
        self._wire = platforms.telegram

    @override
    def say(self, text: str, who: int = 0, *, reply_to: int | None = None) -> Any:
        person, chat = self.people[who], self.chat
        return self._wire.say(person, text, chat=chat, thread=self.topic, reply_to=reply_to)

    @override
    def edit(self, message: Any, text: str, who: int = 0) -> None:
        self.platforms.note_edit(self, message["message_id"], message["text"])
        self._wire.edit(self.people[who], self.chat, message["message_id"], text)

    def make_admins(self, *people: int) -> None:
        self._wire.chat(self.chat, "supergroup")["_admins"] = set(people)

    @override
    def tell_as_admin(self, text: str) -> Any:
        self._wire.chat(self.chat, "supergroup").setdefault("_admins", set()).add(TELEGRAM_ADMIN)
        return self._wire.say(TELEGRAM_ADMIN, self.mention + text, chat=self.chat)

    @override
    async def press(
        self, label: str, who: int = 0, *, message: Any = None, seconds_later: float = 0
    ) -> Any:
        message = message or self.bot_messages()[-1]
        message["date"] -= int(seconds_later)
        [data] = [data for one, data in self.buttons_of(message) if one == label]
        return self._wire.click(self.people[who], self.chat, message["message_id"], data)

    @override
    async def react(self, *emojis: str, who: int = 0) -> None:
        number = self.bot_messages()[-1]["message_id"]
        self._wire.react(self.people[who], self.chat, number, *emojis)

    @override
    def bot_messages(self) -> list[Any]:
        found = self._wire.msgs.get(self.chat, {})
        return [
            one
            for _, one in sorted(found.items())
            if one["from"]["id"] == self._wire.me["id"]
            and one.get("message_thread_id") == self.topic
            and "text" in one
        ]

    @override
    def private_texts(self, who: int = 0) -> list[str]:
        person = self.people[who]
        texts: list[str] = [*self._wire.texts(person), *self._wire.whispers(person, self.chat)]
        return texts

    def documents(self, chat: int | None = None) -> list[Any]:
        found = self._wire.msgs.get(chat or self.chat, {})
        return [one for one in found.values() if "document" in one]

    @override
    def text_of(self, message: Any) -> str:
        return str(message["text"])

    @override
    def id_of(self, message: Any) -> int:
        return int(message["message_id"])

    @override
    def buttons_of(self, message: Any) -> list[tuple[str, str]]:
        rows = (message.get("reply_markup") or {}).get("inline_keyboard", [])
        return [(one["text"], one["callback_data"]) for row in rows for one in row]

    @override
    async def private_reply(self, press: Any) -> str:
        queries = self._wire.queries
        await wait_until(lambda: queries[press]["answered"] is not None)
        return str(queries[press]["answered"])

    @override
    def message_counts(self) -> Iterator[int]:
        gone = self._wire.deleted.get(self.chat, [])
        said = [*self._wire.msgs[self.chat].values(), *(one for _, one in gone)]
        ours = [one["_t"] for one in said if one["from"]["id"] == self._wire.me["id"]]
        changes = [(at, 1) for at in ours] + [(at, -1) for at, _ in gone]
        return itertools.accumulate(change for _, change in sorted(changes))

    def sends(self) -> list[Any]:
        """Return the sendMessage calls for this chat, in order."""
        return [
            one
            for one in self._wire.log
            if one["method"].lower() == "sendmessage"
            and str(one["params"]["chat_id"]) == str(self.chat)
        ]


class DiscordChat(Chat):
    def __init__(
        self, platforms: "Platforms", kind: str, channel: int, people: Sequence[Any] = ()
    ) -> None:
        self._wire = platforms.discord
        self._reactions: dict[tuple[int, int], set[str]] = {}
        self._backend = self._wire.b
        is_private = self._backend.get_channel(channel).guild_id is None
        mention = "" if is_private else f"<@{self._backend.bot_user.id}> "
        name = f"discord:{channel}"
        super().__init__(platforms, kind, name, mention, people or platforms.people)

    @property
    def handle(self) -> ChannelHandle:
        channel = self._backend.get_channel(self.chat)
        guild = self._backend.get_guild(channel.guild_id or self.platforms.guild.id)
        return ChannelHandle(self._wire.env, GuildHandle(self._wire.env, guild), channel)

    @override
    def say(self, text: str, who: int = 0, *, reply_to: int | None = None) -> Any:
        return self._wire.say(self.people[who], self.chat, text, reply_to=reply_to)

    @override
    def tell_as_admin(self, text: str) -> Any:
        return self._wire.say(self.platforms.admin, self.chat, self.mention + text)

    @override
    def edit(self, message: Any, text: str, who: int = 0) -> None:
        self.platforms.note_edit(self, message.id, message.content)
        self._wire.edit(self.chat, message.id, text)

    @override
    async def press(
        self, label: str, who: int = 0, *, message: Any = None, seconds_later: float = 0
    ) -> Any:
        message, person = message or self.bot_messages()[-1], self.people[who]
        [data] = [data for one, data in self.buttons_of(message) if one == label]
        if not self.mention:  # nobody is a member of a private chat
            person = UserHandle(self._wire.env, self._backend.get_user(person.id))
        with self._later(seconds_later):
            return await person.click(ResponseMessage(self._wire.env, message), custom_id=data)

    @override
    async def react(self, *emojis: str, who: int = 0) -> None:
        message, person = self.bot_messages()[-1].id, self.people[who].id
        before = self._reactions.get((message, who), set())
        for emoji in {*before, *emojis}:
            is_set = emoji in emojis
            self._backend.set_reaction(self.chat, message, emoji, person, is_set)
        self._reactions[message, who] = set(emojis)

    @contextmanager
    def _later(self, seconds: float) -> Iterator[None]:
        self._backend.clock.advance(seconds)
        try:
            yield
        finally:
            self._backend.clock.advance(-seconds)

    async def slash(self, who: Any, words: str, **options: Any) -> Any:
        """Send a slash command, wait for the response, and return it."""
        result = await who.slash(self.handle, words, **options)
        await wait_until(lambda: result.response and result.response.content)
        return result.response

    @override
    def bot_messages(self) -> list[Any]:
        ours = self._backend.bot_user.id
        return [
            one
            for one in self._backend.messages[self.chat].values()
            if (one.author_id == ours or one.webhook_id) and not one.flags & EPHEMERAL_FLAG
        ]

    @override
    def text_of(self, message: Any) -> str:
        return str(message.content)

    @override
    def id_of(self, message: Any) -> int:
        return int(message.id)

    @override
    def buttons_of(self, message: Any) -> list[tuple[str, str]]:
        shown = self._wire.messages(self.chat)
        [found] = [self._wire.buttons(one) for one in shown if one["id"] == str(message.id)]
        return [(one["label"], one["custom_id"]) for one in found]

    @override
    async def private_reply(self, press: Any) -> str:
        await wait_until(lambda: bool(press.acknowledged))
        return str(press.response.content) if press.ephemeral else ""

    @override
    def private_texts(self, who: int = 0) -> list[str]:
        private = self._backend.get_dm_channel(self.people[who].id)
        ours = self._backend.bot_user.id
        shown = self._backend.messages.get(private.id, {}).values()
        return [str(one.content) for one in shown if one.author_id == ours]

    def webhook_texts(self) -> list[tuple[str, str]]:
        """Return the author names and texts of webhook messages in this chat."""
        shown = self._wire.messages(self.chat)
        return [(one["author"]["username"], one["content"]) for one in shown if "webhook_id" in one]

    @override
    def message_counts(self) -> Iterator[int]:
        shown: set[str] = set()
        ours = str(self._backend.bot_user.id)
        for _, event, said in self._wire.history(self.chat):
            by_bot = said.get("webhook_id") or (said.get("author") or {}).get("id") == ours
            if event == "MESSAGE_CREATE" and by_bot:
                shown.add(said["id"])
            elif event == "MESSAGE_DELETE":
                shown.discard(said["id"])
            yield len(shown)


class Platforms:
    """Both servers, and the conversations opened on them."""

    def __init__(self, on_discord: SimWire, on_telegram: TgWire) -> None:
        self.discord = on_discord
        self.telegram = on_telegram
        self.conversations: dict[str, Chat] = {}
        self._earlier: dict[tuple[str, int], list[str]] = {}
        self._read = [0, 0]  # how many calls of each platform
        self._unfinished: list[dict[str, Any]] = []
        self.guild = on_discord.guild("Guild")
        mods = self.guild.create_role("mods", permissions=discord.Permissions(manage_guild=True))
        self.admin = on_discord.member(self.guild, "admin", roles=[mods])
        self.people = [on_discord.member(self.guild, name) for name in ("alice", "bob")]

    def offer_to_everybody(self, command: str) -> None:
        """Make an admin command visible to all members, as a server's settings allow."""
        registered = self.discord.b.find_command(command, self.guild.id)
        everybody = dict.fromkeys(self.people, True)
        self.guild.set_command_permissions(int(registered["id"]), everybody)

    def open_guild(self, name: str) -> GuildHandle:
        """Create a Discord server with a system channel, without telling the bot."""
        wire = self.discord
        wire.b.subscribers.remove(wire._on_event)
        try:
            guild = wire.guild(name)
            guild.create_text_channel("general")
            wire.b.get_guild(guild.id).system_channel_id = guild.create_text_channel("welcome").id
        finally:
            wire.b.subscribers.append(wire._on_event)
        return guild

    def send_guild(self, guild: GuildHandle, *, was_unavailable: bool) -> None:
        """Send the event that a server added the bot, or is available again."""
        backend = self.discord.b
        whole: dict[str, Any] = dict(
            serializers.guild_create_payload(backend, backend.get_guild(guild.id))
        )
        if not was_unavailable:
            del whole["unavailable"]
        backend.emit("GUILD_CREATE", whole)

    # --- conversations -----------------------------------------------------------------------

    def open(self, kind: str) -> Chat:
        """Open a conversation of the kind with this method name below."""
        opened: Chat = getattr(self, kind)()
        return opened

    def channel(self) -> DiscordChat:
        channel = self.guild.create_text_channel(f"channel-{len(self.conversations)}").id
        return self._keep(DiscordChat(self, "channel", channel))

    def discord_thread(self) -> DiscordChat:
        parent = self.guild.create_text_channel(f"parent-{len(self.conversations)}").id
        thread = self.discord.b.create_thread(parent, "plans", self.people[0].id).id
        return self._keep(DiscordChat(self, "discord_thread", thread))

    def discord_dm(self) -> DiscordChat:
        who = self.discord.member(self.guild, f"friend-{len(self.conversations)}")
        chat = self.discord.b.get_dm_channel(who.id).id
        return self._keep(DiscordChat(self, "discord_dm", chat, [who, who]))

    def telegram_group(self) -> TelegramChat:
        return self.in_telegram_group(-1000 - len(self.conversations))

    def in_telegram_group(self, chat: int) -> TelegramChat:
        return self._keep(TelegramChat(self, "telegram_group", chat))

    def telegram_topics(self) -> list[TelegramChat]:
        """Create a group with topics; return one conversation per topic."""
        chat, wire = -1000 - len(self.conversations), self.telegram
        wire.chat(chat, "supergroup", is_forum=True)
        created = wire.topics.setdefault(chat, {})
        for title in _TOPIC_TITLES:
            opened = wire._new(chat, wire.user(1), forum_topic_created={"name": title})
            created[opened["message_id"]] = title
        return [
            self._keep(TelegramChat(self, "telegram_topic", chat, topic=topic)) for topic in created
        ]

    def telegram_topic(self) -> TelegramChat:
        return self.telegram_topics()[1]

    def telegram_dm(self) -> TelegramChat:
        chat = 1000 + len(self.conversations)
        return self._keep(TelegramChat(self, "telegram_dm", chat, [chat, chat]))

    def telegram_dm_topic(self) -> TelegramChat:
        chat = 1000 + len(self.conversations)
        return self._keep(TelegramChat(self, "telegram_dm_topic", chat, [chat, chat], topic=11))

    def _keep(self, conversation: C) -> C:
        self.conversations[conversation.name] = conversation
        return conversation

    def note_edit(self, where: Chat, message: int, text: str) -> None:
        self._earlier.setdefault((where.name, message), []).append(text)

    # --- messages ----------------------------------------------------------------------------

    def messages(self) -> Iterator[PostedMessage]:
        """Yield the public messages of both platforms, in the order of each conversation."""
        ours = self.discord.b.bot_user.id
        for channel, posts in self.discord.b.messages.items():
            name = f"discord:{channel}"
            for post in posts.values():
                if not post.flags & EPHEMERAL_FLAG:
                    by_bot = post.author_id == ours or bool(post.webhook_id)
                    rows = [row.get("components", ()) for row in post.components]
                    data = [button.get("custom_id", "") for row in rows for button in row]
                    yield self._posted(name, int(post.id), post.content, data, by_bot=by_bot)
        for chat, found in self.telegram.msgs.items():
            for number, message in sorted(found.items()):
                if "text" in message:
                    name = _telegram_name(chat, message.get("message_thread_id"))
                    by_bot = message["from"]["id"] == self.telegram.me["id"]
                    rows = (message.get("reply_markup") or {}).get("inline_keyboard", ())
                    data = [button["callback_data"] for row in rows for button in row]
                    yield self._posted(name, number, message["text"], data, by_bot=by_bot)

    def _posted(
        self, name: str, number: int, text: str, buttons: Sequence[str], *, by_bot: bool
    ) -> PostedMessage:
        earlier = tuple(self._earlier.get((name, number), ()))
        # The data of a button under an answer ends with the key of the event it answers: ":7/0".
        key = buttons[0].rpartition("/")[0].rpartition(":")[2] if buttons else ""
        return PostedMessage(name, by_bot, text, earlier, str(number), key)

    def new_texts(self) -> Iterator[tuple[float, str]]:
        """Yield the Unix times and texts of the bot's new API calls that send or edit a text."""
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
        lost: dict[str, Any] = {"delay": 0, "drop": True, "after": True}
        on_telegram = ("sendmessage", "editmessagetext")
        on_discord = ("/channels/*/messages", "/webhooks/*")
        on_edits = ("/channels/*/messages/*", "/webhooks/*/messages/*")
        self.telegram.faults = _RandomFaults(
            share, rng, ({"method": method, "match": None, **lost} for method in on_telegram)
        )
        self.discord.faults = _RandomFaults(
            share,
            rng,
            [
                *({"method": "POST", "path": path, **lost} for path in on_discord),
                *({"method": "PATCH", "path": path, **lost} for path in on_edits),
            ],
        )

    def end_faults(self) -> None:
        self.telegram.faults.clear()
        self.discord.faults.clear()

    def dropped_responses(self) -> int:
        calls = [*self.telegram.log, *self.discord.log]
        return sum(call["status"] == "dropped" for call in calls)

    def forget_sessions(self) -> None:
        """Delete Discord sessions of killed bots, which the server would keep forever."""
        gone = [key for key, session in self.discord.sessions.items() if session.ws is None]
        for key in gone:
            del self.discord.sessions[key]

    def identifies(self) -> int:
        return sum(name == "<op2" for _, name, _ in self.discord.events)

    def resumes(self) -> int:
        return sum(name == "<op6" for _, name, _ in self.discord.events)


def _answer_to(asked: Question | Sequence[Question]) -> str:
    return " ".join(one.answer for one in ([asked] if isinstance(asked, Question) else asked))


def _telegram_name(chat: int, topic: int | None) -> str:
    return f"telegram:{chat}" if topic is None else f"telegram:{chat}:{topic}"


class _RandomFaults(list[Mapping[str, Any]]):
    """A server's list of faults that each occur with the same probability."""

    def __init__(self, share: float, rng: random.Random, faults: Any) -> None:
        super().__init__(faults)
        self._share = share
        self._dice = rng

    @override
    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        for fault in super().__iter__():
            if self._dice.random() < self._share:
                yield {**fault, "times": 2}  # the server counts it down, in this copy


@asynccontextmanager
async def running_platforms(
    telegram_token: str | None = None,
    make_discord: Callable[..., SimWire] = SimWire,
    make_telegram: Callable[..., TgWire] = TgWire,
) -> AsyncIterator[Platforms]:
    # It logs every response that is cut off on purpose.
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)
    given = {"token": telegram_token} if telegram_token else {}
    telegram = await make_telegram(**given).start()
    async with make_discord(port=0) as wire:
        try:
            yield Platforms(wire, telegram)
        finally:
            if telegram.waiter:
                telegram.waiter.set()  # a poll of a killed bot would delay the shutdown
            await telegram.stop()


def reactions(where: Chat, message: int) -> list[str]:
    """Return the bot's reactions to a message."""
    if isinstance(where, DiscordChat):
        backend = where.platforms.discord.b
        ours, found = backend.bot_user.id, backend.messages[where.chat][message]
        return [one.emoji for one in found.reactions if ours in one.user_ids]
    calls = [
        one["params"]
        for one in where.platforms.telegram.log
        if one["method"] == "setMessageReaction" and one["status"] == 200
    ]
    found = [one for one in calls if (one["chat_id"], one["message_id"]) == (where.chat, message)]
    return [one["emoji"] for one in found[-1]["reaction"]] if found else []

"""Test privacy notices, and that no message of a person who opted out is used."""

import asyncio
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import TypeAlias

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import select
from typing_extensions import override

from bot.chat.command import ButtonAction
from bot.chat.incoming import (
    ChatJoin,
    IncomingMessage,
    MediaItem,
    MediaKind,
    MessageEdit,
    Person,
    Quote,
    Reaction,
    ReactionChange,
    ThreadTitle,
    WakeReason,
)
from bot.chat.prompt import Delta, Finish, FinishReason, GenerationEvent, Prompt
from bot.chat.session import Consent, HistoryScope
from bot.routing.presets import SCOPE_DESCRIPTIONS, remove_turns_of
from bot.storage.database import Database, open_database
from bot.storage.receipts import Receipts
from bot.storage.tables import inbox, metadata
from tests.fakes import FakeBackend, FakeClock
from tests.samples import ALICE, BOB, make_incoming
from tests.sqlite import create_sqlite_database
from tests.turn.setup import Setup, pass_time_until, pressed

PEOPLE = tuple(Person(f"telegram:{number + 1}", f"word{number}") for number in range(3))
CHATS = ("5", "6")
PRESET = {"context": "all", "wake": {"words": ["nora"]}, "busy": "collect"}

Step: TypeAlias = tuple[str, int, int, int]
"""The kind of event, its author, its chat, and the earlier message that it is about."""
KINDS = (
    *(
        "ask",
        "tell others",
        "name the bot",
        "edit",
        "forward",
        "reply",
        "reply to a forward",
        "reply to an answer",
    ),
    *("continue", "choose", "retry in a thread", "ask in a thread", "react", "add the bot"),
    *("describe", "/preset who", "/settings", "work", "off", "off", "reset", "here", "forget me"),
)
PRESSES = {"continue": ButtonAction.CONTINUE, "choose": ButtonAction.OBSERVE}
steps = st.lists(
    st.tuples(st.sampled_from(KINDS), st.integers(0, 2), st.integers(0, 1), st.integers(0, 9)),
    max_size=14,
)


class OwnWordsBackend(FakeBackend):
    """A model that repeats the newest message, except for quotes of other people."""

    @override
    async def generate(self, prompt: Prompt) -> AsyncGenerator[GenerationEvent, None]:
        self.prompts.append(prompt)
        lines = prompt.messages[-1].content.splitlines()
        yield Delta("\n".join(line for line in lines if not line.startswith(">")))
        yield Finish(FinishReason.STOP)


@dataclass
class Groups:
    """Two group chats, their messages, and who opted out after which prompt."""

    setup: Setup
    said: list[IncomingMessage] = field(default_factory=list)
    off_since: dict[str, int] = field(default_factory=dict)
    events: int = 0

    async def read_before(self, message: IncomingMessage, limit: int) -> Sequence[IncomingMessage]:
        here = [one for one in self.said if one.address == message.address and one != message]
        return [replace(one, wake=None) for one in here[-limit:]]

    async def take(self, kind: str, person: int, chat: int, target: int) -> None:
        self.events += 1
        who, where = PEOPLE[person], CHATS[chat]
        text = self._word(person)
        match kind:
            case "ask":
                await self._say(text, who, where, WakeReason.MENTION)
            case "tell others":
                await self._say(text, who, where, None)
            case "name the bot":
                await self._say(f"nora {text}", who, where, None)
            case "describe" | "/preset who" | "/settings":
                line = kind.replace("describe", "/me")
                await self._say(f"{line} {text}", who, where, WakeReason.COMMAND)
            case "work":
                await self.work(where)
            case "off" | "reset" | "here":
                await self._choose(kind, who, where)
            case "forget me":
                said = make_incoming(key=f"{where}:f{self.events}", author=who, chat=where)
                await self.setup.container.deletions.request_person_deletion(said)
            case _:
                earlier = [one for one in self.said if one.address.chat == where]
                if earlier:
                    await self._use(kind, who, text, earlier[target % len(earlier)])
                await self._act(kind, who, make_incoming(text, chat=where), target)

    async def _act(self, kind: str, who: Person, message: IncomingMessage, target: int) -> None:
        """Let a person press a button, react, or write in a thread that somebody has opened."""
        address, at, scopes, key = (
            message.address,
            message.at,
            message.scopes,
            f"{kind}{self.events}",
        )
        part, opener = f"telegram:{address.chat}:u{target}/0", target % 3
        press = pressed(PRESSES.get(kind, ButtonAction.RETRY), part, by=who, key=key)
        press = replace(press, address=address, scopes=scopes)
        title = ThreadTitle(self._word(opener), PEOPLE[opener].id)
        is_withheld = title.person in self.off_since  # else it becomes others' words
        match kind:
            case "continue" | "choose":
                await self.setup.receive(press)
            case "retry in a thread" if is_withheld:
                await self.setup.receive(replace(press, thread_title=title))
            case "ask in a thread" if is_withheld:
                thread = {"thread_title": title}
                await self._say(message.text, who, address.chat, WakeReason.MENTION, **thread)
            case "react":
                given = (str(1 + target), who, Reaction.GOOD, at, scopes)
                await self.setup.receive(ReactionChange(address, key, *given))
            case "add the bot":
                await self.setup.receive(ChatJoin(address, key, who, at, scopes))
            case _:
                pass

    async def _use(self, kind: str, who: Person, text: str, earlier: IncomingMessage) -> None:
        """Let a person edit, forward or reply to an earlier message, or to an answer."""
        where, author = earlier.address.chat, earlier.author
        match kind:
            case "edit":
                word = self._word(PEOPLE.index(author))
                edited = replace(earlier, text=f"{earlier.text} {word}")
                await self.setup.receive(MessageEdit(f"e{self.events}", edited, edited.at))
            case "forward" if author.id in self.off_since:  # else it becomes others' words
                forward = {"is_forward": True, "forwarded_from": author.id}
                await self._say(earlier.text, who, where, None, **forward)
            case "reply to a forward" if author.id in self.off_since:
                quote = Quote(who, "9", earlier.text, forwarded_from=author.id)
                await self._say(text, who, where, WakeReason.REPLY, quote=quote)
            case "reply":
                file = MediaItem(MediaKind.FILE, f"{earlier.text}.txt")
                quote = Quote(author, earlier.message_id, earlier.text, (file,))
                await self._say(text, who, where, WakeReason.REPLY, quote=quote)
            case "reply to an answer":
                sent = enumerate(self.setup.surface.sent, 1)
                keys = [str(number) for number, one in sent if one.address.chat == where]
                for key in keys[: 1 + self.events % 3][-1:]:
                    shown = self.setup.surface.messages.get(key, "")
                    quote = Quote(None, key, shown, is_ours=True)
                    await self._say(text, who, where, WakeReason.REPLY, quote=quote)
            case _:
                pass

    def _word(self, person: int) -> str:
        return f"word{person}{'abcdefghijklmnop'[self.events]}"

    async def work(self, where: str) -> None:
        """Process everything in a chat while time passes."""
        work = asyncio.create_task(self.setup.work(f"telegram:{where}"))
        await pass_time_until(self.setup, work.done)
        await work

    async def _choose(self, choice: str, who: Person, where: str) -> None:
        await self._say(f"/settings me {choice}", who, where, WakeReason.COMMAND)
        await self.work(where)
        if choice != "off":
            self.off_since.pop(who.id, None)
            # What a later quote of them leaves in a receipt is not found once they are off again.
            self.said = [one for one in self.said if one.author != who]
        elif await self.setup.resolver.find_consent(who.id) is Consent.OFF:
            self.off_since.setdefault(who.id, len(self.setup.backend.prompts))

    async def _say(
        self, text: str, who: Person, where: str, wake: WakeReason | None, **more: object
    ) -> None:
        said = make_incoming(text, key=f"{where}:u{self.events}", author=who, chat=where, wake=wake)
        said = replace(said, **more)  # type: ignore[arg-type]
        if not text.startswith("/") and not said.is_forward:
            self.said.append(said)
        await self.setup.receive(said)

    async def received(self) -> list[str]:
        """Return the texts in the inbox; "" for each message that is already processed."""
        query = select(inbox.c.payload).order_by(inbox.c.id)
        rows = await self.setup.database.read(lambda c: c.execute(query).scalars().all())
        return [(one or b"").decode() for one in rows]

    async def words_of(self, person: int) -> list[str]:
        """Return where texts are found that a person wrote after opting out."""
        setup, word, found = self.setup, f"word{person}", []
        for prompt in setup.backend.prompts[self.off_since[PEOPLE[person].id] :]:
            found.append(f"prompt {prompt.messages}")
        for table in metadata.sorted_tables:
            query = select(table)
            rows = await setup.database.read(lambda c, q=query: c.execute(q).all())  # type: ignore[misc]
            found += [f"{table.name} {one}" for one in rows]
        for chat in CHATS:
            found += map(
                str, await Receipts(setup.database).find_for_last_message(f"telegram:{chat}")
            )
        found += map(str, (vars(setup.conversations.session_windows), vars(setup.resolver)))
        found += map(str, setup.decisions._new_notes)
        return [one for one in found if word in one]


@asynccontextmanager
async def open_groups() -> AsyncIterator[Groups]:
    with tempfile.TemporaryDirectory() as folder:
        url = await create_sqlite_database(Path(folder) / "troupe.db")
        async with open_database(url) as database:

            async def read_before(
                message: IncomingMessage, limit: int
            ) -> Sequence[IncomingMessage]:
                return await groups.read_before(message, limit)

            setup = Setup(
                database,
                backend=OwnWordsBackend(),
                clock=FakeClock(make_incoming().at.timestamp() + 60),
                preset=PRESET,
                read_before=read_before,
            )
            groups = Groups(setup)
            yield groups


@pytest.mark.slow
@given(steps)
async def test_no_data_of_a_person_who_opted_out_is_kept_anywhere(schedule: list[Step]) -> None:
    with structlog.testing.capture_logs() as logs:
        async with open_groups() as groups:
            for step in schedule:
                before, off = len(await groups.received()), {*groups.off_since}
                await groups.take(*step)
                for event in (await groups.received())[before:]:
                    assert not any(one.id in off and one.name in event for one in PEOPLE)
            for _ in range(2):
                for chat in CHATS:
                    await groups.work(chat)
            for number, person in enumerate(PEOPLE):
                if person.id in groups.off_since:
                    assert await groups.words_of(number) == []
    assert "word" not in str(logs)


@pytest.mark.parametrize(("gone", "left"), [(ALICE, "b"), (BOB, "a")])
async def test_answer_to_two_people_is_deleted_if_either_is_forgotten(
    database: Database, gone: Person, left: str
) -> None:
    setup = Setup(database, ["Both."], preset=PRESET)
    asked = make_incoming("a"), make_incoming("b", key="5:2", author=BOB)
    await setup.receive(*(replace(one, wake=WakeReason.MENTION) for one in asked))
    work = asyncio.create_task(setup.work())
    await pass_time_until(setup, work.done)
    turns = (await setup.session()).turns
    assert [one.text for one in turns] == ["a", "b", "Both."]
    assert [one.text for one in remove_turns_of(frozenset([gone.id]), turns)] == [left]
    await setup.container.deletions.request_person_deletion(replace(asked[0], author=gone))
    await setup.work()
    assert await setup.history() == [("user", left)]


GROUP = make_incoming().address
ARRIVAL = ChatJoin(GROUP, "join:1", ALICE, make_incoming().at, (GROUP.lane,))


def admin(text: str, key: str) -> IncomingMessage:
    return make_incoming(text, key=f"5:{key}", wake=WakeReason.COMMAND)


async def test_privacy_notice_is_sent_with_the_greeting_once_a_day(database: Database) -> None:
    setup = Setup(database, preset={"greeting": "Well met."})
    again = replace(ARRIVAL, external_key="join:2", at=ARRIVAL.at + timedelta(hours=23))
    later = replace(ARRIVAL, external_key="join:3", at=ARRIVAL.at + timedelta(hours=25))
    await setup.say(ARRIVAL, again)
    greeting, notice, greeting_again = setup.texts
    assert greeting == greeting_again == "Well met."
    assert "I store what I read and my answers (until somebody deletes it with /forget)" in notice
    assert "To answer, I send what I read to: p." in notice
    await setup.say(admin("/privacy edit Ask Ada.", "1"), later)
    assert setup.texts[-1].endswith("I read only what is said to me.\nAsk Ada.")
    opened = replace(ARRIVAL, external_key="join:4", opens_chat=True, scopes=("telegram:6",))
    await setup.say(opened)
    assert not setup.texts[-1].endswith("Ask Ada.")


async def test_privacy_notice_is_sent_again_if_the_process_died(database: Database) -> None:
    setup = Setup(database)
    assert await setup.container.privacy_notice.prepare_join_notice(ARRIVAL) is not None
    await setup.say(ARRIVAL)
    assert "What I do with what you write here:" in setup.texts[-1]


async def test_privacy_command_describes_the_current_settings(database: Database) -> None:
    preset = {"context": "all", "fallbacks": [{"provider": "q", "model": "m"}], "scope": "user"}
    setup = Setup(database, preset=preset, settings={"history_days": 30, "receipt_days": 7})
    await setup.receive(admin("/privacy", "1"))
    await setup.work("telegram:5#user=1")
    shown = setup.texts[-1]
    for words in (
        "what people say to each other here",
        "(30 days), and the exact prompts of my answers (7 days). The database is not encrypted.",
        SCOPE_DESCRIPTIONS[HistoryScope.USER],
        "I send what I read to: p, q.",
        "/settings me off",
    ):
        assert words in shown
    await setup.receive(admin("/settings overhear off", "2"), admin("/privacy", "3"))
    await setup.work("telegram:5#user=1")
    assert "to each other here" not in setup.texts[-1]


async def test_admins_can_add_a_sentence_to_the_privacy_notice(database: Database) -> None:
    setup = Setup(database)
    await setup.say(make_incoming("/privacy edit Mine.", key="5:1", author=BOB))
    assert setup.texts[-1].startswith("⚠ Only an admin can change what /privacy says.")
    await setup.say(admin(f"/privacy edit {'long ' * 120}", "2"))
    assert setup.texts[-1] == "⚠ Use at most 500 characters."
    await setup.say(admin("/privacy edit Ask   Ada.", "3"), admin("/privacy", "4"))
    assert setup.texts[-1].endswith("\nAsk Ada.")
    await setup.say(admin("/privacy edit", "5"), admin("/privacy", "6"))
    assert "Ada" not in setup.texts[-1]

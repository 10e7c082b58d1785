"""Random schedules of people, characters, and memories, checked against a specification."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from random import Random
from typing import TypeAlias

from aiogram.types import Update
from typing_extensions import override

from bot.chat.incoming import Address, IncomingMessage, Person
from bot.chat.memory import (
    Audience,
    Memory,
    MemoryPlace,
    MemoryReader,
    MemoryState,
    MemorySubject,
    Reach,
    RecallingCharacter,
    SubjectKind,
)
from bot.chat.session import CONSENT_KEY, Claim, Consent, HistoryChange, StoredTurn, Turn
from bot.platforms.telegram.moved_chats import MovedChats
from bot.runtime.clock import SystemClock
from bot.storage import histories
from bot.storage.chat_settings import SqlChatSettings
from bot.storage.conversations import Conversations
from bot.storage.database import Database, T
from bot.storage.forgetting import PersonalData
from bot.storage.memories import SqlMemories
from bot.storage.statements import Query, StartUnit, Statement, Unit
from tests.samples import make_incoming
from tests.support.units import through

PEOPLE = tuple(Person(f"telegram:{number}", f"P{number}") for number in range(1, 4))
PRESETS = ("nora", "marlowe")
# Two channels of a server, a group with a topic, another group, and a private chat for two people.
_GUILD = ("discord:guild:7",)
_ADDRESSES = (
    (Address("discord", "11"), _GUILD),
    (Address("discord", "12"), _GUILD),
    (Address("telegram", "-5"), ()),
    (Address("telegram", "-5", "9"), ("telegram:-5",)),
    (Address("telegram", "-6"), ()),
    (Address("telegram", "1"), ()),
    (Address("telegram", "2"), ()),
)
_PRIVATE = frozenset({5, 6})
PLACES = range(len(_ADDRESSES))
_MOVE = Update.model_validate(
    {
        "update_id": 1,
        "message": {
            "message_id": 1,
            "date": 1,
            "chat": {"id": -5, "type": "group", "title": "G"},
            "migrate_to_chat_id": -1005,
        },
    }
)
_AT = datetime(2026, 11, 21, tzinfo=UTC)
# As units: on PostgreSQL, each function that uses SQLAlchemy opens a connection.
_DELETIONS = (
    Statement("DELETE FROM memory"),
    Statement("DELETE FROM turn"),
    Statement("DELETE FROM choice"),
    Statement("DELETE FROM conversation"),
    Statement("DELETE FROM forgotten"),
)
_NEW_CONVERSATION = Statement("INSERT INTO conversation (key, epoch, owner) VALUES (:key, 1, 'me')")
_NEW_TURN = Statement(
    """INSERT INTO turn (conversation, session, role, speaker_id, speaker_name, text, at)
    VALUES (:conversation, 1, 'user', :speaker_id, :speaker_name, :text, :at) RETURNING id"""
)
_STORED_MEMORIES = Statement("SELECT text, turns, is_derived FROM memory")

Step: TypeAlias = tuple[str, int, int, int, int]
"""The kind, person, place, number (a memory or variant), and query before the kill."""
KINDS = (
    *("say", "say", "say", "write", "write", "write of the place"),
    *("say of another", "say of another", "say of another"),
    *("consent", "consent", "widen", "widen", "pin", "retire", "correct", "forget", "as admin"),
    *("edit", "delete", "forget me", "forget channel", "move"),
)


class Killed(Exception):
    """The process died."""


class MortalDatabase(Database):
    """A database that raises `Killed` once, after `queries_left` queries of a unit."""

    def __init__(self, database: Database) -> None:
        super().__init__(database._pool, database.codec)
        self.queries_left: int | None = None

    @override
    async def run(self, start: StartUnit[T]) -> T:
        return await super().run(lambda: through(self._count, start()))

    @override
    async def run_readonly(self, start: StartUnit[T]) -> T:
        return await super().run_readonly(lambda: through(self._count, start()))

    def _count(self, query: Query) -> Query:
        if self.queries_left is not None:
            self.queries_left -= 1
            if self.queries_left < 0:
                self.queries_left = None
                raise Killed
        return query


@dataclass(eq=False)
class Fact:
    """A memory in the specification."""

    text: str
    author: str
    about: str
    place: int
    present: tuple[str, ...]
    turn: int | None
    """The source turn, or None if the memory was written by hand."""
    number: int = 0
    chosen: Audience | None = None
    """The audience that its author chose."""
    is_retired: bool = False


@dataclass(eq=False)
class MemoryWorld:
    database: MortalDatabase
    facts: list[Fact] = field(default_factory=list)
    turns: dict[int, tuple[int, str]] = field(default_factory=dict)
    """The place and the author of each active turn."""
    consents: dict[str, Consent] = field(default_factory=dict)
    has_moved: bool = False
    events: int = 0

    def __post_init__(self) -> None:
        clock = SystemClock()
        self.memories = SqlMemories(self.database, clock)
        self.settings = SqlChatSettings(self.database, clock)
        self.data = PersonalData(self.database, clock)
        self.conversations = Conversations(self.database, clock)

    async def reset(self) -> None:
        def unit() -> Unit[None]:
            for one in _DELETIONS:
                yield one.query()
            yield _NEW_CONVERSATION.query_many([{"key": self.key(one)} for one in PLACES])

        await self.database.run(unit)

    # --- the specification: who may hear what

    def consent(self, person: str) -> Consent:
        return self.consents.get(person, Consent.HERE)

    def may_recall(self, fact: Fact, place: int, preset: str, people: Sequence[str]) -> bool:
        """Return whether a character may recall a fact where these people are present."""
        if fact.is_retired or (fact.present and preset not in fact.present):
            return False
        return self._reaches(fact, place, is_about_present=fact.about in people)

    def may_see(self, fact: Fact, person: str, place: int) -> bool:
        """Return whether a person may see a fact in a list."""
        if fact.author == person:
            return True
        is_own_server = self.place(fact.place).server == self.place(place).server
        return self._reaches(fact, place, is_about_present=is_own_server)

    def _reaches(self, fact: Fact, place: int, *, is_about_present: bool) -> bool:
        if fact.place == place:
            return True
        if fact.chosen is not None:
            reach, key = fact.chosen.reach, fact.chosen.key
            if reach is Reach.EVERYWHERE:
                return is_about_present
            own = {self.place(place).channel}
            if place not in _PRIVATE and reach is Reach.SERVER:
                own = {self.place(place).server}
            is_same_kind = (reach is Reach.PRIVATE) == (place in _PRIVATE)
            return is_same_kind and key in own
        if fact.place in _PRIVATE or (place in _PRIVATE and not is_about_present):
            return False
        people = {fact.author, fact.about}.intersection(one.id for one in PEOPLE)
        if any(self.consent(one) is Consent.HERE for one in people):
            return False
        if any(self.consent(one) is Consent.SERVER for one in people):
            return self.place(fact.place).server == self.place(place).server
        return is_about_present

    # --- what happens

    async def take(self, step: Step) -> None:
        """Execute a step, and repeat it if the process dies."""
        kind, who, where, number, kill_at = step
        self.events += 1
        self.database.queries_left = kill_at if kill_at < 12 else None
        try:
            await self._take(kind, PEOPLE[who].id, where, number)
        except Killed:
            await self._take(kind, PEOPLE[who].id, where, number)
        self.database.queries_left = None

    async def _take(self, kind: str, person: str, where: int, number: int) -> None:
        other = next(one.id for one in PEOPLE if one.id != person)
        match kind:
            case "say" | "say of another":
                await self._add(person, where, number, person if kind == "say" else other, True)
            case "write" | "write of the place":
                about = person if kind == "write" else self.place(where).server
                await self._add(person, where, number, about, False)
            case "consent":
                await self._choose(person, list(Consent)[number % 4])
            case "forget me":
                await self._forget_person(person)
            case "forget channel":
                await self.conversations.forget(Claim(self.key(where), 1, "me"))
                self._drop(where=where)
                self.turns = {id_: one for id_, one in self.turns.items() if one[0] != where}
            case "edit" | "delete":
                await self._change_turn(kind, number)
            case "move":
                self.has_moved = True
            case _:
                if self.facts:
                    fact = self.facts[number % len(self.facts)]
                    await self._change(kind, fact, person, where, number)

    async def _add(
        self, person: str, where: int, number: int, about: str, is_derived: bool
    ) -> None:
        present = ((), PRESETS, PRESETS[:1], PRESETS[1:])[number % 4]
        text = hashlib.sha256(str(self.events).encode()).hexdigest()[:20]
        is_person = about in {one.id for one in PEOPLE}
        subject = MemorySubject(SubjectKind.PERSON if is_person else SubjectKind.PLACE, about, "x")
        new = Memory(subject, text, person, self.place(where), witnesses=present, since=1.0)
        new = replace(new, is_derived=is_derived, conversation=self.key(where))
        sources = [await self._store_turn(person, where, text)] if is_derived else []
        is_off = Consent.OFF in {self.consent(person), self.consent(about)}
        added = await self.memories.add(new, sources)
        assert (added is None) == is_off
        if added is not None:
            turn_id = sources[0].id if sources else None
            self.facts.append(Fact(text, person, about, where, present, turn_id, added.id))

    async def _store_turn(self, person: str, where: int, text: str) -> StoredTurn:
        said = Turn("user", text, Person(person, "x"), _AT)
        at, conversation = _AT.timestamp(), self.key(where)

        def unit() -> Unit[int]:
            who = {"speaker_id": person, "speaker_name": "x"}
            row = {"conversation": conversation, "text": text, "at": at, **who}
            [[added]] = yield _NEW_TURN.query_alone(row)
            return int(added)

        number = await Database.run(self.database, unit)  # never killed
        self.turns[number] = where, person
        return StoredTurn(number, said)

    async def _choose(self, person: str, chosen: Consent) -> None:
        await self.settings.set(person, CONSENT_KEY, chosen, person)
        await self.memories.apply_consent_to_audiences(person)
        if chosen is Consent.OFF:
            await self._forget_person(person)
        self.consents[person] = chosen

    async def _forget_person(self, person: str) -> None:
        for where in PLACES:
            claim = Claim(self.key(where), 1, "me")
            gone = await self.conversations.find_turns_by_person(claim, person)
            change = HistoryChange(deleted_ids=gone)
            await self.database.run(partial(histories.apply_change, claim.conversation, change, 1))
            self._drop(turns=gone)
            self.turns = {id_: one for id_, one in self.turns.items() if id_ not in gone}
        await self.data.forget_outside_histories(person)
        self.facts = [one for one in self.facts if person not in {one.author, one.about}]

    async def _change_turn(self, kind: str, number: int) -> None:
        if not self.turns:
            return
        changed = sorted(self.turns)[number % len(self.turns)]
        key = self.key(self.turns[changed][0])
        change = HistoryChange({changed: "other"} if kind == "edit" else {})
        change = change if kind == "edit" else HistoryChange(deleted_ids=[changed])
        await self.database.run(lambda: histories.apply_change(key, change, 1))
        self._drop(turns=[changed])
        if kind == "delete":
            del self.turns[changed]

    async def _change(self, kind: str, fact: Fact, person: str, where: int, number: int) -> None:
        reader = MemoryReader(person, self.place(where), is_admin=kind == "as admin")
        server = self.place(fact.place).server
        is_concerned = person in {fact.author, fact.about}
        is_admin = kind == "as admin" and self.place(where).server == server
        may = self.may_see(fact, person, where) and (is_concerned or is_admin)
        match kind:
            case "widen":
                reach = (None, Reach.CHANNEL, Reach.SERVER, Reach.EVERYWHERE)[number % 4]
                audience = self.place(where).audience_with_reach(reach) if reach else None
                found = await self.memories.widen_audience(fact.number, reader, audience)
                may = may and fact.author == person
                fact.chosen = audience if may else fact.chosen
            case "pin":
                found = await self.memories.change(fact.number, reader, is_pinned=number % 2 == 0)
            case "retire":
                found = await self.memories.change(fact.number, reader, state=MemoryState.RETIRED)
                fact.is_retired = fact.is_retired or may
            case "correct":
                text = hashlib.sha256(f"correction {self.events}".encode()).hexdigest()[:20]
                found = await self.memories.correct_text(fact.number, reader, text, None)
                if found is not None:
                    own = self.place(fact.place).narrowest_audience
                    chosen = fact.chosen if fact.author == person else own
                    fact.text, fact.author, fact.turn = text, person, None
                    fact.number, fact.chosen = found.id, chosen
            case _:
                found = await self.memories.forget(fact.number, reader)
                self.facts = [one for one in self.facts if one is not fact or not may]
        assert (found is not None) == may

    def _drop(self, turns: Sequence[int] = (), where: int | None = None) -> None:
        self.facts = [one for one in self.facts if one.turn not in turns and one.place != where]

    # --- places, as events report them

    def place(self, number: int) -> MemoryPlace:
        message = self._message(number)
        is_private = number in _PRIVATE
        return MemoryPlace.from_event(message.address, message.scopes, is_private=is_private)

    def key(self, number: int) -> str:
        return self._message(number).address.conversation

    def _message(self, number: int) -> IncomingMessage:
        address, wider = _ADDRESSES[number]
        message = replace(make_incoming(), address=address, scopes=(address.channel, *wider))
        if not self.has_moved or address.chat != "-5":
            return message
        chats = MovedChats()
        chats.record_moves([_MOVE])
        moved = replace(message, address=replace(address, chat="-1005"))
        [first] = chats.map_to_first_chats([moved])
        assert isinstance(first, IncomingMessage)
        return first

    # --- the comparison

    async def check(self, rng: Random, probes: int) -> None:
        """Compare the memories that characters recall and people see with the specification."""
        for _ in range(probes):
            where, preset, asker = rng.choice(PLACES), rng.choice(PRESETS), rng.choice(PEOPLE).id
            others = tuple(one.id for one in PEOPLE if rng.random() < 0.5)
            place = self.place(where)
            found = await self.memories.recall(RecallingCharacter(place, preset, asker, others))
            people = {*others, asker, preset, place.channel, place.server}
            expected = [
                one.text for one in self.facts if self.may_recall(one, where, preset, [*people])
            ]
            assert sorted(one.text for one in found.memories) == sorted(expected)
            seen = await self.memories.list_visible(MemoryReader(asker, place))
            expected = [one.text for one in self.facts if self.may_see(one, asker, where)]
            assert sorted(one.text for one in seen) == sorted(expected)

    async def check_sources(self) -> None:
        """Check that only the expected memories are stored, and derived ones have source turns."""
        rows = await self.database.fetch(_STORED_MEMORIES)
        assert sorted(text for text, _, _ in rows) == sorted(one.text for one in self.facts)
        known = {f"[{number}]" for number in self.turns}
        assert all(turns in known for _, turns, is_derived in rows if is_derived)


async def run_schedule(database: MortalDatabase, steps: Sequence[Step], seed: int) -> None:
    """Run a schedule, with one random check after each step and several at the end."""
    world, rng = MemoryWorld(database), Random(seed)
    await world.reset()
    for step in steps:
        await world.take(step)
        await world.check(rng, 1)
    await world.check(rng, 4)
    await world.check_sources()


def random_schedule(rng: Random) -> list[Step]:
    """Return random steps, a third of them killed; some people give consent first."""
    consenting = [
        ("consent", who, 0, rng.choice((2, 3)), 35)
        for who in range(len(PEOPLE))
        if rng.random() < 0.6
    ]
    steps = [
        (
            rng.choice(KINDS),
            rng.randrange(len(PEOPLE)),
            rng.choice(PLACES),
            rng.randrange(16),
            rng.randrange(36),
        )
        for _ in range(rng.randrange(1, 16))
    ]
    return consenting + steps

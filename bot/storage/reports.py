"""What pages of the console show: answers, channels, queues, and what processes tell of themselves.

Answers are searched by columns in the database, by content page by page. A receipt does not name
the turn of its answer, because a version of an answer that is shown again changes its row. The turn
is found by its preset, its time and its text.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, Connection, Row, bindparam, case, func, or_, select

from bot.chat.answers import AnswerSearch, FoundAnswers, StoredAnswer
from bot.chat.drafts import Scene, recorded_scene
from bot.chat.incoming import Person
from bot.chat.operation import (
    DeliveredPart,
    HeldLease,
    KnownChannel,
    KnownSession,
    MadeSetting,
    MessageTrace,
    ProcessReport,
    QueueState,
)
from bot.chat.prompt import FinishReason
from bot.chat.receipt import Receipt
from bot.chat.session import Turn
from bot.errors import StoreError
from bot.ports import Clock, SharedValues
from bot.storage.codec import TextCodec
from bot.storage.database import Database
from bot.storage.receipts import decode_receipt
from bot.storage.rows import decode_all
from bot.storage.statements import clock_at
from bot.storage.tables import (
    choice,
    conversation,
    has_content,
    inbox,
    is_job,
    is_ready,
    is_unsent,
    is_waiting,
    lane,
    outbox,
    receipt,
    role_lease,
    turn,
)
from bot.storage.turn_rows import TURN_COLUMNS, to_turn
from bot.value_class import value_class

_ROWS_PER_READ = 500
_MAX_ROWS_SEARCHED = 4000
"""Decoding so many receipts takes about a third of a second."""
_SECONDS_TO_FINISH = 600.0
"""How long after an answer's last word its receipt may be stored: others answer meanwhile."""
_MAX_TURNS = 1000
"""Before an answer; a prompt holds no more than a part of them."""

_COLUMNS = select(receipt.c.id, receipt.c.conversation, receipt.c.at, receipt.c.content)
_BY_ID = _COLUMNS.where(receipt.c.id == bindparam("number"), has_content)
_BEFORE = (
    select(receipt.c.id)
    .where(
        receipt.c.conversation == bindparam("of_conversation"),
        receipt.c.id < bindparam("number"),
        receipt.c.preset == bindparam("of_preset"),
        has_content,
    )
    .order_by(receipt.c.id.desc())
    .limit(1)
)
# A row keeps when its last attempt was begun, which is the one that was sent.
_DELIVERY = select(
    func.max(outbox.c.started_at).label("sent_at"),
    func.count().filter(is_unsent).label("unsent"),
).where(
    outbox.c.turn
    == select(receipt.c.turn).where(receipt.c.id == bindparam("number")).scalar_subquery()
)
_ANSWERS = (
    select(*TURN_COLUMNS, turn.c.session, turn.c.parent)
    .where(
        turn.c.conversation == bindparam("of_conversation"),
        turn.c.preset == bindparam("of_preset"),
        turn.c.role == "assistant",
        turn.c.at.between(bindparam("since"), bindparam("until")),
    )
    .order_by(turn.c.at.desc(), turn.c.id.desc())
)
_EARLIER = (
    select(*TURN_COLUMNS, turn.c.id, turn.c.parent)
    .where(
        turn.c.conversation == bindparam("of_conversation"),
        turn.c.session == bindparam("of_session"),
        turn.c.id <= bindparam("newest"),
    )
    .order_by(turn.c.id.desc())
    .limit(_MAX_TURNS)
)


class SqlAnswerLog:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def search(self, asked: AnswerSearch, limit: int) -> FoundAnswers:
        """Return at most so many answers, newest first.

        What stands in no column is looked for in some thousand receipts at a time; then fewer may
        be found, with a `next_before` to go on.
        """
        found: list[StoredAnswer] = []
        before = asked.before
        for _ in range(_MAX_ROWS_SEARCHED // _ROWS_PER_READ):
            size = _ROWS_PER_READ if _looks_into_content(asked) else limit + 1
            rows = await self._rows(asked, before, size)
            found += await asyncio.to_thread(_matching, rows, asked, limit + 1 - len(found))
            if len(found) > limit:
                return FoundAnswers(found[:limit], found[limit - 1].number)
            if len(rows) < size:
                return FoundAnswers(found, None)
            before = rows[-1].id
        return FoundAnswers(found, before)

    async def find(self, number: int) -> StoredAnswer | None:
        """Return an answer; None if it does not exist or its text was deleted."""
        asked = {"number": number}
        row = await self._database.read(lambda c: c.execute(_BY_ID, asked).one_or_none())
        return next(iter(decode_all("receipt", [row] if row else [], _stored_answer)), None)

    async def find_before(self, answer: StoredAnswer) -> int | None:
        """Return the number of the same preset's answer before this one in its conversation."""
        asked = {
            "number": answer.number,
            "of_conversation": answer.conversation,
            "of_preset": answer.receipt.preset,
        }
        return await self._database.read(lambda c: c.execute(_BEFORE, asked).scalar_one_or_none())

    async def find_delivery(self, answer: StoredAnswer) -> float | None:
        """Return when the last message of an answer was sent, in Unix seconds.

        None: not all of it was sent yet, or that is not stored any more. Where several characters
        answered the same message, their messages count as one answer.
        """
        asked = {"number": answer.number}
        row = await self._database.read(lambda c: c.execute(_DELIVERY, asked).one())
        return None if row.unsent else row.sent_at

    async def find_scene(self, answer: StoredAnswer) -> Scene | None:
        """Return what was answered, and what was said before; None: it is not stored any more.

        What the message quoted and which files it had is not stored.
        """
        one, conversation = answer.receipt, answer.conversation
        asked = {
            "of_conversation": conversation,
            "of_preset": one.preset,
            "since": answer.at - _SECONDS_TO_FINISH,
            "until": answer.at,
        }
        rows = await self._database.read(lambda c: c.execute(_ANSWERS, asked).all())
        row = next((each for each in rows if each.text == one.answer), None)
        if row is None or row.parent is None:
            return None
        before = {
            "of_conversation": conversation,
            "of_session": row.session,
            "newest": row.parent,
        }
        earlier = await self._database.read(lambda c: c.execute(_EARLIER, before).all())
        turns = _ancestors(earlier, row.parent)
        return recorded_scene(conversation, row.session, turns, one.scopes, one.preset)

    async def _rows(
        self, asked: AnswerSearch, before: int | None, size: int
    ) -> Sequence[Row[*tuple[Any, ...]]]:
        statement = _COLUMNS.where(has_content, *_conditions(asked))
        if before is not None:
            statement = statement.where(receipt.c.id < before)
        statement = statement.order_by(receipt.c.id.desc()).limit(size)
        return await self._database.read(lambda c: c.execute(statement).all())


def _conditions(asked: AnswerSearch) -> Iterator[ColumnElement[bool]]:
    equal = {"conversation": asked.conversation, "preset": asked.preset, "person": asked.person}
    for name, value in equal.items():
        if value:
            yield receipt.c[name] == value
    if asked.model:
        yield or_(receipt.c.model == asked.model, receipt.c.provider == asked.model)
    if asked.min_cost is not None:
        yield receipt.c.cost >= asked.min_cost


def _looks_into_content(asked: AnswerSearch) -> bool:
    return bool(asked.text or asked.cut_off or asked.left_out or asked.min_seconds is not None)


def _matching(
    rows: Sequence[Row[*tuple[Any, ...]]], asked: AnswerSearch, limit: int
) -> list[StoredAnswer]:
    found: list[StoredAnswer] = []
    for row in rows:
        if len(found) == limit:
            break
        answers = decode_all("receipt", [row], _stored_answer)
        found += [one for one in answers if _matches(one.receipt, asked)]
    return found


def _matches(one: Receipt, asked: AnswerSearch) -> bool:
    if asked.cut_off and one.reason is FinishReason.STOP:
        return False
    if asked.left_out and not one.dropped:
        return False
    seconds = one.timings.queued_seconds + one.timings.seconds
    if asked.min_seconds is not None and seconds < asked.min_seconds:
        return False
    wanted = asked.text.casefold()
    asked_for = (each.content for each in reversed(one.prompt.messages) if each.role == "user")
    return wanted in one.answer.casefold() or wanted in next(asked_for, "").casefold()


def _stored_answer(row: Row[*tuple[Any, ...]]) -> StoredAnswer:
    return StoredAnswer(row.id, row.conversation, row.at, decode_receipt(row.content))


def _ancestors(rows: Sequence[Row[*tuple[Any, ...]]], newest: int) -> list[Turn]:
    """Return the turns from the first one that follow each other up to one, of rows newest first.

    What follows a turn that was deleted is followed up no further.
    """
    found: list[Turn] = []
    wanted: int | None = newest
    for row in rows:
        if row.id == wanted:
            found += decode_all("turn", [row], to_turn)
            wanted = row.parent
    return found[::-1]


_IS_HERE = turn.c.conversation == bindparam("of_conversation")
_SESSIONS = (
    select(turn.c.session, func.count(), func.min(turn.c.at), func.max(turn.c.at))
    .where(_IS_HERE, turn.c.active)
    .group_by(turn.c.session)
    .order_by(turn.c.session.desc())
    .limit(bindparam("most"))
)
_NEWEST_OF_PEOPLE = (
    select(func.max(turn.c.id))
    .where(_IS_HERE, turn.c.speaker_id.is_not(None))
    .group_by(turn.c.speaker_id)
)
_PEOPLE = (
    select(turn.c.speaker_id, turn.c.speaker_name)
    .where(turn.c.id.in_(_NEWEST_OF_PEOPLE))
    .order_by(turn.c.id.desc())
    .limit(bindparam("most"))
)
_TURNS = select(*TURN_COLUMNS, turn.c.session).where(_IS_HERE, turn.c.active).order_by(turn.c.id)


class SqlChannelHistories:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def sessions(self, conversation: str, limit: int) -> Sequence[KnownSession]:
        """Return the sessions of a conversation, the newest first."""
        asked = {"of_conversation": conversation, "most": limit}
        rows = await self._database.read(lambda c: c.execute(_SESSIONS, asked).all())
        return [KnownSession(*row) for row in rows]

    async def people(self, conversation: str, limit: int) -> Sequence[Person]:
        """Return who has spoken there, under the newest name; who spoke last is the first."""
        asked = {"of_conversation": conversation, "most": limit}
        rows = await self._database.read(lambda c: c.execute(_PEOPLE, asked).all())
        return [Person(row.speaker_id, row.speaker_name) for row in rows]

    async def turns(self, conversation: str) -> Sequence[tuple[int, Turn]]:
        """Return everything that was said, oldest first, each with the number of its session."""
        asked = {"of_conversation": conversation}
        rows = await self._database.read(lambda c: c.execute(_TURNS, asked).all())
        return decode_all("turn", rows, lambda row: (row.session, to_turn(row)))


_LANES = select(func.count()).select_from(lane).where(is_waiting)
_UNSENT = select(func.count()).select_from(outbox).where(is_unsent)
_PART = (outbox.c.part, outbox.c.op, outbox.c.state, outbox.c.attempts, outbox.c.error)
_LEASES = (
    select(role_lease.c.role, role_lease.c.owner, role_lease.c.lease_until)
    .where(is_job)
    .order_by(role_lease.c.role)
)
_SETTINGS = (
    select(*(choice.c.scope, choice.c.key, choice.c.value, choice.c.chosen_by, choice.c.chosen_at))
    .where(~choice.c.key.startswith("persona"))  # what people say of themselves is theirs
    .order_by(choice.c.scope, choice.c.key)
)
_BY_CHANNEL = (
    select(
        receipt.c.conversation,
        func.count().label("answers"),
        func.max(receipt.c.id).label("newest"),
    )
    .group_by(receipt.c.conversation)
    .subquery()
)
_CHANNELS = (
    select(
        *(_BY_CHANNEL.c.conversation, _BY_CHANNEL.c.answers, _BY_CHANNEL.c.newest),
        *(receipt.c.at, receipt.c.preset),
    )
    .join(receipt, receipt.c.id == _BY_CHANNEL.c.newest)
    .order_by(_BY_CHANNEL.c.newest.desc())
)


class SqlServiceState:
    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def queues(self) -> QueueState:
        """Return how much is waiting."""
        now = clock_at(self._database.dialect, self._clock.now())
        is_held = case((conversation.c.lease_until > now, 1), else_=0)
        ready = select(
            func.count(), func.min(conversation.c.ready_since), func.coalesce(func.sum(is_held), 0)
        ).where(is_ready)
        waiting, oldest, held = await self._database.read(lambda c: c.execute(ready).one())
        lanes = await self._database.read(lambda c: c.execute(_LANES).scalar_one())
        unsent = await self._database.read(lambda c: c.execute(_UNSENT).scalar_one())
        return QueueState(waiting, oldest, int(held), lanes, unsent)

    async def role_leases(self) -> Sequence[HeldLease]:
        """Return who does what only one process may do, by the role."""
        rows = await self._database.read(lambda c: c.execute(_LEASES).all())
        return [HeldLease(*row) for row in rows]

    async def trace(self, turn: str) -> MessageTrace:
        """Return what is stored of the processing of a message, by the name of its turn."""
        source, _, external_key = turn.partition(":")
        platform, _, bot_id = source.partition("@")
        message = select(inbox.c.received_at, inbox.c.state, inbox.c.crashes).where(
            inbox.c.platform == platform,
            inbox.c.bot_id == bot_id,
            inbox.c.external_key == external_key,
        )
        parts = select(*_PART).where(outbox.c.turn == turn).order_by(outbox.c.part, outbox.c.id)
        row = await self._database.read(lambda c: c.execute(message).one_or_none())
        rows = await self._database.read(lambda c: c.execute(parts).all())
        delivered = [DeliveredPart(*each) for each in rows]
        if row is None:
            return MessageTrace(None, True, 0, delivered)
        return MessageTrace(row.received_at, row.state == "done", row.crashes, delivered)

    async def channels(self, limit: int) -> Sequence[KnownChannel]:
        """Return the channels with answers, those with the newest answers first."""
        newest = _CHANNELS.limit(limit)
        rows = await self._database.read(lambda c: c.execute(newest).all())
        return [
            KnownChannel(row.conversation, row.answers, row.newest, row.at, row.preset)
            for row in rows
        ]

    async def chat_settings(self) -> Sequence[MadeSetting]:
        """Return the settings made in chats by scope, without what people say of themselves."""
        rows = await self._database.read(lambda c: c.execute(_SETTINGS).all())
        return [MadeSetting(*row) for row in rows]


_OLDEST_CONVERSATION = select(func.min(conversation.c.ready_since)).where(is_ready)
_OLDEST_LANE = select(func.min(lane.c.due_at)).where(is_waiting)


@value_class
class QueueAges:
    """Seconds; 0 where nothing waits."""

    conversations: float
    """Since the oldest unanswered message was received."""
    lanes: float
    """Since the oldest unsent row was due."""


class SqlQueueAges:
    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def read(self) -> QueueAges:
        """Read them; raises `StoreError`."""
        here = self._clock.now()

        def unit(connection: Connection) -> QueueAges:
            now = connection.execute(select(clock_at(connection.dialect.name, here))).scalar_one()
            ready = connection.execute(_OLDEST_CONVERSATION).scalar_one()
            due = connection.execute(_OLDEST_LANE).scalar_one()
            return QueueAges(
                0.0 if ready is None else max(0.0, now - ready),
                0.0 if due is None else max(0.0, now - due),
            )

        return await self._database.read(unit)


_MAX_BYTES = 2**20
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(ProcessReport).decode


class SharedReports:
    """Reports by the name that a process holds leases under; any of them may be lost."""

    def __init__(self, values: SharedValues, codec: TextCodec) -> None:
        """Take where they are kept, and what encodes the texts of the database."""
        self._values = values
        self._codec = codec

    def keep(self, owner: str, report: ProcessReport) -> None:
        """Share what a process tells; what it told before is replaced."""
        value = self._codec.encode_bytes(_encode(report))
        if value is not None and len(value) <= _MAX_BYTES:
            self._values.keep(_key(owner), value)

    async def find(self, owners: Sequence[str]) -> Mapping[str, ProcessReport]:
        """Return what these processes told last, as far as that is known."""
        found: dict[str, ProcessReport] = {}
        for owner in owners:
            report = await self._find(owner)
            if report is not None:
                found[owner] = report
        return found

    async def _find(self, owner: str) -> ProcessReport | None:
        value = await self._values.find(_key(owner))
        if value is None:
            return None
        try:
            packed = self._codec.decode_bytes(value)
            return None if packed is None else _decode(packed)
        except (msgspec.DecodeError, StoreError):  # of another version of Troupe, or another key
            return None


def _key(owner: str) -> str:
    return f"report:{owner}"

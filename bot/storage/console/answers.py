"""Stored answers in SQL: searched by columns in the database, by content page by page.

A receipt does not name the turn of its answer, because a version of an answer that is shown again
changes its row. The turn is found by its preset, its time and its text.
"""

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Row, bindparam, func, or_, select
from typing_extensions import override

from bot.chat.console.answers import AnswerSearch, FoundAnswers, StoredAnswer
from bot.chat.console.scene import Scene, recorded_scene
from bot.chat.prompt import FinishReason
from bot.chat.receipt import Receipt
from bot.chat.session import Turn
from bot.ports import AnswerLog
from bot.storage.decoding import decode_all
from bot.storage.sql.database import Database
from bot.storage.sql.receipts import decode_receipt
from bot.storage.sql.tables import has_content, is_unsent, outbox, receipt, turn
from bot.storage.units.turn_rows import TURN_COLUMNS, to_turn

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


class SqlAnswerLog(AnswerLog):
    def __init__(self, database: Database) -> None:
        self._database = database

    @override
    async def search(self, asked: AnswerSearch, limit: int) -> FoundAnswers:
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

    @override
    async def find(self, number: int) -> StoredAnswer | None:
        asked = {"number": number}
        row = await self._database.read(lambda c: c.execute(_BY_ID, asked).one_or_none())
        return next(iter(decode_all("receipt", [row] if row else [], _stored_answer)), None)

    @override
    async def find_before(self, answer: StoredAnswer) -> int | None:
        asked = {
            "number": answer.number,
            "of_conversation": answer.conversation,
            "of_preset": answer.receipt.preset,
        }
        return await self._database.read(lambda c: c.execute(_BEFORE, asked).scalar_one_or_none())

    @override
    async def find_delivery(self, answer: StoredAnswer) -> float | None:
        asked = {"number": answer.number}
        row = await self._database.read(lambda c: c.execute(_DELIVERY, asked).one())
        return None if row.unsent else row.sent_at

    @override
    async def find_scene(self, answer: StoredAnswer) -> Scene | None:
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

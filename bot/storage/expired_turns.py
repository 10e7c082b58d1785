"""Delete the turns of conversations that are older than an installation keeps histories."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Row, bindparam, delete, select, update

from bot.chat.incoming import address_of
from bot.ports import Clock
from bot.storage.sql.database import Database
from bot.storage.sql.tables import conversation, sent_message, summary, turn

_DAY = 86_400.0
_ROWS_PER_PAGE = 500
"""Few enough that no worker waits long for the transaction that deletes them."""

_PAGE = (
    select(turn.c.id, turn.c.conversation, turn.c.session, turn.c.at, turn.c.sent_as)
    .where(turn.c.id > bindparam("last"))
    .order_by(turn.c.id)
    .limit(_ROWS_PER_PAGE)
)
_KEY = conversation.c.key == bindparam("of")
_EXISTS = select(conversation.c.key).where(_KEY)
# What processes know of the history holds under the next epoch only: they read it again.
_SKIP_EPOCH = (
    update(conversation)
    .where(_KEY, conversation.c.ready_since.is_(None))
    .values(epoch=conversation.c.epoch + 1)
)
_DELETE_TURNS = delete(turn).where(turn.c.id.in_(bindparam("ids", expanding=True)))
_DELETE_SUMMARIES = delete(summary).where(
    summary.c.conversation == bindparam("of"),
    summary.c.session.in_(bindparam("sessions", expanding=True)),
)
_DELETE_SENT = delete(sent_message).where(
    sent_message.c.conversation == bindparam("channel"),
    sent_message.c.turn.in_(bindparam("names", expanding=True)),
)


def kept_since(clock: Clock, days: float | None) -> float:
    """Return from which moment on what is said is kept, in Unix seconds.

    That is 00:00 UTC of the day so many days ago; where it is kept for ever (None), -inf.
    """
    return -math.inf if days is None else _begin_of_day(clock.now(), days)


def _begin_of_day(now: float, days_before: float) -> float:
    return (now - days_before * _DAY) // _DAY * _DAY


async def delete_expired_turns(database: Database, clock: Clock, days: float) -> int:
    """Delete what was said more than so many days before today (UTC); return how many turns.

    A summary that covers a deleted turn is deleted with it, so histories are cut once a day. Where
    a message is being answered, it is done the next time.

    Raises:
        StoreError: the database failed.
    """
    moment = _begin_of_day(await database.now(clock), days)
    deleted = last = 0
    while True:
        asked = {"last": last}
        rows = await database.read(lambda c, asked=asked: c.execute(_PAGE, asked).all())  # type: ignore[misc]
        for key, expired in _by_conversation(rows, moment).items():
            deleted += await database.write(
                lambda c, key=key, expired=expired: _delete(c, key, expired)  # type: ignore[misc]
            )
        # Ids grow with time: what follows on a row that is young is younger.
        if not rows or rows[-1].at >= moment:
            return deleted
        last = rows[-1].id


def _by_conversation(rows: Sequence[Row[Any]], moment: float) -> Mapping[str, list[Row[Any]]]:
    found: dict[str, list[Row[Any]]] = {}
    for row in rows:
        if row.at < moment:
            found.setdefault(row.conversation, []).append(row)
    return found


def _delete(connection: Connection, key: str, expired: Sequence[Row[Any]]) -> int:
    is_idle = connection.execute(_SKIP_EPOCH, {"of": key}).rowcount > 0
    if not is_idle and connection.execute(_EXISTS, {"of": key}).first() is not None:
        return 0
    sessions = {row.session for row in expired}
    connection.execute(_DELETE_SUMMARIES, {"of": key, "sessions": list(sessions)})
    parts = (row.sent_as or "" for row in expired)
    names = {name.rpartition("/")[0] for one in parts for name in one.split("\n") if name}
    channel = address_of(key).channel
    connection.execute(_DELETE_SENT, {"channel": channel, "names": list(names)})
    return connection.execute(_DELETE_TURNS, {"ids": [row.id for row in expired]}).rowcount

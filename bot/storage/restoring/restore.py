"""Prepare a restored database, before a process works on it.

It is older than what people have seen: since the backup, messages were answered, and others were
forgotten. Neither may happen again, or come back.
"""

from collections.abc import Sequence

from sqlalchemy import (
    ColumnElement,
    Connection,
    Delete,
    bindparam,
    delete,
    func,
    insert,
    or_,
    select,
    update,
)

from bot.chat.incoming import address_of
from bot.chat.outgoing import OutboxState
from bot.frozen_dataclass import frozen_dataclass
from bot.storage.engine.statements import Unit
from bot.storage.restoring.tombstones import Tombstone
from bot.storage.sql.database import Database
from bot.storage.sql.tables import (
    choice,
    conversation,
    cursor,
    forgotten_message,
    inbox,
    is_dead,
    is_unanswered,
    is_unsent,
    lane,
    message_note,
    outbox,
    restore,
    sent_message,
    turn,
)
from bot.storage.units import changes
from bot.storage.units.dialects import clock_at

_UNKNOWN = (
    update(outbox)
    .where(is_unsent)
    .values(state=OutboxState.UNKNOWN, owner=None, attempts=0, not_before=0.0)
)
_HAS_UNSENT = update(lane).where(lane.c.key.in_(select(outbox.c.lane).where(is_unsent)))
_RELEASE = update(conversation).values(owner=None, lease_until=0.0)
# Without its attempts a message has no parts that were opened, which would be deleted.
_FORGET_ATTEMPTS = update(inbox).where(is_unanswered).values(attempt=0, crashes=0, own_crashes=0)
_IS_DONE_SINCE = inbox.c.kind.in_(["pressed", "joined", "edited"])
_FINISH_OTHERS = (
    update(inbox).where(is_unanswered, _IS_DONE_SINCE).values(state="done", payload=None)
)
_END_SESSIONS = delete(cursor).where(cursor.c.name.like("% session"))
_OPEN = select(func.count()).select_from(inbox).where(is_unanswered)
_TURNS = select(turn.c.id).where(
    turn.c.conversation == bindparam("of"), turn.c.at <= bindparam("until")
)
_FORGET_SENT = delete(sent_message).where(sent_message.c.conversation == bindparam("of"))
_FORGET_RECEIVED = (
    update(inbox)
    .where(
        inbox.c.conversation == bindparam("of"),
        inbox.c.state != "done",
        inbox.c.received_at <= bindparam("until"),
    )
    .values(state="done", payload=None)
)
_FORGET_UNSENT = (
    update(outbox)
    .where(outbox.c.lane == bindparam("of_lane"), or_(is_unsent, is_dead))
    .where(func.coalesce(outbox.c.thread, "") == bindparam("of_thread"))
    .values(
        state=OutboxState.DEAD,
        error=None,
        text="",
        **dict.fromkeys(("file_name", "file_text", "face", "buttons", "owner")),
    )
)


@frozen_dataclass
class RestoreReport:
    """What was found in the backup."""

    unknown: int
    """Messages that were not known to be sent: they are looked for on the platforms."""
    unanswered: int
    """Messages that were not answered: they become context."""
    tombstones: int


async def prepare_restored(
    database: Database, tombstones: Sequence[Tombstone], answered_until: float, now: float
) -> RestoreReport:
    """Prepare a database that was restored; may be repeated until a process works on it.

    Args:
        database: the restored one, on which no process works.
        tombstones: all that was forgotten, also before the backup.
        answered_until: until when processes answered on the database that was lost, in Unix
            seconds: what people wrote before has been answered, as far as anybody knows.
        now: in Unix seconds.
    """

    def unit(connection: Connection) -> RestoreReport:
        moment = clock_at(connection.dialect.name, now)
        started = func.coalesce(outbox.c.started_at, moment)
        connection.execute(_HAS_UNSENT.values(due_at=moment))
        unknown = connection.execute(_UNKNOWN.values(started_at=started)).rowcount
        connection.execute(_RELEASE)
        connection.execute(_FORGET_ATTEMPTS)
        connection.execute(_FINISH_OTHERS)
        connection.execute(_END_SESSIONS)
        connection.execute(delete(forgotten_message))
        connection.execute(delete(message_note))  # which quote what was forgotten since
        connection.execute(insert(restore).values(at=now, answered_until=answered_until))
        unanswered = connection.execute(_OPEN).scalar_one()
        return RestoreReport(unknown, unanswered, len(tombstones))

    report = await database.write(unit)
    for one in tombstones:
        await _forget_again(database, one, now)
    await database.truncate_log()
    return report


async def _forget_again(database: Database, tombstone: Tombstone, now: float) -> None:
    until, key = tombstone.at, tombstone.conversation
    if tombstone.person is not None:
        person = tombstone.person
        described = or_(
            choice.c.scope == person, choice.c.scope.startswith(f"{person}@", autoescape=True)
        )
        gone_here = _delete_descriptions(described, until)
        await database.write(lambda c: c.execute(gone_here).rowcount)
    if key is None:
        return
    found = await database.read(
        lambda c: c.execute(_TURNS, {"of": key, "until": until}).scalars().all()
    )
    is_whole = tombstone.is_of_whole_conversation
    gone = found if is_whole else set(found).intersection(tombstone.turns)

    def forget() -> Unit[None]:
        yield from changes.apply(key, changes.ChangedRows({}, {}, (), (), sorted(gone)), now)

    await database.run(forget)
    names = [""] if is_whole else tombstone.messages
    rows = [{"conversation": key, "message_id": name, "at": until} for name in names]

    def unit(connection: Connection) -> None:
        if rows:
            connection.execute(insert(forgotten_message), rows)
        if is_whole:
            address = address_of(key)
            of = {"of": key, "until": until}
            connection.execute(_FORGET_SENT, {"of": key})
            connection.execute(_FORGET_RECEIVED, of)
            connection.execute(
                _FORGET_UNSENT, {"of_lane": address.lane, "of_thread": address.thread or ""}
            )
            told_here = choice.c.conversation == key
            connection.execute(_delete_descriptions(told_here, until))

    await database.write(unit)


def _delete_descriptions(which: ColumnElement[bool], until: float) -> Delete:
    """Delete what people said of themselves up to a moment."""
    return delete(choice).where(
        choice.c.key.startswith("persona"), choice.c.chosen_at <= until, which
    )

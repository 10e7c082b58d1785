"""Forget what has done its service: what was answered, what was sent, what was sent for it."""

from sqlalchemy import Select, Table, delete, exists, select

from bot.chat.outgoing import OutboxState
from bot.ports import Clock
from bot.storage.sql.database import Database
from bot.storage.sql.tables import inbox, outbox, receipt

_DAY = 86_400.0
# As long as a platform may deliver a message again; a row is what a repetition is recognised by.
_INBOX_SECONDS = 14 * _DAY
_OUTBOX_SECONDS = 7 * _DAY
_ENDED = (OutboxState.SENT, OutboxState.DEAD)
_ROWS_AT_ONCE = 500  # in one transaction: nobody who answers waits for more


async def delete_expired(database: Database, clock: Clock, receipt_days: float) -> int:
    """Delete old rows that nothing rests on any more; gives their number."""
    now = clock.now()
    told = select(receipt.c.id).where(receipt.c.at < now - receipt_days * _DAY)
    answered = select(inbox.c.id).where(
        inbox.c.state == "done", inbox.c.received_at < now - _INBOX_SECONDS
    )
    sent = _sent_before(now - _OUTBOX_SECONDS)
    forgotten = await _forget(database, inbox, answered)
    forgotten += await _forget(database, outbox, sent)
    return forgotten + await _forget(database, receipt, told)


def _sent_before(moment: float) -> Select[tuple[int]]:
    """Rows of turns that have come to their end: an edit still to come needs its message's id."""
    other = outbox.alias("other")
    unsent = exists().where(other.c.turn == outbox.c.turn, other.c.state.not_in(_ENDED))
    turn = inbox.c.platform + ":" + inbox.c.external_key
    unanswered = select(turn).where(inbox.c.state == "new")
    return select(outbox.c.id).where(
        outbox.c.state.in_(_ENDED),
        outbox.c.started_at < moment,
        outbox.c.turn.not_in(unanswered),
        ~unsent,
    )


async def _forget(database: Database, table: Table, old: Select[tuple[int]]) -> int:
    # The search reads the whole table, so it is no part of a transaction that others wait for; what
    # it finds is final.
    ids = await database.read(lambda c: list(c.execute(old).scalars()))
    for start in range(0, len(ids), _ROWS_AT_ONCE):
        some = delete(table).where(table.c.id.in_(ids[start : start + _ROWS_AT_ONCE]))
        await database.write(lambda c, some=some: c.execute(some).rowcount)  # type: ignore[misc]
    return len(ids)

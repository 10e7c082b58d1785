"""Delete old rows: answered messages, sent outbox rows, receipts."""

from sqlalchemy import Select, Table, delete, exists, select

from bot.chat.outgoing import OutboxState
from bot.ports import Clock
from bot.storage.sql.database import Database
from bot.storage.sql.tables import inbox, outbox, receipt

_DAY = 86_400.0
_INBOX_SECONDS = 14 * _DAY
"""As long as a platform may deliver a message again: the row is what recognises a repetition."""
_OUTBOX_SECONDS = 7 * _DAY
_FINAL_STATES = (OutboxState.SENT, OutboxState.DEAD)
_ROWS_PER_TRANSACTION = 500
"""Few enough that no worker waits long for the transaction."""


async def delete_expired(database: Database, clock: Clock, receipt_days: float) -> int:
    """Delete old rows that nothing depends on any more; return their number."""
    now = clock.now()
    answered = select(inbox.c.id).where(
        inbox.c.state == "done", inbox.c.received_at < now - _INBOX_SECONDS
    )
    receipts = select(receipt.c.id).where(receipt.c.at < now - receipt_days * _DAY)
    deleted = await _delete(database, inbox, answered)
    deleted += await _delete(database, outbox, _sent_before(now - _OUTBOX_SECONDS))
    return deleted + await _delete(database, receipt, receipts)


def _sent_before(moment: float) -> Select[tuple[int]]:
    """Select rows of complete turns only: an edit that is still to come needs the message's id."""
    other = outbox.alias("other")
    has_unsent = exists().where(other.c.turn == outbox.c.turn, other.c.state.not_in(_FINAL_STATES))
    turn_name = inbox.c.platform + ":" + inbox.c.external_key
    unanswered_turns = select(turn_name).where(inbox.c.state == "new")
    return select(outbox.c.id).where(
        outbox.c.state.in_(_FINAL_STATES),
        outbox.c.started_at < moment,
        outbox.c.turn.not_in(unanswered_turns),
        ~has_unsent,
    )


async def _delete(database: Database, table: Table, expired: Select[tuple[int]]) -> int:
    # The query scans the whole table, so it runs outside of a transaction that others wait for;
    # a row that it finds stays expired.
    ids = await database.read(lambda c: list(c.execute(expired).scalars()))
    for start in range(0, len(ids), _ROWS_PER_TRANSACTION):
        batch = ids[start : start + _ROWS_PER_TRANSACTION]
        statement = delete(table).where(table.c.id.in_(batch))
        await database.write(lambda c, statement=statement: c.execute(statement).rowcount)  # type: ignore[misc]
    return len(ids)

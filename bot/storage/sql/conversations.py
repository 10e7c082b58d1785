"""Histories, and who may walk them."""

from collections.abc import Sequence

from sqlalchemy import Connection, Executable, bindparam, delete, exists, insert, select, update
from typing_extensions import override

from bot.chat.outgoing import Attachment, OutboxOperation, OutboxState, OutgoingPart
from bot.chat.session import Claim, InboxMessage, Session, TurnResult
from bot.chat.storable import make_storable
from bot.errors import Fenced
from bot.ports import Clock, Conversations
from bot.storage.sql import inbox as inbox_rows
from bot.storage.sql import receipts as receipt_rows
from bot.storage.sql import turns as turn_rows
from bot.storage.sql.database import Database
from bot.storage.sql.tables import (
    choice,
    conversation,
    inbox,
    is_unanswered,
    outbox,
    receipt,
    summary,
    turn,
)
from bot.storage.sql.upserts import Insert, upsert

# Statements are made once: making one costs more than running it.


def _claiming(insert: Insert) -> Executable:
    return (
        insert.values(epoch=1)
        .on_conflict_do_update(
            index_elements=["key"],
            set_={
                "epoch": conversation.c.epoch + 1,
                "owner": insert.excluded.owner,
                "lease_until": insert.excluded.lease_until,
            },
            # whoever restarts under its old name takes its own lease over
            where=(conversation.c.lease_until <= bindparam("now"))
            | (conversation.c.owner == insert.excluded.owner),
        )
        .returning(conversation.c.epoch)
    )


_CLAIM = upsert(conversation, _claiming)
_HELD = (
    update(conversation)
    .where(conversation.c.key == bindparam("held"), conversation.c.epoch == bindparam("at_epoch"))
    .returning(conversation.c.session)
)
_HOLD = _HELD.values(owner=conversation.c.owner)  # a change of nothing, for its lock
_LEASE = _HELD.values(lease_until=bindparam("until"))
_BEGIN_SESSION = _HELD.values(session=conversation.c.session + 1)
_OPEN = (is_unanswered, inbox.c.conversation == bindparam("held"))
_MORE = select(exists().where(*_OPEN))
_OLDEST = select(inbox.c.id).where(*_OPEN).order_by(inbox.c.id).limit(1).scalar_subquery()
_NEXT = (
    update(inbox)
    .where(inbox.c.id == _OLDEST)
    .values(crashes=inbox.c.crashes + 1)
    .returning(inbox.c.id, inbox.c.payload, inbox.c.crashes)
)
_THIS = update(inbox).where(inbox.c.id == bindparam("heard"))
_SPARE = _THIS.values(crashes=bindparam("so_far"))
_DONE = _THIS.values(state="done", payload=None)
_SESSION = select(conversation.c.session).where(conversation.c.key == bindparam("held"))
_NEWEST = (
    select(*turn_rows.COLUMNS, turn.c.session)
    .where(turn.c.conversation == bindparam("held"))
    .where(turn.c.session == _SESSION.scalar_subquery())
    .order_by(turn.c.id.desc())
    .limit(bindparam("most"))
)
_REMEMBER = insert(turn)
_FORGET = delete(turn).where(turn.c.conversation == bindparam("held"))
_FORGET_RECEIPTS = delete(receipt).where(receipt.c.conversation == bindparam("held"))
_FORGET_SUMMARY = delete(summary).where(summary.c.conversation == bindparam("held"))
_TURN_NAMES = select(inbox.c.platform + ":" + inbox.c.external_key).where(
    inbox.c.conversation == bindparam("held")
)
# What was sent has no text any more; what never could be sent would keep it for days.
_FORGET_UNSENT = (
    update(outbox)
    .where(outbox.c.state == OutboxState.DEAD, outbox.c.turn.in_(_TURN_NAMES))
    .values(text="")
)
_QUEUE = insert(outbox)
_NOTE = insert(receipt)
# A part that is queued already is left as it is, but its id is wanted.
_QUEUE_ONCE = upsert(
    outbox,
    lambda insert: insert.on_conflict_do_update(
        index_elements=["turn", "part", "op"], set_={"turn": outbox.c.turn}
    ).returning(outbox.c.id),
)
_OPENED = select(outbox.c.part).where(
    outbox.c.turn == bindparam("turn_name"), outbox.c.op == OutboxOperation.SEND
)


class SqlConversations(Conversations):
    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    @override
    async def claim(self, conversation_key: str, owner: str, lease_seconds: float) -> Claim | None:
        now = self._clock.now()
        wanted = {
            "key": conversation_key,
            "owner": owner,
            "lease_until": now + lease_seconds,
            "now": now,
        }

        def unit(connection: Connection) -> int | None:
            claimed = connection.execute(_CLAIM[connection.dialect.name], wanted)
            return claimed.scalar_one_or_none()

        epoch = await self._database.write(unit)
        return None if epoch is None else Claim(conversation_key, epoch, owner)

    @override
    async def renew(self, claim: Claim, lease_seconds: float) -> None:
        until = self._clock.now() + lease_seconds
        await self._database.write(lambda c: _hold(c, claim, _LEASE, until=until))

    @override
    async def release_all(self, owner: str) -> None:
        held = update(conversation).where(
            conversation.c.owner == owner, conversation.c.lease_until > 0
        )
        await self._database.write(lambda c: c.execute(held.values(lease_until=0.0)).rowcount)

    @override
    async def release(self, claim: Claim) -> bool:
        def unit(connection: Connection) -> bool:
            _hold(connection, claim, _LEASE, until=0.0)
            return bool(connection.execute(_MORE, {"held": claim.conversation}).scalar_one())

        return await self._database.write(unit)

    @override
    async def next_message(self, claim: Claim) -> InboxMessage | None:
        def unit(connection: Connection) -> InboxMessage | None:
            row = connection.execute(_NEXT, {"held": claim.conversation}).one_or_none()
            if row is None:
                return None
            _hold(connection, claim)
            return InboxMessage(row.id, inbox_rows.load(row.payload), row.crashes - 1)

        return await self._database.write(unit)

    @override
    async def undo_attempt(self, claim: Claim, heard: InboxMessage) -> None:
        unblamed = {"heard": heard.id, "so_far": heard.crashes}

        def unit(connection: Connection) -> None:
            _hold(connection, claim)
            connection.execute(_SPARE, unblamed)

        await self._database.write(unit)

    @override
    async def load_session(self, conversation_key: str, max_turns: int) -> Session:
        asked = {"held": conversation_key, "most": max_turns}

        def unit(connection: Connection) -> Session:
            rows = connection.execute(_NEWEST, asked).all()
            current = rows[0].session if rows else connection.execute(_SESSION, asked).scalar() or 1
            return Session(current, tuple(map(turn_rows.to_turn, reversed(rows))))

        return await self._database.read(unit)

    @override
    async def forget(self, claim: Claim) -> int:
        # what people said of themselves here is kept under person@place
        here = choice.c.scope.endswith(f"@{claim.conversation}", autoescape=True)
        told_here = delete(choice).where(here)

        def unit(connection: Connection) -> int:
            _hold(connection, claim)
            for statement in (_FORGET_RECEIPTS, _FORGET_SUMMARY, _FORGET_UNSENT):
                connection.execute(statement, {"held": claim.conversation})
            connection.execute(told_here)
            return connection.execute(_FORGET, {"held": claim.conversation}).rowcount

        turns = await self._database.write(unit)
        await self._database.wipe_traces()
        return turns

    @override
    async def open(self, claim: Claim, heard: InboxMessage, opening: OutgoingPart) -> int:
        row = _row(heard, opening.part, OutboxOperation.SEND, opening.text)

        def unit(connection: Connection) -> int:
            _hold(connection, claim)
            queued = connection.execute(_QUEUE_ONCE[connection.dialect.name], row)
            return int(queued.scalar_one())

        return await self._database.write(unit)

    @override
    async def finish(self, claim: Claim, message: InboxMessage, result: TurnResult) -> None:
        now = self._clock.now()
        notes = [receipt_rows.to_row(claim, message, one, now) for one in result.receipts]

        def unit(connection: Connection) -> None:
            session = _hold(connection, claim, _BEGIN_SESSION if result.new_session else _HOLD)
            connection.execute(_DONE, {"heard": message.id})
            if result.turns:
                rows = [turn_rows.to_row(claim.conversation, session, one) for one in result.turns]
                connection.execute(_REMEMBER, rows)
            changes = _changes(connection, message, result.outgoing)
            if changes:
                connection.execute(_QUEUE, changes)
            if notes:
                connection.execute(_NOTE, notes)

        await self._database.write(unit)


def _hold(
    connection: Connection, claim: Claim, change: Executable = _HOLD, **values: object
) -> int:
    """Check the epoch, and lock the row for this transaction; gives the session's number."""
    held = {"held": claim.conversation, "at_epoch": claim.epoch, **values}
    session = connection.execute(change, held).scalar_one_or_none()
    if session is None:
        raise Fenced(f"conversation {claim.conversation} has a newer epoch than {claim.epoch}")
    return int(session)


def _changes(
    connection: Connection, heard: InboxMessage, outgoing: Sequence[OutgoingPart]
) -> list[dict[str, object]]:
    """What must happen on the platform so that the turn reads as `outgoing` says."""
    opened = set(connection.execute(_OPENED, {"turn_name": heard.turn}).scalars())
    rows = []
    for one in outgoing:
        if one.part in opened:
            rows.append(_row(heard, one.part, OutboxOperation.EDIT, one.text))
        elif one.placeholder is not None:
            rows.append(_row(heard, one.part, OutboxOperation.SEND, one.placeholder))
            rows.append(_row(heard, one.part, OutboxOperation.EDIT, one.text))
        else:
            rows.append(_row(heard, one.part, OutboxOperation.SEND, one.text, one.file))
    surplus = opened - {one.part for one in outgoing}
    return rows + [_row(heard, part, OutboxOperation.DELETE, "") for part in sorted(surplus)]


def _row(
    heard: InboxMessage, part: int, op: OutboxOperation, words: str, file: Attachment | None = None
) -> dict[str, object]:
    said = heard.incoming
    return {
        "turn": heard.turn,
        "part": part,
        "op": op,
        "platform": said.address.platform,
        "chat": said.address.chat,
        "thread": said.address.thread,
        "lane": said.address.lane,
        "text": make_storable(words),
        "reply_to": said.message_id,
        "interaction": said.interaction if part == 0 else None,  # it has one response
        "state": OutboxState.PENDING,
        "file_name": file.name if file else None,
        "file_text": make_storable(file.text) if file else None,
    }

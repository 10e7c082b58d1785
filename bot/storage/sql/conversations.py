"""Conversations in SQL: claims, the messages to answer, the history of a session."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, Executable, bindparam, delete, exists, insert, select, update
from typing_extensions import override

from bot.chat.incoming import Person
from bot.chat.outgoing import Attachment, OutboxOperation, OutboxState, OutgoingPart
from bot.chat.session import Claim, InboxMessage, Session, Turn, TurnResult
from bot.chat.storable import make_storable
from bot.errors import Fenced
from bot.ports import Clock, Conversations
from bot.storage.sql import inbox as inbox_rows
from bot.storage.sql import receipts as receipt_rows
from bot.storage.sql.database import Database
from bot.storage.sql.tables import (
    Insert,
    choice,
    conversation,
    inbox,
    is_unanswered,
    outbox,
    receipt,
    summary,
    turn,
    upsert,
)

TURN_COLUMNS = (
    *(turn.c.role, turn.c.speaker_id, turn.c.speaker_name, turn.c.text, turn.c.at),
    *(turn.c.preset, turn.c.preset_version),
)

# Statements are built once: building one costs more than running it.


def _build_claim(insert: Insert) -> Executable:
    return (
        insert.values(epoch=1)
        .on_conflict_do_update(
            index_elements=["key"],
            set_={
                "epoch": conversation.c.epoch + 1,
                "owner": insert.excluded.owner,
                "lease_until": insert.excluded.lease_until,
            },
            # An owner that restarts under its old name takes its own lease over.
            where=(conversation.c.lease_until <= bindparam("now"))
            | (conversation.c.owner == insert.excluded.owner),
        )
        .returning(conversation.c.epoch)
    )


_CLAIM = upsert(conversation, _build_claim)
_UPDATE_CLAIMED = (
    update(conversation)
    .where(
        conversation.c.key == bindparam("conversation_key"),
        conversation.c.epoch == bindparam("claimed_epoch"),
    )
    .returning(conversation.c.session)
)
_LOCK_CLAIMED = _UPDATE_CLAIMED.values(owner=conversation.c.owner)  # changes nothing, locks the row
_SET_LEASE = _UPDATE_CLAIMED.values(lease_until=bindparam("until"))
_START_SESSION = _UPDATE_CLAIMED.values(session=conversation.c.session + 1)
_UNANSWERED_HERE = (is_unanswered, inbox.c.conversation == bindparam("conversation_key"))
_HAS_UNANSWERED = select(exists().where(*_UNANSWERED_HERE))
_OLDEST_ID = select(inbox.c.id).where(*_UNANSWERED_HERE).order_by(inbox.c.id).limit(1)
_TAKE_OLDEST = (
    update(inbox)
    .where(inbox.c.id == _OLDEST_ID.scalar_subquery())
    .values(crashes=inbox.c.crashes + 1)
    .returning(inbox.c.id, inbox.c.payload, inbox.c.crashes)
)
_UPDATE_MESSAGE = update(inbox).where(inbox.c.id == bindparam("message_id"))
_SET_CRASHES = _UPDATE_MESSAGE.values(crashes=bindparam("crash_count"))
_MARK_DONE = _UPDATE_MESSAGE.values(state="done", payload=None)
_SESSION_NUMBER = select(conversation.c.session).where(
    conversation.c.key == bindparam("conversation_key")
)
_NEWEST_TURNS = (
    select(*TURN_COLUMNS, turn.c.session)
    .where(turn.c.conversation == bindparam("conversation_key"))
    .where(turn.c.session == _SESSION_NUMBER.scalar_subquery())
    .order_by(turn.c.id.desc())
    .limit(bindparam("max_turns"))
)
_INSERT_TURNS = insert(turn)
_DELETE_TURNS = delete(turn).where(turn.c.conversation == bindparam("conversation_key"))
_DELETE_RECEIPTS = delete(receipt).where(receipt.c.conversation == bindparam("conversation_key"))
_DELETE_SUMMARIES = delete(summary).where(summary.c.conversation == bindparam("conversation_key"))
_TURN_NAMES = select(inbox.c.platform + ":" + inbox.c.external_key).where(
    inbox.c.conversation == bindparam("conversation_key")
)
# A sent row has no text any more; a dead one would keep it for days.
_CLEAR_DEAD_TEXTS = (
    update(outbox)
    .where(outbox.c.state == OutboxState.DEAD, outbox.c.turn.in_(_TURN_NAMES))
    .values(text="")
)
_QUEUE = insert(outbox)
_INSERT_RECEIPTS = insert(receipt)
# A part that is queued already stays as it is, but its id is returned.
_QUEUE_ONCE = upsert(
    outbox,
    lambda insert: insert.on_conflict_do_update(
        index_elements=["turn", "part", "op"], set_={"turn": outbox.c.turn}
    ).returning(outbox.c.id),
)
_OPENED_PARTS = select(outbox.c.part).where(
    outbox.c.turn == bindparam("turn_name"), outbox.c.op == OutboxOperation.SEND
)


class SqlConversations(Conversations):
    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    @override
    async def claim(self, conversation_key: str, owner: str, lease_seconds: float) -> Claim | None:
        now = self._clock.now()
        values = {
            "key": conversation_key,
            "owner": owner,
            "lease_until": now + lease_seconds,
            "now": now,
        }

        def unit(connection: Connection) -> int | None:
            claimed = connection.execute(_CLAIM[connection.dialect.name], values)
            return claimed.scalar_one_or_none()

        epoch = await self._database.write(unit)
        return None if epoch is None else Claim(conversation_key, epoch, owner)

    @override
    async def renew(self, claim: Claim, lease_seconds: float) -> None:
        until = self._clock.now() + lease_seconds
        await self._database.write(lambda c: _update_claimed(c, claim, _SET_LEASE, until=until))

    @override
    async def release_all(self, owner: str) -> None:
        release = (
            update(conversation)
            .where(conversation.c.owner == owner, conversation.c.lease_until > 0)
            .values(lease_until=0.0)
        )
        await self._database.write(lambda c: c.execute(release).rowcount)

    @override
    async def release(self, claim: Claim) -> bool:
        values = {"conversation_key": claim.conversation}

        def unit(connection: Connection) -> bool:
            _update_claimed(connection, claim, _SET_LEASE, until=0.0)
            return bool(connection.execute(_HAS_UNANSWERED, values).scalar_one())

        return await self._database.write(unit)

    @override
    async def next_message(self, claim: Claim) -> InboxMessage | None:
        values = {"conversation_key": claim.conversation}

        def unit(connection: Connection) -> InboxMessage | None:
            row = connection.execute(_TAKE_OLDEST, values).one_or_none()
            if row is None:
                return None
            _update_claimed(connection, claim)
            return InboxMessage(row.id, inbox_rows.decode(row.payload), row.crashes - 1)

        return await self._database.write(unit)

    @override
    async def undo_attempt(self, claim: Claim, message: InboxMessage) -> None:
        values = {"message_id": message.id, "crash_count": message.crashes}

        def unit(connection: Connection) -> None:
            _update_claimed(connection, claim)
            connection.execute(_SET_CRASHES, values)

        await self._database.write(unit)

    @override
    async def load_session(self, conversation_key: str, max_turns: int) -> Session:
        values = {"conversation_key": conversation_key, "max_turns": max_turns}

        def unit(connection: Connection) -> Session:
            rows = connection.execute(_NEWEST_TURNS, values).all()
            if rows:
                number = rows[0].session
            else:
                number = connection.execute(_SESSION_NUMBER, values).scalar() or 1
            return Session(number, tuple(map(to_turn, reversed(rows))))

        return await self._database.read(unit)

    @override
    async def forget(self, claim: Claim) -> int:
        # What people set for themselves in this conversation has the scope person@conversation.
        set_here = choice.c.scope.endswith(f"@{claim.conversation}", autoescape=True)
        delete_settings = delete(choice).where(set_here)
        values = {"conversation_key": claim.conversation}

        def unit(connection: Connection) -> int:
            _update_claimed(connection, claim)
            for statement in (_DELETE_RECEIPTS, _DELETE_SUMMARIES, _CLEAR_DEAD_TEXTS):
                connection.execute(statement, values)
            connection.execute(delete_settings)
            return connection.execute(_DELETE_TURNS, values).rowcount

        turns = await self._database.write(unit)
        await self._database.truncate_log()
        return turns

    @override
    async def open(self, claim: Claim, message: InboxMessage, opening: OutgoingPart) -> int:
        row = _to_outbox_row(message, opening.part, OutboxOperation.SEND, opening.text)

        def unit(connection: Connection) -> int:
            _update_claimed(connection, claim)
            queued = connection.execute(_QUEUE_ONCE[connection.dialect.name], row)
            return int(queued.scalar_one())

        return await self._database.write(unit)

    @override
    async def finish(self, claim: Claim, message: InboxMessage, result: TurnResult) -> None:
        now = self._clock.now()
        receipts = [receipt_rows.to_row(claim, message, one, now) for one in result.receipts]

        def unit(connection: Connection) -> None:
            change = _START_SESSION if result.new_session else _LOCK_CLAIMED
            session = _update_claimed(connection, claim, change)
            connection.execute(_MARK_DONE, {"message_id": message.id})
            if result.turns:
                turns = [_to_turn_row(claim.conversation, session, one) for one in result.turns]
                connection.execute(_INSERT_TURNS, turns)
            rows = _outbox_rows(connection, message, result.outgoing)
            if rows:
                connection.execute(_QUEUE, rows)
            if receipts:
                connection.execute(_INSERT_RECEIPTS, receipts)

        await self._database.write(unit)


def _update_claimed(
    connection: Connection, claim: Claim, change: Executable = _LOCK_CLAIMED, **values: object
) -> int:
    """Check the epoch and lock the conversation for this transaction; return its session number."""
    claimed = {"conversation_key": claim.conversation, "claimed_epoch": claim.epoch, **values}
    session = connection.execute(change, claimed).scalar_one_or_none()
    if session is None:
        raise Fenced(f"conversation {claim.conversation} has a newer epoch than {claim.epoch}")
    return int(session)


def _outbox_rows(
    connection: Connection, message: InboxMessage, outgoing: Sequence[OutgoingPart]
) -> list[dict[str, object]]:
    """Return the sends, edits and deletions that give every part its final text."""
    opened = set(connection.execute(_OPENED_PARTS, {"turn_name": message.turn}).scalars())
    rows = []
    for one in outgoing:
        if one.part in opened:
            rows.append(_to_outbox_row(message, one.part, OutboxOperation.EDIT, one.text))
        elif one.placeholder is not None:
            rows.append(_to_outbox_row(message, one.part, OutboxOperation.SEND, one.placeholder))
            rows.append(_to_outbox_row(message, one.part, OutboxOperation.EDIT, one.text))
        else:
            send = OutboxOperation.SEND
            rows.append(_to_outbox_row(message, one.part, send, one.text, one.file))
    surplus = opened - {one.part for one in outgoing}
    return rows + [
        _to_outbox_row(message, part, OutboxOperation.DELETE, "") for part in sorted(surplus)
    ]


def _to_outbox_row(
    message: InboxMessage,
    part: int,
    op: OutboxOperation,
    text: str,
    file: Attachment | None = None,
) -> dict[str, object]:
    incoming = message.incoming
    return {
        "turn": message.turn,
        "part": part,
        "op": op,
        "platform": incoming.address.platform,
        "chat": incoming.address.chat,
        "thread": incoming.address.thread,
        "lane": incoming.address.lane,
        "text": make_storable(text),
        "reply_to": incoming.message_id,
        # An interaction has one response, so only the first part responds to it.
        "interaction": incoming.interaction if part == 0 else None,
        "state": OutboxState.PENDING,
        "file_name": file.name if file else None,
        "file_text": make_storable(file.text) if file else None,
    }


def _to_turn_row(conversation_key: str, session: int, one: Turn) -> dict[str, object]:
    return {
        "conversation": conversation_key,
        "session": session,
        "role": one.role,
        "speaker_id": one.speaker.id if one.speaker else None,
        "speaker_name": one.speaker.name if one.speaker else None,
        "text": make_storable(one.text),
        "at": one.at.timestamp(),
        "preset": one.preset,
        "preset_version": one.preset_version,
    }


def to_turn(row: Sequence[Any]) -> Turn:
    """Read a row that starts with `TURN_COLUMNS`; further columns are ignored."""
    role, speaker_id, speaker_name, text, at, preset, version, *_ = row
    speaker = Person(speaker_id, speaker_name) if speaker_id else None
    return Turn(role, text, speaker, datetime.fromtimestamp(at, UTC), preset, version)

"""Histories, and who may walk them."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import cast

from sqlalchemy import Connection, exists, insert, select, update
from typing_extensions import override

from bot.chat.incoming import Person
from bot.chat.outgoing import Op, Outgoing, Sending
from bot.chat.prompt import Role
from bot.chat.session import Claim, Heard, Session, Turn
from bot.errors import Fenced
from bot.ports import Clock, Conversations
from bot.storage import inbox as inbox_rows
from bot.storage.database import Database
from bot.storage.tables import conversation, inbox, outbox, turn

_OPEN = inbox.c.state == "new"


class SqlConversations(Conversations):
    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    @override
    async def claim(self, conversation_key: str, owner: str, lease_seconds: float) -> Claim | None:
        now = self._clock.now()

        def unit(connection: Connection) -> int | None:
            new_row = inbox_rows.insert(connection, conversation).values(
                key=conversation_key, epoch=1, owner=owner, lease_until=now + lease_seconds
            )
            claimed = new_row.on_conflict_do_update(
                index_elements=["key"],
                set_={
                    "epoch": conversation.c.epoch + 1,
                    "owner": owner,
                    "lease_until": now + lease_seconds,
                },
                # whoever restarts under its old name takes its own lease over
                where=(conversation.c.lease_until <= now) | (conversation.c.owner == owner),
            ).returning(conversation.c.epoch)
            return connection.execute(claimed).scalar_one_or_none()

        epoch = await self._database.write(unit)
        return None if epoch is None else Claim(conversation_key, epoch, owner)

    @override
    async def renew(self, claim: Claim, lease_seconds: float) -> None:
        until = self._clock.now() + lease_seconds
        await self._database.write(lambda c: _hold(c, claim, lease_until=until))

    @override
    async def let_go(self, owner: str) -> None:
        held = update(conversation).where(
            conversation.c.owner == owner, conversation.c.lease_until > 0
        )
        await self._database.write(lambda c: c.execute(held.values(lease_until=0.0)).rowcount)

    @override
    async def release(self, claim: Claim) -> bool:
        def unit(connection: Connection) -> bool:
            _hold(connection, claim, lease_until=0.0)
            more = select(exists().where(_OPEN, inbox.c.conversation == claim.conversation))
            return bool(connection.execute(more).scalar_one())

        return await self._database.write(unit)

    @override
    async def next(self, claim: Claim) -> Heard | None:
        oldest = (
            select(inbox.c.id)
            .where(_OPEN, inbox.c.conversation == claim.conversation)
            .order_by(inbox.c.id)
            .limit(1)
            .scalar_subquery()
        )

        def unit(connection: Connection) -> Heard | None:
            row = connection.execute(
                update(inbox)
                .where(inbox.c.id == oldest)
                .values(crashes=inbox.c.crashes + 1)
                .returning(inbox.c.id, inbox.c.payload, inbox.c.crashes)
            ).one_or_none()
            if row is None:
                return None
            _hold(connection, claim)
            return Heard(row.id, inbox_rows.load(row.payload), row.crashes - 1)

        return await self._database.write(unit)

    @override
    async def spare(self, claim: Claim, heard: Heard) -> None:
        unblamed = update(inbox).where(inbox.c.id == heard.id).values(crashes=heard.crashes)

        def unit(connection: Connection) -> None:
            _hold(connection, claim)
            connection.execute(unblamed)

        await self._database.write(unit)

    @override
    async def recall(self, conversation_key: str, max_turns: int) -> Session:
        number = select(conversation.c.session).where(conversation.c.key == conversation_key)
        newest = (
            select(turn.c.role, turn.c.speaker_id, turn.c.speaker_name, turn.c.text, turn.c.at)
            .add_columns(turn.c.session)
            .where(turn.c.conversation == conversation_key)
            .where(turn.c.session == number.scalar_subquery())
            .order_by(turn.c.id.desc())
            .limit(max_turns)
        )

        def unit(connection: Connection) -> Session:
            rows = connection.execute(newest).all()
            current = rows[0].session if rows else connection.execute(number).scalar() or 1
            turns = tuple(
                Turn(
                    cast("Role", row.role),
                    row.text,
                    Person(row.speaker_id, row.speaker_name) if row.speaker_id else None,
                    datetime.fromtimestamp(row.at, UTC),
                )
                for row in reversed(rows)
            )
            return Session(current, turns)

        return await self._database.read(unit)

    @override
    async def open(self, claim: Claim, heard: Heard, opening: Outgoing) -> int:
        def unit(connection: Connection) -> int:
            _hold(connection, claim)
            row = _row(heard, opening.part, Op.SEND, opening.text)
            queued = inbox_rows.insert(connection, outbox).values(**row)
            once = queued.on_conflict_do_update(
                index_elements=["turn", "part", "op"], set_={"turn": outbox.c.turn}
            ).returning(outbox.c.id)
            return int(connection.execute(once).scalar_one())

        return await self._database.write(unit)

    @override
    async def finish(
        self,
        claim: Claim,
        heard: Heard,
        *,
        turns: Sequence[Turn],
        outgoing: Sequence[Outgoing],
        new_session: bool = False,
    ) -> None:
        def unit(connection: Connection) -> None:
            session = _hold(connection, claim)
            connection.execute(
                update(inbox).where(inbox.c.id == heard.id).values(state="done", payload=None)
            )
            if new_session:
                connection.execute(
                    update(conversation)
                    .where(conversation.c.key == claim.conversation)
                    .values(session=conversation.c.session + 1)
                )
                session += 1
            if turns:
                rows = [_history_row(claim.conversation, session, one) for one in turns]
                connection.execute(insert(turn), rows)
            changes = _changes(connection, heard, outgoing)
            if changes:
                connection.execute(insert(outbox), changes)

        await self._database.write(unit)


def _hold(connection: Connection, claim: Claim, **values: object) -> int:
    """Check the epoch, and lock the row for this transaction; gives the session's number."""
    session = connection.execute(
        update(conversation)
        .where(conversation.c.key == claim.conversation, conversation.c.epoch == claim.epoch)
        .values(values or {"owner": claim.owner})
        .returning(conversation.c.session)
    ).scalar_one_or_none()
    if session is None:
        raise Fenced(f"conversation {claim.conversation} has a newer epoch than {claim.epoch}")
    return int(session)


def _changes(
    connection: Connection, heard: Heard, outgoing: Sequence[Outgoing]
) -> list[dict[str, object]]:
    """What must happen on the platform so that the turn reads as `outgoing` says."""
    opened = set(
        connection.execute(
            select(outbox.c.part).where(outbox.c.turn == heard.turn, outbox.c.op == Op.SEND)
        ).scalars()
    )
    rows = []
    for one in outgoing:
        if one.part in opened:
            rows.append(_row(heard, one.part, Op.EDIT, one.text))
        elif one.placeholder is not None:
            rows.append(_row(heard, one.part, Op.SEND, one.placeholder))
            rows.append(_row(heard, one.part, Op.EDIT, one.text))
        else:
            rows.append(_row(heard, one.part, Op.SEND, one.text))
    surplus = opened - {one.part for one in outgoing}
    return rows + [_row(heard, part, Op.DELETE, "") for part in sorted(surplus)]


def _row(heard: Heard, part: int, op: Op, words: str) -> dict[str, object]:
    said = heard.incoming
    return {
        "turn": heard.turn,
        "part": part,
        "op": op,
        "platform": said.address.platform,
        "chat": said.address.chat,
        "thread": said.address.thread,
        "lane": said.address.lane,
        "text": words,
        "reply_to": said.message_id,
        "interaction": said.interaction if part == 0 else None,  # it has one response
        "state": Sending.PENDING,
    }


def _history_row(conversation_key: str, session: int, one: Turn) -> dict[str, object]:
    return {
        "conversation": conversation_key,
        "session": session,
        "role": one.role,
        "speaker_id": one.speaker.id if one.speaker else None,
        "speaker_name": one.speaker.name if one.speaker else None,
        "text": one.text,
        "at": one.at.timestamp(),
    }

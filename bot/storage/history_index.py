"""Where messages stand in the histories of a channel that has several, and new branches."""

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    and_,
    exists,
    func,
    insert,
    or_,
    select,
    union_all,
)

from bot.chat.incoming import HISTORY_MARK, Address
from bot.chat.outgoing import OutboxOperation
from bot.chat.session import MessagePlace
from bot.storage.database import Database
from bot.storage.histories import encode_parts
from bot.storage.statements import bound_texts, has_prefix
from bot.storage.tables import conversation, inbox, is_unanswered, outbox, sent_message, turn

_MAX_TURNS = 400
_COPIED = tuple(name for name in turn.c.keys() if name not in {"id", "conversation", "session"})  # noqa: SIM118 -- no mapping


def _is_in_channel(address: Address, dialect: str) -> ColumnElement[bool]:
    key = conversation.c.key
    branches = has_prefix(key, f"{address.channel}{HISTORY_MARK}", dialect)
    return or_(key == address.channel, branches)


def _is_turn_in_channel(address: Address, dialect: str) -> ColumnElement[bool]:
    keys = select(conversation.c.key).where(_is_in_channel(address, dialect))
    return turn.c.conversation.in_(keys)


class SqlHistoryIndex:
    """Asked only about channels whose histories are not shared by everybody."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def find_received(self, address: Address, external_key: str) -> str | None:
        """Return the conversation of an event that was received; None: it is not kept any more."""
        return await self._database.read(lambda c: _received(c, address, external_key))

    async def find(
        self, address: Address, message_ids: Collection[str], *, with_copies: bool = False
    ) -> Sequence[MessagePlace]:
        """Return where these messages of the platform stand, people's first, each oldest first.

        Branches have copies of what precedes them; of answers they are found where that is asked.
        """

        def unit(connection: Connection) -> list[MessagePlace]:
            said = _places_of_people(connection, address, message_ids)
            return said + _places_of_answers(connection, address, message_ids, with_copies)

        return await self._database.read(unit)

    async def newest_of(self, address: Address, person_id: str) -> str | None:
        """Return the conversation of the channel in which the person has said something last."""
        query = (
            select(turn.c.conversation)
            .where(turn.c.speaker_id == person_id)
            .where(_is_turn_in_channel(address, self._database.dialect))
            .order_by(turn.c.id.desc())
            .limit(1)
        )
        return await self._database.read(lambda c: c.execute(query).scalar())

    async def conversations(self, address: Address) -> Mapping[str, int]:
        """Return the keys of all conversations of the channel, with the number of their turns."""
        turns = select(func.count()).where(turn.c.conversation == conversation.c.key)
        query = select(conversation.c.key, turns.scalar_subquery()).where(
            _is_in_channel(address, self._database.dialect)
        )
        rows = await self._database.read(lambda c: c.execute(query).all())
        return {row[0]: row[1] for row in rows}

    async def begin_branch(self, key: str, place: MessagePlace) -> None:
        """Copy what was said up to a turn to a new conversation; may be repeated."""
        await self._database.write(lambda c: _copy_turns(c, key, place))


def _received(connection: Connection, address: Address, external_key: str) -> str | None:
    query = select(inbox.c.conversation).where(
        inbox.c.platform == address.platform,
        inbox.c.bot_id == address.bot_id,
        inbox.c.external_key == external_key,
    )
    return connection.execute(query).scalar()


def _places_of_people(
    connection: Connection, address: Address, message_ids: Collection[str]
) -> list[MessagePlace]:
    listed = bound_texts("ids", connection.dialect.name)  # type: ignore[arg-type]
    query = (
        select(turn.c.id, turn.c.conversation, turn.c.session, turn.c.active)
        .where(turn.c.message_id.in_(listed))
        .where(_is_turn_in_channel(address, connection.dialect.name))
        .order_by(turn.c.id)
    )
    rows = connection.execute(query, {"ids": json.dumps(list(message_ids))}).all()
    return [
        MessagePlace(row.conversation, row.id, row.active and _is_last(connection, row, ""))
        for row in rows
    ]


def _places_of_answers(
    connection: Connection, address: Address, message_ids: Collection[str], with_copies: bool
) -> list[MessagePlace]:
    listed = bound_texts("ids", connection.dialect.name)  # type: ignore[arg-type]
    query = union_all(
        select(outbox.c.turn, outbox.c.part).where(
            outbox.c.lane == address.lane,
            outbox.c.external_id.in_(listed),
            outbox.c.op == OutboxOperation.SEND,
        ),
        select(sent_message.c.turn, sent_message.c.part).where(
            sent_message.c.conversation == address.channel,
            sent_message.c.external_id.in_(listed),
        ),
    )
    sent = connection.execute(query, {"ids": json.dumps(list(message_ids))}).all()
    return [
        place
        for name, part in sent
        for place in _places_of_part(connection, address, name, f"{name}/{part}", with_copies)
    ]


def _places_of_part(
    connection: Connection, address: Address, name: str, part: str, with_copies: bool
) -> list[MessagePlace]:
    key = name.removeprefix(f"{address.source}:")
    asked_in = _received(connection, address, key)
    is_searched = asked_in is None or with_copies  # else the index serves the query
    position = func.instr if connection.dialect.name == "sqlite" else func.strpos
    query = (
        select(turn.c.id, turn.c.conversation, turn.c.session)
        .where(
            _is_turn_in_channel(address, connection.dialect.name)
            if is_searched
            else turn.c.conversation == asked_in,
            turn.c.active,
            position(turn.c.sent_as, encode_parts((part,))) > 0,
        )
        .order_by(turn.c.id)
    )
    rows = connection.execute(query).all()
    if not rows and asked_in is not None:
        return [MessagePlace(asked_in, None, is_last=True)]
    return [MessagePlace(row.conversation, row.id, _is_last(connection, row, key)) for row in rows]


def _is_last(connection: Connection, row: Any, answered_key: str) -> bool:
    """Return whether no other message follows a turn, and none waits to.

    Args:
        connection: of the transaction.
        row: the turn.
        answered_key: the key of the message that the turn answers: further answers to that are not
            in the way.
    """
    follows = and_(
        turn.c.conversation == row.conversation,
        turn.c.active,
        turn.c.id > row.id,
        turn.c.role == "user" if answered_key else turn.c.id > row.id,
    )
    waits = and_(
        inbox.c.conversation == row.conversation,
        is_unanswered,
        inbox.c.kind == "said",
        inbox.c.external_key != answered_key,
    )
    is_current = and_(conversation.c.key == row.conversation, conversation.c.session == row.session)
    query = select(~exists().where(follows), ~exists().where(waits), exists().where(is_current))
    return all(connection.execute(query).one())


def _copy_turns(connection: Connection, key: str, place: MessagePlace) -> None:
    """Give a new conversation what was said up to a turn; one that has turns keeps them."""
    if connection.execute(select(exists().where(turn.c.conversation == key))).scalar():
        return
    session = select(turn.c.session).where(turn.c.id == place.turn).scalar_subquery()
    query = (
        select(*(turn.c[name] for name in _COPIED))
        .where(
            turn.c.conversation == place.conversation,
            turn.c.session == session,
            turn.c.active,
            turn.c.id <= place.turn,
        )
        .order_by(turn.c.id.desc())
        .limit(_MAX_TURNS)
    )
    parent: int | None = None
    for row in reversed(connection.execute(query).mappings().all()):
        values = {**row, "conversation": key, "session": 1, "parent": parent}
        parent = connection.execute(insert(turn).values(values).returning(turn.c.id)).scalar_one()

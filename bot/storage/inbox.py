"""Messages from people that are not answered yet."""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Select, bindparam, func, literal_column, or_, select
from typing_extensions import override

from bot.chat.incoming import Address, Incoming
from bot.chat.session import Attempt
from bot.ports import Clock, Intake
from bot.storage import claims as units
from bot.storage.database import Database
from bot.storage.rows import decode_all, decode_event, encode_event, event_kind
from bot.storage.statements import DialectName, Statement, Unit, bound_texts
from bot.storage.tables import cursor, inbox, is_unanswered

# What is gathered has its attempt recorded with that of the message that it is answered with.
_IS_GATHERED = inbox.c.attempt == int(Attempt.BESIDE_OTHERS)


def _newest_unanswered(dialect: DialectName) -> Select[tuple[str, bytes | None]]:
    """Select the newest unanswered rows of bound conversations, a few of each.

    One value binds all conversations, so that the statement is the same for any number of them,
    and of a long queue only its newest rows are read.
    """
    asked, waiting = bound_texts("conversations", dialect).subquery(), inbox.alias()
    newest_left_out = (
        select(waiting.c.id)
        .where(waiting.c.state == literal_column("'new'"), waiting.c.conversation == asked.c[0])
        .order_by(waiting.c.id.desc())
        .limit(1)
        .offset(bindparam("of_each"))
        .scalar_subquery()
    )
    read = select(
        asked.c[0].label("conversation"), func.coalesce(newest_left_out, 0).label("left_out")
    ).cte()
    read = read.prefix_with("MATERIALIZED", dialect="postgresql")  # or it is found for each row
    return (
        select(inbox.c.kind, inbox.c.payload)
        .join_from(read, inbox, inbox.c.conversation == read.c.conversation)
        .where(is_unanswered, inbox.c.id > read.c.left_out)
        .order_by(inbox.c.id.desc())
        .limit(bindparam("most"))
    )


_WAITING = Statement(_newest_unanswered)


class SqlInbox(Intake):
    """Stores messages, makes their conversations ready and advances cursors, all in one unit."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    @override
    async def receive(self, messages: Sequence[Incoming], cursors: Mapping[str, str]) -> None:
        now = self._clock.now()
        rows = [
            {
                "platform": message.address.platform,
                "bot_id": message.address.bot_id,
                "external_key": message.external_key,
                "conversation": message.address.conversation,
                "kind": event_kind(message),
                "payload": encode_event(message),
                "received_at": now,
            }
            for message in messages
        ]
        await self._database.run(lambda: units.receive(rows, cursors, now, self._database.dialect))

    @override
    async def cursors(self, prefix: str) -> Mapping[str, str]:
        query = select(cursor.c.name, cursor.c.value).where(
            cursor.c.name.startswith(prefix, autoescape=True)
        )
        rows = await self._database.read(lambda c: c.execute(query).all())
        return {row.name: row.value for row in rows}

    async def find_in_progress(self, address: Address, external_key: str) -> Sequence[Incoming]:
        """Return what was received under a key from the bot's platform, and what was gathered.

        Nothing once it is done.
        """
        named = select(inbox.c.id, inbox.c.conversation).where(
            inbox.c.platform == address.platform,
            inbox.c.bot_id == address.bot_id,
            inbox.c.external_key == external_key,
            is_unanswered,
        )

        def unit(connection: Connection) -> list[Incoming]:
            first = connection.execute(named).first()
            if first is None:
                return []
            group = (
                select(inbox.c.kind, inbox.c.payload)
                .where(is_unanswered, inbox.c.conversation == first.conversation)
                .where(or_(inbox.c.id == first.id, _IS_GATHERED & (inbox.c.id > first.id)))
                .order_by(inbox.c.id)
            )
            return _events(connection.execute(group))

        return await self._database.read(unit)

    async def waiting(
        self, conversations: Collection[str], limit: int, of_each: int
    ) -> Sequence[Incoming]:
        """Return what is unanswered in these conversations, the newest of it first.

        Args:
            conversations: any number of them.
            limit: the most events in all.
            of_each: the most events of one conversation.
        """
        asked = {
            "conversations": json.dumps(sorted(conversations)),
            "of_each": of_each,
            "most": limit,
        }

        def unit() -> Unit[list[Incoming]]:
            rows = yield _WAITING.query_alone(asked)
            return _events(rows)

        return await self._database.run(unit)


def _events(rows: Iterable[Sequence[Any]]) -> list[Incoming]:
    """Read rows of `kind` and `payload`; their worker sets aside what cannot be read."""
    return decode_all("inbox", rows, lambda row: decode_event(*row))

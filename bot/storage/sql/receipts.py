"""The receipts of answers, packed: a prompt of 1,600 tokens takes about two kilobytes."""

import zlib
from collections.abc import Sequence
from typing import Any

import msgspec
from sqlalchemy import Row, bindparam, select
from typing_extensions import override

from bot.chat.receipt import Receipt
from bot.chat.session import Claim, InboxMessage
from bot.ports import Receipts
from bot.storage.sql.database import Database
from bot.storage.sql.tables import receipt

_FAST = 1  # half the time for a tenth more room
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Receipt).decode

# Statements are made once: making one costs more than running it.
_COLUMNS = select(receipt.c.id, receipt.c.content)
_LAST_ANSWERED = (
    select(receipt.c.turn)
    .where(receipt.c.conversation == bindparam("held"))
    .order_by(receipt.c.id.desc())
    .limit(1)
    .scalar_subquery()
)
_NEWEST = _COLUMNS.where(
    receipt.c.conversation == bindparam("held"), receipt.c.turn == _LAST_ANSWERED
).order_by(receipt.c.id)
_THIS = _COLUMNS.where(receipt.c.id == bindparam("wanted"))


def to_row(claim: Claim, heard: InboxMessage, one: Receipt, at: float) -> dict[str, object]:
    return {
        "conversation": claim.conversation,
        "turn": heard.turn,
        "at": at,
        "content": zlib.compress(_encode(one), _FAST),
    }


class SqlReceipts(Receipts):
    def __init__(self, database: Database) -> None:
        self._database = database

    @override
    async def newest(self, conversation: str) -> Sequence[tuple[int, Receipt]]:
        asked = {"held": conversation}
        rows = await self._database.read(lambda c: c.execute(_NEWEST, asked).all())
        return [_read(row) for row in rows]

    @override
    async def get(self, number: int) -> Receipt | None:
        asked = {"wanted": number}
        row = await self._database.read(lambda c: c.execute(_THIS, asked).one_or_none())
        return _read(row)[1] if row else None


def _read(row: Row[*tuple[Any, ...]]) -> tuple[int, Receipt]:
    return row.id, _decode(zlib.decompress(row.content))

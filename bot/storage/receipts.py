"""Receipts in SQL, compressed: a prompt of 1,600 tokens takes about two kilobytes."""

import zlib
from collections.abc import Sequence
from typing import Any

import msgspec
from sqlalchemy import Row, bindparam, select

from bot.chat.receipt import Receipt
from bot.chat.session import Claim, InboxMessage
from bot.storage.database import Database
from bot.storage.rows import decode_all
from bot.storage.tables import has_content, receipt

_COMPRESSION_LEVEL = 1  # half the time for a tenth more space
_WINDOW_BITS, _MEMORY_LEVEL = 13, 6
"""The defaults clear 268 KB of memory for each receipt, which takes longer than compressing it."""
_SECONDS_TO_FINISH = 600.0
"""How long after its last word an answer may be stored, while other characters answer too."""
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Receipt).decode

# Statements are built once: building one costs more than running it.
_COLUMNS = select(receipt.c.id, receipt.c.content)
_LAST_ANSWERED_TURN = (
    select(receipt.c.turn)
    .where(receipt.c.conversation == bindparam("conversation_key"), has_content)
    .order_by(receipt.c.id.desc())
    .limit(1)
    .scalar_subquery()
)
_NEWEST = _COLUMNS.where(
    receipt.c.conversation == bindparam("conversation_key"),
    receipt.c.turn == _LAST_ANSWERED_TURN,
    has_content,
).order_by(receipt.c.id)
_NEXT_ANSWERED_TURN = (
    select(receipt.c.turn)
    .where(
        receipt.c.conversation == bindparam("conversation_key"),
        receipt.c.at >= bindparam("moment"),
        receipt.c.at < bindparam("moment") + _SECONDS_TO_FINISH,
        has_content,
    )
    .order_by(receipt.c.id)
    .limit(1)
    .scalar_subquery()
)
_OF_ANSWER = _COLUMNS.where(
    receipt.c.conversation == bindparam("conversation_key"),
    receipt.c.turn == _NEXT_ANSWERED_TURN,
    has_content,
).order_by(receipt.c.id)
_BY_ID = _COLUMNS.where(receipt.c.id == bindparam("receipt_id"), has_content)


def to_row(claim: Claim, message: InboxMessage, one: Receipt, at: float) -> dict[str, object]:
    return {
        "conversation": claim.conversation,
        "turn": message.turn,
        "at": at,
        "content": _compress(_encode(one)),
        "person": one.charge.person,
        "server": one.charge.server,
        "preset": one.preset,
        "provider": one.provider,
        "model": one.charge.model,
        "prompt_tokens": one.usage.prompt_tokens or one.tokens,
        "cached_tokens": one.usage.cached_tokens,
        "output_tokens": one.usage.output_tokens,
        "cost": one.charge.cost,
    }


def _compress(content: bytes) -> bytes:
    compressor = zlib.compressobj(_COMPRESSION_LEVEL, zlib.DEFLATED, _WINDOW_BITS, _MEMORY_LEVEL)
    return compressor.compress(content) + compressor.flush()


class SqlReceipts:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def newest(self, conversation: str) -> Sequence[tuple[int, Receipt]]:
        """Return the receipts of the last answered message: one for each character."""
        values = {"conversation_key": conversation}
        rows = await self._database.read(lambda c: c.execute(_NEWEST, values).all())
        return decode_all("receipt", rows, _decode_row)

    async def of_answer(self, conversation: str, at: float) -> Sequence[tuple[int, Receipt]]:
        """Return the receipts of what was answered at or right after a moment, in Unix seconds."""
        values = {"conversation_key": conversation, "moment": at}
        rows = await self._database.read(lambda c: c.execute(_OF_ANSWER, values).all())
        return decode_all("receipt", rows, _decode_row)

    async def get(self, number: int) -> Receipt | None:
        """Return a receipt, None if it does not exist or was deleted."""
        values = {"receipt_id": number}
        rows = await self._database.read(lambda c: c.execute(_BY_ID, values).all())
        return next((one for _, one in decode_all("receipt", rows, _decode_row)), None)


def _decode_row(row: Row[*tuple[Any, ...]]) -> tuple[int, Receipt]:
    return row.id, decode_receipt(row.content)


def decode_receipt(content: bytes) -> Receipt:
    return _decode(zlib.decompress(content))

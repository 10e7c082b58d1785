"""Receipts in SQL, compressed: a prompt of 1,600 tokens takes about two kilobytes."""

import json
import zlib
from collections.abc import Sequence

import msgspec

from bot.chat.prompt import Usage
from bot.chat.receipt import Receipt
from bot.chat.session import Claim, InboxMessage
from bot.chat.usage import AnswerCharge
from bot.storage.database import Store, reading
from bot.storage.rows import decode_all
from bot.storage.statements import SQL, Rows, Unit

_COMPRESSION_LEVEL = 1  # half the time for a tenth more space
_WINDOW_BITS, _MEMORY_LEVEL = 13, 6
"""The defaults clear 268 KB of memory for each receipt, which takes longer than compressing it."""
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Receipt).decode


def to_row(claim: Claim, message: InboxMessage, one: Receipt, at: float) -> dict[str, object]:
    memories = [span.memory for span in one.layout if span.memory]
    return {
        "conversation": claim.conversation,
        "turn": message.turn,
        "at": at,
        "content": _compress(_encode(one)),
        **usage_columns(one.preset, one.provider, one.charge, one.usage),
        "prompt_tokens": one.usage.prompt_tokens or one.tokens,
        "memories": json.dumps(memories) if memories else None,
    }


USAGE_COLUMNS = (
    *("person", "server", "preset", "provider", "model"),
    *("prompt_tokens", "cached_tokens", "output_tokens", "cost", "memories"),
)


def usage_columns(
    preset: str, provider: str, charge: AnswerCharge, usage: Usage
) -> dict[str, object]:
    """Return the columns that a receipt keeps when its content is deleted."""
    return {
        "person": charge.person,
        "server": charge.server,
        "preset": preset,
        "provider": provider,
        "model": charge.model,
        "prompt_tokens": usage.prompt_tokens,
        "cached_tokens": usage.cached_tokens,
        "output_tokens": usage.output_tokens,
        "cost": charge.cost,
    }


def _compress(content: bytes) -> bytes:
    compressor = zlib.compressobj(_COMPRESSION_LEVEL, zlib.DEFLATED, _WINDOW_BITS, _MEMORY_LEVEL)
    return compressor.compress(content) + compressor.flush()


class Receipts(Store):
    """The receipts of recent answers, by number."""

    @reading
    def newest(self, conversation: str) -> Unit[Sequence[tuple[int, Receipt]]]:
        """Return the receipts for the last answered message, one per character."""
        return _decode_rows((yield SQL["newest_receipts"].query_alone(of=conversation)))

    @reading
    def of_answer(self, conversation: str, at: float) -> Unit[Sequence[tuple[int, Receipt]]]:
        """Return the receipts of answers at or right after a moment, in Unix seconds."""
        return _decode_rows((yield SQL["receipts_of_answer"].query_alone(of=conversation, at=at)))


def _decode_rows(rows: Rows) -> list[tuple[int, Receipt]]:
    return decode_all("receipt", rows, lambda row: (row[0], decode_receipt(row[1])))


def decode_receipt(content: bytes) -> Receipt:
    return _decode(zlib.decompress(content))

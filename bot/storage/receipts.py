"""Receipts in SQL, compressed: a prompt of 1,600 tokens takes about two kilobytes."""

import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from bot.chat.prompt import Usage
from bot.chat.receipt import Receipt
from bot.chat.usage import AnswerCharge
from bot.storage.database import Store, run_readonly
from bot.storage.rows import decode_all
from bot.storage.statements import SQL, Rows, Unit, Values

_ZLIB_LEVEL = 1  # takes half the default level's time, and a tenth more space
_ZLIB_WINDOW_BITS, _ZLIB_MEMORY_LEVEL = 13, 6
"""Below zlib's defaults: clearing their 268 KB takes longer than compressing a receipt."""
_pack_receipt = msgspec.msgpack.Encoder().encode
_unpack_receipt = msgspec.msgpack.Decoder(Receipt).decode


def to_receipt_row(conversation: str, turn: str, receipt: Receipt, at: float) -> dict[str, object]:
    """Return a receipt's table row; `turn` is empty for the receipt of a replay."""
    memory_ids = [span.memory for span in receipt.layout if span.memory]
    return {
        "conversation": conversation,
        "turn": turn,
        "at": at,
        "content": _compress_receipt(_pack_receipt(receipt)),
        **to_usage_columns(receipt.preset, receipt.provider, receipt.charge, receipt.usage),
        "prompt_tokens": receipt.usage.prompt_tokens or receipt.tokens,
        "memories": json.dumps(memory_ids) if memory_ids else None,
        "first_word_seconds": receipt.timings.first_word_seconds,
        "seconds": receipt.timings.queued_seconds + receipt.timings.seconds,
    }


USAGE_COLUMNS = (
    *("person", "server", "preset", "provider", "model"),
    *("prompt_tokens", "cached_tokens", "output_tokens", "cost", "memories"),
    *("first_word_seconds", "seconds"),
)


def to_usage_columns(preset: str, provider: str, charge: AnswerCharge, usage: Usage) -> Values:
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
        "first_word_seconds": None,
        "seconds": None,
    }


def add_receipts(rows: Iterable[Mapping[str, Any]]) -> Unit[None]:
    for row in rows:
        yield SQL["add_receipt"].query(row)
        if row["memories"]:
            for name in ("note_memory_uses", "empty_receipt_of_deleted", "note_deleted_memory"):
                yield SQL[name].query(row)


def _compress_receipt(content: bytes) -> bytes:
    compressor = zlib.compressobj(_ZLIB_LEVEL, zlib.DEFLATED, _ZLIB_WINDOW_BITS, _ZLIB_MEMORY_LEVEL)
    return compressor.compress(content) + compressor.flush()


class Receipts(Store):
    """The receipts of recent answers, by number."""

    @run_readonly
    def find_for_last_message(self, conversation: str) -> Unit[Sequence[tuple[int, Receipt]]]:
        """Return the numbers and receipts of the answers to the last answered message."""
        return _decode_rows((yield SQL["newest_receipts"].query_alone(of=conversation)))

    @run_readonly
    def find_for_answer(self, conversation: str, at: float) -> Unit[Sequence[tuple[int, Receipt]]]:
        """Return the receipts of the first message answered since a moment (Unix seconds)."""
        return _decode_rows((yield SQL["receipts_of_answer"].query_alone(of=conversation, at=at)))


def _decode_rows(rows: Rows) -> list[tuple[int, Receipt]]:
    return decode_all("receipt", rows, lambda row: (row[0], decode_receipt(row[1])))


def decode_receipt(content: bytes) -> Receipt:
    return _unpack_receipt(zlib.decompress(content))

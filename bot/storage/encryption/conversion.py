"""Encrypt what was stored unencrypted, or decrypt all, page by page, also beside a running service.

Each page is a transaction of its own, and a row that is as it should be is left: a conversion that
was interrupted goes on where it was. A row that somebody changes meanwhile is left to them.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    LargeBinary,
    Row,
    Select,
    Table,
    Text,
    literal,
    select,
    tuple_,
    type_coerce,
    update,
)

from bot.errors import StoreError
from bot.storage.encryption.codec import TextCodec
from bot.storage.encryption.column_types import EncryptableBytes, EncryptableText
from bot.storage.encryption.data_keys import retire_data_keys
from bot.storage.sql.database import Database
from bot.storage.sql.tables import metadata, summary, turn

_ROWS_PER_PAGE = 200
"""Few enough that no worker waits long for the transaction that changes them."""
_MAX_PASSES = 3
"""A row may be changed by somebody in each of them."""

Report = Callable[[str, int], None]
"""Called with the name of each table, and how many of its rows were changed."""
Pause = Callable[[], Awaitable[None]]
"""Called after each page; what is more urgent comes before the next one."""


async def go_on() -> None:
    """Convert the next page at once."""


async def convert_texts(database: Database, report: Report, pause: Pause = go_on) -> int:
    """Store every text as new ones are stored; return how many rows were changed.

    Raises:
        StoreError: a text cannot be decrypted, others keep changing rows, or the database failed.
            What was changed by then stays.
    """
    total = 0
    for _ in range(_MAX_PASSES):
        changed = 0
        for table in metadata.sorted_tables:
            columns = _encryptable(table)
            if columns:
                rows = await _convert_table(database, table, columns, pause)
                changed += rows
                report(table.name, rows)
        total += changed
        if not changed:
            await database.truncate_log()
            return total
    raise StoreError("other processes keep storing texts in the other way; stop them and try again")


async def decrypt_all(database: Database, report: Report, now: float) -> int:
    """Decrypt every text and retire the data keys; return how many rows were changed.

    No other process may encrypt meanwhile. Raises as `convert_texts`.
    """
    changed = await convert_texts(database, report)
    await database.write(lambda connection: retire_data_keys(connection, now))
    return changed


def _encryptable(table: Table) -> list[Column[Any]]:
    return [
        column
        for column in table.columns
        if isinstance(column.type, EncryptableText | EncryptableBytes)
    ]


async def _convert_table(
    database: Database, table: Table, columns: Sequence[Column[Any]], pause: Pause
) -> int:
    changed, last = 0, None
    page = _page(table, columns)
    while True:
        after = page if last is None else page.where(tuple_(*table.primary_key) > tuple_(*last))
        rows = await database.read(lambda c, after=after: c.execute(after).all())  # type: ignore[misc]
        if not rows:
            return changed
        changed += await database.write(
            lambda c, rows=rows: _convert_rows(c, table, columns, rows, database.codec)  # type: ignore[misc]
        )
        await pause()
        last = tuple(getattr(rows[-1], column.name) for column in table.primary_key)


def _page(table: Table, columns: Sequence[Column[Any]]) -> Select[Any]:
    """Return the query for the first rows: their keys, and what is stored in these columns."""
    beside = [turn.c.conversation, turn.c.session, turn.c.active] if table is turn else []
    stored = [_stored(column).label(column.name) for column in columns]
    return (
        select(*table.primary_key, *beside, *stored)
        .order_by(*table.primary_key)
        .limit(_ROWS_PER_PAGE)
    )


def _stored(column: Column[Any]) -> ColumnElement[Any]:
    return type_coerce(column, _stored_type(column))


def _stored_type(column: Column[Any]) -> Text | LargeBinary:
    return Text() if isinstance(column.type, EncryptableText) else LargeBinary()


def _convert_rows(
    connection: Connection,
    table: Table,
    columns: Sequence[Column[Any]],
    rows: Sequence[Row[Any]],
    codec: TextCodec,
) -> int:
    changed = 0
    for row in rows:
        new: dict[str, ColumnElement[Any]] = {}
        is_same = [column == getattr(row, column.name) for column in table.primary_key]
        more_chars = 0
        for column in columns:
            old = getattr(row, column.name)
            renewed = codec.renewed(f"{table.name}.{column.name}", old)
            if renewed != old:
                type_ = _stored_type(column)
                new[column.name] = literal(renewed, type_)
                is_same.append(_stored(column) == literal(old, type_))
                if column is turn.c.text and row.active:
                    more_chars = len(renewed or "") - len(old)
        if new and connection.execute(update(table).where(*is_same).values(new)).rowcount:
            changed += 1
            if more_chars:
                _keep_summary(connection, row, more_chars)
    return changed


def _keep_summary(connection: Connection, row: Row[Any], more_chars: int) -> None:
    """Let the summaries that cover a turn expect its new length (sql/summaries.py)."""
    covering = update(summary).where(
        summary.c.conversation == row.conversation,
        summary.c.session == row.session,
        summary.c.covers_to >= row.id,
    )
    connection.execute(covering.values(chars=summary.c.chars + more_chars))

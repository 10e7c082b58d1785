"""Store every text as new ones are stored: with the newest key, or as it is.

Each page is a transaction that locks its rows, and a row that is as it should be is left: the
service may run meanwhile, and a run that was interrupted goes on.
"""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import (
    Column,
    Connection,
    LargeBinary,
    Row,
    Select,
    Table,
    Text,
    literal,
    select,
    type_coerce,
    update,
)

from bot.storage.codec import TextCodec
from bot.storage.column_types import EncryptableText, encryptable_columns
from bot.storage.copying import Report, page_after
from bot.storage.database import Database
from bot.storage.tables import metadata

_ROWS_PER_PAGE = 200
"""Few enough that no worker waits long for the transaction that changes them."""


async def rewrite_texts(database: Database, report: Report) -> int:
    """Store every text as new ones are stored; return how many rows were changed.

    The report is called with the name of each table, and how many of its rows were changed.

    Raises:
        StoreError: a text cannot be decrypted, or the database failed. What was changed by then
            stays.
    """
    total = 0
    for table in metadata.sorted_tables:
        if columns := encryptable_columns(table):
            rows = await _rewrite_table(database, table, columns)
            total += rows
            report(table.name, rows)
    await database.truncate_log()
    return total


async def _rewrite_table(database: Database, table: Table, columns: Sequence[Column[Any]]) -> int:
    """Return how many rows were changed."""
    stored = [type_coerce(one, _stored_type(one)).label(one.name) for one in columns]
    rows_as_stored = select(*table.primary_key, *stored).limit(_ROWS_PER_PAGE).with_for_update()
    changed, last = 0, None
    while True:
        page = page_after(rows_as_stored, table, last)
        rows, changed_here = await database.write(
            lambda c, page=page: _rewrite_page(c, page, table, columns, database.codec)  # type: ignore[misc]
        )
        if not rows:
            return changed
        changed += changed_here
        last = [getattr(rows[-1], one.name) for one in table.primary_key]


def _rewrite_page(
    connection: Connection,
    page: Select[Any],
    table: Table,
    columns: Sequence[Column[Any]],
    codec: TextCodec,
) -> tuple[Sequence[Row[Any]], int]:
    """Return the rows of a page, and how many of them were changed."""
    rows, changed = connection.execute(page).all(), 0
    for row in rows:
        old = {one: getattr(row, one.name) for one in columns}
        new = {one: codec.renewed(value) for one, value in old.items()}
        if new == old:
            continue
        changed += 1
        is_it = [one == getattr(row, one.name) for one in table.primary_key]
        values = {one: literal(value, _stored_type(one)) for one, value in new.items()}
        connection.execute(update(table).where(*is_it).values(values))
    return rows, changed


def _stored_type(column: Column[Any]) -> Text | LargeBinary:
    return Text() if isinstance(column.type, EncryptableText) else LargeBinary()

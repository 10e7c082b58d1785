"""Re-encode all stored texts as the settings require: encrypted with the newest key, or plain.

Each page of rows is locked and changed in one transaction, so that the service can keep running.
Rows that are already correct are skipped, so that an interrupted run can be resumed.
"""

from typing import Any

from sqlalchemy import Table

from bot.storage.column_types import list_encryptable_columns
from bot.storage.copying import ReportRowCount
from bot.storage.database import Database
from bot.storage.statements import Query, Statement, Unit
from bot.storage.tables import metadata

_ROWS_PER_PAGE = 200
"""Rows per transaction: few, so that workers do not wait long for it."""


async def rewrite_texts(database: Database, report: ReportRowCount) -> int:
    """Re-encode all texts as the settings require, and return the number of changed rows.

    `report` is called with each table and its number of changed rows. If a text cannot be
    decrypted, a `StoreError` is raised, but earlier changes are kept.
    """
    changed_row_total = 0
    for table in metadata.sorted_tables:
        if list_encryptable_columns(table):
            changed_row_count = await _rewrite_table(database, table)
            changed_row_total += changed_row_count
            report(table.name, changed_row_count)
    await database.truncate_log()
    return changed_row_total


async def _rewrite_table(database: Database, table: Table) -> int:
    key_names = [one.name for one in table.primary_key]
    text_columns = [one.name for one in list_encryptable_columns(table)]
    # Columns called `stored_NAME` are neither decoded nor encoded.
    names = [*key_names, *(f"stored_{name}" for name in text_columns)]
    columns = ", ".join([*key_names, *(f"{name} AS stored_{name}" for name in text_columns)])
    key, params = ", ".join(key_names), ", ".join(f":{name}" for name in key_names)
    tail = f"ORDER BY {key} LIMIT {_ROWS_PER_PAGE} FOR UPDATE"
    first_page_statement = Statement(f"SELECT {columns} FROM {table.name} {tail}")
    next_page_statement = Statement(
        f"SELECT {columns} FROM {table.name} WHERE ({key}) > ({params}) {tail}"
    )
    update_statement = Statement(
        f"UPDATE {table.name} SET {', '.join(f'{name} = :stored_{name}' for name in text_columns)}"
        f" WHERE ({key}) = ({params})"
    )

    def rewrite_page(query: Query) -> Unit[tuple[dict[str, Any] | None, int]]:
        """Re-encode a page of rows; return its last row and the number of changed rows."""
        row, changed_row_count = None, 0
        for values in (yield query):
            row = dict(zip(names, values, strict=True))
            new = {name: database.codec.reencode(row[name]) for name in names[len(key_names) :]}
            if not new.items() <= row.items():
                changed_row_count += 1
                yield update_statement.query({**row, **new})
        return row, changed_row_count

    row, changed_row_total = await database.run(lambda: rewrite_page(first_page_statement.query()))
    while row is not None:
        query = next_page_statement.query(row)
        row, changed_row_count = await database.run(lambda query=query: rewrite_page(query))  # type: ignore[misc]
        changed_row_total += changed_row_count
    return changed_row_total

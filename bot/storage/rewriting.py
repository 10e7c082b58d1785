"""Re-encode all stored texts as the settings demand: encrypted with the newest key, or plain.

Each page of rows is locked and changed in one transaction, so that the service can keep running.
Rows that are already correct are skipped, so that an interrupted run can be resumed.
"""

from typing import Any

from sqlalchemy import Table

from bot.storage.column_types import encryptable_columns
from bot.storage.copying import ReportTable
from bot.storage.database import Database
from bot.storage.statements import Query, Statement, Unit
from bot.storage.tables import metadata

_ROWS_PER_PAGE = 200
"""Rows per transaction: few, so that workers do not wait long for it."""


async def rewrite_texts(database: Database, report: ReportTable) -> int:
    """Re-encode all texts as the settings demand, and return the number of changed rows.

    `report` is called with each table and its number of changed rows. If a text cannot be
    decrypted, a `StoreError` is raised, but earlier changes are kept.
    """
    total = 0
    for table in metadata.sorted_tables:
        if encryptable_columns(table):
            rows = await _rewrite_table(database, table)
            total += rows
            report(table.name, rows)
    await database.truncate_log()
    return total


async def _rewrite_table(database: Database, table: Table) -> int:
    keys = [one.name for one in table.primary_key]
    columns = [one.name for one in encryptable_columns(table)]
    # Columns called `stored_NAME` are neither decoded nor encoded.
    names = [*keys, *(f"stored_{name}" for name in columns)]
    selected = ", ".join([*keys, *(f"{name} AS stored_{name}" for name in columns)])
    key, last = ", ".join(keys), ", ".join(f":{name}" for name in keys)
    end = f"ORDER BY {key} LIMIT {_ROWS_PER_PAGE} FOR UPDATE"
    page = Statement(f"SELECT {selected} FROM {table.name} {end}")
    next_page = Statement(f"SELECT {selected} FROM {table.name} WHERE ({key}) > ({last}) {end}")
    update = Statement(
        f"UPDATE {table.name} SET {', '.join(f'{name} = :stored_{name}' for name in columns)}"
        f" WHERE ({key}) = ({last})"
    )

    def rewrite(query: Query) -> Unit[tuple[dict[str, Any] | None, int]]:
        """Re-encode a page of rows; return its last row and the number of changed rows."""
        row, changed = None, 0
        for values in (yield query):
            row = dict(zip(names, values, strict=True))
            new = {name: database.codec.reencode(row[name]) for name in names[len(keys) :]}
            if not new.items() <= row.items():
                changed += 1
                yield update.query({**row, **new})
        return row, changed

    row, total = await database.run(lambda: rewrite(page.query()))
    while row is not None:
        query = next_page.query(row)
        row, changed = await database.run(lambda query=query: rewrite(query))  # type: ignore[misc]
        total += changed
    return total

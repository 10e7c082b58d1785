"""A new file gets the tables that the migrations would make."""

import sqlite3
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine

from bot.storage import migrations
from bot.storage.database import create_tables, open_database


@pytest.mark.slow
def test_new_tables_are_those_of_the_migrations(tmp_path: Path) -> None:
    created, migrated = tmp_path / "created.db", tmp_path / "migrated.db"
    with create_engine(f"sqlite:///{created}").begin() as connection:
        assert create_tables(connection)
    with create_engine(f"sqlite:///{migrated}").begin() as connection:
        migrations.upgrade(connection)
    assert schema(created) == schema(migrated)


async def test_file_with_tables_is_left_to_the_migrations(tmp_path: Path) -> None:
    with create_engine(f"sqlite:///{tmp_path / 'old.db'}").begin() as connection:
        connection.exec_driver_sql("CREATE TABLE old (id INTEGER)")
        assert not create_tables(connection)


async def test_new_file_is_at_the_newest_revision(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'new.db'}"
    async with open_database(url):
        pass
    with create_engine(url).begin() as connection:
        migrations.upgrade(connection)  # has nothing to do
    assert "turn" in schema(tmp_path / "new.db")


def schema(file: Path) -> dict[str, Any]:
    """Describe tables and indexes, whatever the order of columns and the form of the SQL."""
    connection = sqlite3.connect(file)
    described: dict[str, Any] = dict(
        connection.execute(
            "SELECT name, instr(sql, 'AUTOINCREMENT') > 0 FROM sqlite_master WHERE type = 'table'"
        )
    )
    for table in list(described):
        columns = sorted(row[1:] for row in connection.execute(f"PRAGMA table_info({table})"))
        indexes = [
            (_index(connection, name), *more)
            for _, name, *more in connection.execute(f"PRAGMA index_list({table})")
        ]
        described[table] = described[table], columns, sorted(indexes)
    connection.close()
    return described


def _index(connection: sqlite3.Connection, name: str) -> tuple[str, list[str], str]:
    columns = [row[2] for row in connection.execute(f"PRAGMA index_info({name})")]
    found = connection.execute("SELECT sql FROM sqlite_master WHERE name = ?", [name]).fetchone()
    if not found[0]:  # of a constraint
        return "", columns, ""
    return name, columns, found[0].partition(" WHERE ")[2].strip("()")

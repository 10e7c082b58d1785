"""SQLite databases without rows, copied from a migrated one, which is ten times faster."""

from pathlib import Path

from bot.storage.database import open_database

_migrated: list[bytes] = []


async def create_sqlite_database(file: Path) -> str:
    url = f"sqlite:///{file}"
    if _migrated:
        file.write_bytes(_migrated[0])  # noqa: ASYNC240
    else:
        async with open_database(url):
            pass
        _migrated.append(file.read_bytes())  # noqa: ASYNC240
    return url

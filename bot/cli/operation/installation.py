"""Work on the database of an installation, beside its processes."""

from collections.abc import Awaitable, Callable, Sequence
from importlib import import_module  # noqa: TID251 # the client of Redis takes long to import
from typing import TypeVar

import uvloop

from bot.chat.access import COMMAND_LINE, AuditEntry
from bot.errors import SettingsError
from bot.runtime.clock import SystemClock
from bot.settings import Settings, read_settings
from bot.storage.database import Database, database_exists, open_database
from bot.storage.operation import AuditLog

T = TypeVar("T")
_MINUTE, _HOUR, _DAY = 60, 3600, 86_400


def require_database(settings: Settings) -> None:
    """Check that the database exists.

    Raises:
        SettingsError: it does not; the text names the settings that lead to it.
    """
    if not database_exists(settings.sqlalchemy_url):
        raise SettingsError(
            f"there is no database in {settings.data_dir} yet: start the service first, or set"
            " TROUPE_DATA_DIR or TROUPE_DATABASE_URL as the service has it"
        )


def use_installation(action: Callable[[Database], Awaitable[T]]) -> T:
    """Return what `action` does with the database that the settings name.

    Raises:
        SettingsError: there is no database yet.
        StoreError: it cannot be opened.
    """
    settings = read_settings()
    require_database(settings)

    async def use() -> T:
        async with open_database(settings.sqlalchemy_url, settings.text_encryption) as database:
            return await action(database)

    return uvloop.run(use())


async def record_change(database: Database, action: str, subject: str, before: str = "") -> None:
    """Note in the audit log what the command line has changed."""
    entry = AuditEntry(SystemClock().now(), COMMAND_LINE, action, subject, before)
    await AuditLog(database).record(entry)


async def signal_all(topic: str, keys: Sequence[str]) -> None:
    """Tell every process at once, if they share a Redis; those that miss it read the database."""
    url = read_settings().redis_url
    if url is not None:
        signals = import_module("bot.storage.redis_signals")
        await signals.publish_once(url.get_secret_value(), topic, keys)


def format_age(seconds: float | None) -> str:
    """Write a time in the unit that people would use: "12 s", "3 min", "5 h", "2 d"."""
    if seconds is None:
        return "-"
    seconds = max(0.0, seconds)
    for unit, size in (("d", _DAY), ("h", _HOUR), ("min", _MINUTE)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def format_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Align columns; the last one is as long as it is."""
    lines = [head, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]

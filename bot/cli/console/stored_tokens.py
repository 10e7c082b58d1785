"""Open the stored tokens of the console, beside a service that runs or without one."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import uvloop

from bot.chat.access import AuditEntry
from bot.runtime.clock import SystemClock
from bot.settings import Settings
from bot.storage.data_dir import create_data_dir
from bot.storage.database import open_database
from bot.storage.operation import AuditLog
from bot.storage.tokens import ConsoleTokens

T = TypeVar("T")


def use_tokens(settings: Settings, action: Callable[[ConsoleTokens], Awaitable[T]]) -> T:
    """Return what `action` does with the stored tokens."""
    return uvloop.run(_use(settings, action))


def change_tokens(
    settings: Settings, change: Callable[[ConsoleTokens], Awaitable[T]], entry: AuditEntry
) -> T:
    """Change the stored tokens and return what `change` does; note it in the audit log.

    A result that is false says that nothing was changed.
    """
    return uvloop.run(_use(settings, change, entry))


async def _use(
    settings: Settings,
    action: Callable[[ConsoleTokens], Awaitable[T]],
    entry: AuditEntry | None = None,
) -> T:
    create_data_dir(settings.data_dir)
    async with open_database(settings.sqlalchemy_url, settings.text_encryption) as database:
        result = await action(ConsoleTokens(database, SystemClock()))
        if entry is not None and result:
            await AuditLog(database).record(entry)
        return result

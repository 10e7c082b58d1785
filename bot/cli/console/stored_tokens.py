"""Open the stored tokens of the console, beside a service that runs or without one."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import uvloop

from bot.ports import ConsoleTokens
from bot.runtime.clock import SystemClock
from bot.settings import Settings
from bot.storage.console.tokens import SqlConsoleTokens
from bot.storage.data_dir import create_data_dir
from bot.storage.sql.database import open_database

T = TypeVar("T")


def use_tokens(settings: Settings, action: Callable[[ConsoleTokens], Awaitable[T]]) -> T:
    """Return what `action` does with the stored tokens."""
    return uvloop.run(_use(settings, action))


async def _use(settings: Settings, action: Callable[[ConsoleTokens], Awaitable[T]]) -> T:
    create_data_dir(settings.data_dir)
    async with open_database(settings.sqlalchemy_url) as database:
        return await action(SqlConsoleTokens(database, SystemClock()))

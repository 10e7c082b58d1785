"""Helpers that run `troupe` commands in this process and access their database."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from typer.testing import CliRunner

from bot.cli.app import app
from bot.runtime.clock import SystemClock
from bot.settings import read_settings
from bot.storage.data_dir import create_data_dir
from bot.storage.database import Database, open_database
from bot.storage.operation import AuditLog

T = TypeVar("T")


def troupe(*words: str, given: str | None = None) -> str:
    """Run a command and return its output; its exceptions propagate."""
    result = CliRunner().invoke(app, words, input=given, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def use_database(action: Callable[[Database], Awaitable[T]]) -> T:
    """Create the database, run an action with it, and return the result."""

    async def use() -> T:
        settings = read_settings()
        create_data_dir(settings.data_dir)
        async with open_database(settings.sqlalchemy_url, settings.text_encryption) as database:
            return await action(database)

    return asyncio.run(use())


def read_audit_log() -> list[tuple[str, str, str]]:
    """Return the audit entries in order: who did what to whom."""
    entries = use_database(lambda database: AuditLog(database, SystemClock()).newest(10))
    return [(one.who, one.action, one.subject) for one in reversed(entries)]

"""No step of a message takes long where much is stored: a million turns, 100,000 open rows.

Behind `make soak`: filling the tables takes a minute, and how long a step takes is a figure.
"""

import asyncio
import shutil
import time
from pathlib import Path

import pytest
from sqlalchemy import Connection, text

from bot.storage.database import open_database
from tests.storage.test_plans import STEPS, Chat

pytestmark = pytest.mark.soak

_MAX_SECONDS_A_STATEMENT = 0.02
_OVER_ALL_ROWS = {"retention", "restart"}
"""One deletes in batches, the other goes over all open rows, once at the start of a process."""
_ATTEMPTS = 3  # the fastest counts: the machine may be busy with something else
_NUMBERS = """
WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {count})
INSERT INTO {into} SELECT {columns} FROM numbers
"""
_FILLINGS = (
    (
        1_000_000,
        "turn (conversation, session, role, text, at, message_id, sent_as)",
        "'telegram:' || (1000 + n % 10000), 1, 'user', 'What do you think of it?', n, n, NULL",
    ),
    (
        100_000,
        "inbox (platform, external_key, conversation, payload, received_at)",
        "'telegram', 'open:' || n, 'telegram:' || (1000 + n % 10000), X'7b7d', n",
    ),
    (
        10_000,
        "conversation (key, platform, ready_since)",
        "'telegram:' || (1000 + n % 10000), 'telegram', n",
    ),
    (
        100_000,
        "outbox (turn, part, op, platform, chat, lane, text)",
        "'open:' || n, 0, 'send', 'telegram', 1000 + n % 10000,"
        " 'telegram:' || (1000 + n % 10000), 'It is fine.'",
    ),
    (
        10_000,
        "lane (key, platform, due_at)",
        "'telegram:' || (1000 + n % 10000), 'telegram', n",
    ),
)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("large") / "troupe.db"
    asyncio.run(_fill(file))
    return file


async def _fill(file: Path) -> None:
    async with open_database(f"sqlite:///{file}") as database:
        await database.write(_insert_rows)
        await database.truncate_log()


def _insert_rows(connection: Connection) -> None:
    for count, into, columns in _FILLINGS:
        connection.execute(text(_NUMBERS.format(count=count, into=into, columns=columns)))


@pytest.mark.timeout(900)
@pytest.mark.parametrize("step", sorted(set(STEPS) - _OVER_ALL_ROWS))
async def test_no_step_takes_longer_where_much_is_stored(
    step: str, filled: Path, tmp_path: Path
) -> None:
    took = []
    for _ in range(_ATTEMPTS):
        shutil.copy(filled, tmp_path)
        took.append(await _seconds_a_statement(step, tmp_path / filled.name))

    assert min(took) <= _MAX_SECONDS_A_STATEMENT


async def _seconds_a_statement(step: str, file: Path) -> float:
    async with open_database(f"sqlite:///{file}") as database:
        chat = Chat(database)
        await chat.open()
        begun = time.monotonic()
        await STEPS[step](chat)
        seconds = time.monotonic() - begun
    return seconds / len(chat.database.statements)

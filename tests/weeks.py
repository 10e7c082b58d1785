"""Weeks that begin in PostgreSQL's tables when a test says so."""

import asyncio
import contextlib
import random

from bot.errors import StoreError
from bot.runtime.clock import SystemClock
from bot.storage.partitions.maintenance import Maintenance
from bot.storage.partitions.queue_tables import QUEUE_TABLES
from bot.storage.partitions.queue_weeks import add_partition
from bot.storage.sql.database import Database, open_database

_MAX_WEEKS = 4
"""So many partitions a table has at most, but for what waits to be dropped."""


async def begin_week(database: Database, number: int = 1) -> None:
    """Let rows of messages go to new partitions from now on, named after that week."""
    clock = SystemClock()
    job = Maintenance(database, clock, clock.now())
    for queue in QUEUE_TABLES:
        await add_partition(job, queue, f"{queue.name}_from_week_{number}")


async def begin_weeks(database_url: str, rng: random.Random) -> None:
    """Let some weeks begin, one every few seconds, while others use the tables."""
    async with open_database(database_url) as database:
        for number in range(_MAX_WEEKS):
            await asyncio.sleep(rng.uniform(5, 15))
            with contextlib.suppress(StoreError):  # somebody stands still: it begins later
                await begin_week(database, number)

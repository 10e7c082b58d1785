"""Keep the partitions of all tables; run every hour by one process."""

from collections.abc import Awaitable, Callable
from functools import partial

from bot.errors import StoreError
from bot.ports import Clock
from bot.storage.partitions.maintenance import (
    Maintenance,
    PartitionChanges,
    earlier_time,
    may_change,
)
from bot.storage.partitions.queue_tables import QUEUE_TABLES
from bot.storage.partitions.queue_weeks import keep_queue_table
from bot.storage.partitions.receipts import keep_receipts
from bot.storage.sql.database import Database
from bot.storage.sql.tables import receipt


async def keep_partitions(
    database: Database, clock: Clock, receipt_days: float
) -> PartitionChanges | None:
    """Make partitions for what comes, drop old ones, compact those of receipts without content.

    Returns:
        What was done; None: the role does not own the tables, or it is SQLite.

    Raises:
        StoreError: the database failed, or others kept it from being locked. What was done stays.
    """
    if database.is_sqlite or not await database.read(lambda c: may_change(c, receipt.name)):
        return None
    job = Maintenance(database, clock, await earlier_time(database, clock))
    steps: list[Callable[[], Awaitable[PartitionChanges]]] = [
        lambda: keep_receipts(job, receipt_days),
        *(partial(keep_queue_table, job, one) for one in QUEUE_TABLES),
    ]
    changes, failure = PartitionChanges(), None
    for step in steps:  # what keeps one table from being locked keeps the others from nothing
        try:
            changes += await step()
        except StoreError as error:
            failure = failure or error
    if failure is not None:
        raise failure
    return changes

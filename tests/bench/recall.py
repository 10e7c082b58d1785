"""Measure the time of recall from 100,000 memories of one server, on each database.

python -m tests.bench.recall
"""

import asyncio
import contextlib
import statistics
import sys
import tempfile
import time
from pathlib import Path

from cryptography.fernet import Fernet
from sqlalchemy import text

from bot.chat.memory import MemoryPlace, RecallingCharacter
from bot.memory.recall import rank_memories
from bot.runtime.clock import SystemClock
from bot.storage.codec import TextEncryption
from bot.storage.database import open_database
from bot.storage.memories import SqlMemories
from tests.contracts.test_memory_plans import SERVER, fill
from tests.postgres import create_postgres_database, running_postgres
from tests.sqlite import create_sqlite_database

_RECALLS = 100


async def measure(url: str, encryption: TextEncryption) -> str:
    """Fill a database, and report the times of recall and ranking."""
    people = tuple(f"discord:{number}" for number in range(1, 21))
    place = MemoryPlace("discord:3", SERVER, is_private=False)
    recalling, ranking = list[float](), list[float]()
    async with open_database(url, encryption) as database:
        await database.write(fill)
        if not database.is_sqlite:
            await database.run_maintenance(
                lambda connection: connection.execute(text("ANALYZE memory"))
            )
        memories = SqlMemories(database, SystemClock())
        listener = RecallingCharacter(place, "nora", people[0], people)
        found = await memories.recall(listener)
        for _ in range(_RECALLS):
            started = time.perf_counter()
            found = await memories.recall(listener)
            recalling.append(time.perf_counter() - started)
            rank_memories("Where do Ann's bees live?", found.memories, {})
            ranking.append(time.perf_counter() - started - recalling[-1])
    times = (
        f"{name} {1000 * statistics.median(one):.1f} ms (least {1000 * min(one):.1f})"
        for name, one in (("recall", recalling), ("ranking", ranking))
    )
    return f"{len(found.memories)} memories: {', '.join(times)}"


async def main(postgres: str) -> None:
    with contextlib.ExitStack() as stack:
        for is_on in (False, True):
            encryption = TextEncryption((Fernet.generate_key().decode(),), is_on)
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            urls = (
                await create_sqlite_database(folder / "troupe.db"),
                await create_postgres_database(postgres),
            )
            for url in urls:
                figures = await measure(url, encryption)
                form = "encrypted" if is_on else "plain"
                sys.stdout.write(f"{url.partition(':')[0]}, {form}, {figures}\n")


if __name__ == "__main__":
    with running_postgres() as folder_of_postgres:
        asyncio.run(main(folder_of_postgres))

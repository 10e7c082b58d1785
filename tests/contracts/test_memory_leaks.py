"""Property tests: memories are shown only where allowed, and are deleted with their turns."""

import asyncio
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bot.storage.database import open_database
from tests.postgres import create_postgres_database
from tests.sqlite import create_sqlite_database
from tests.support.memory_world import (
    KINDS,
    PEOPLE,
    PLACES,
    MortalDatabase,
    Step,
    random_schedule,
    run_schedule,
)
from tests.support.store import Store

SCHEDULES_ON_A_SERVER = 40
SCHEDULES_OF_A_SOAK = 100_000
STEPS = st.lists(
    st.tuples(
        st.sampled_from(KINDS),
        st.integers(0, len(PEOPLE) - 1),
        st.sampled_from(PLACES),
        st.integers(0, 15),
        st.integers(0, 35),
    ),
    max_size=15,
)


@given(STEPS, st.integers(0, 99))
def test_visible_memories_match_a_simple_model_of_the_rules(steps: list[Step], seed: int) -> None:
    async def run() -> None:
        with tempfile.TemporaryDirectory() as folder:
            url = await create_sqlite_database(Path(folder) / "troupe.db")
            async with open_database(url) as database:
                await run_schedule(MortalDatabase(database), steps, seed)

    asyncio.run(run())


async def test_visible_memories_match_a_simple_model_on_each_database(store: Store) -> None:
    database = MortalDatabase(store.database)
    for seed in range(SCHEDULES_ON_A_SERVER):
        await run_schedule(database, random_schedule(Random(seed)), seed)


@pytest.fixture(params=["sqlite", "postgresql"])
async def database(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[MortalDatabase]:
    if request.param == "sqlite":
        url = await create_sqlite_database(tmp_path / "troupe.db")
    else:
        url = await create_postgres_database(request.getfixturevalue("postgres_folder"))
    async with open_database(url) as opened:
        yield MortalDatabase(opened)


@pytest.mark.soak
async def test_hundred_thousand_random_schedules_reveal_no_private_memory(
    database: MortalDatabase,
) -> None:
    for seed in range(SCHEDULES_ON_A_SERVER, SCHEDULES_OF_A_SOAK):
        await run_schedule(database, random_schedule(Random(seed)), seed)

"""How long it takes to find the five nearest of 10,000 stories: `python -m tests.bench.stories`.

The search and the vector of the question are measured apart: only the first grows with the stories.
With the address of a PostgreSQL behind it, that database is measured too (and gets the stories).
"""

import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import numpy as np

from bot.chat.story import PackedVector, StoryVector
from bot.ports import Stories
from bot.prompting.embedding import DEFAULT_EMBEDDER
from bot.storage.database import open_database
from bot.storage.stories import SqlStories

STORIES, NUMBERS, AT_ONCE, TRIES = 10_000, 384, 500, 30
QUESTION = "What is the strangest thing that the sea has brought you?"


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with open_database(f"sqlite:///{Path(folder) / 'bench.db'}") as database:
            await measure("SQLite", SqlStories(database))
    for url in sys.argv[1:]:
        async with open_database(url) as database:
            await measure("PostgreSQL", SqlStories(database))
    embedder = DEFAULT_EMBEDDER
    await report("the vector of a question", lambda: embedder.embed_query(QUESTION))


async def measure(name: str, stories: Stories) -> None:
    texts = [f"Story {number}: " + "the gull and the lamp. " * 20 for number in range(STORIES)]
    vectors = random_vectors(STORIES)
    begun = time.perf_counter()
    await stories.replace_stories("bench", texts, "m")
    for start in range(0, STORIES, AT_ONCE):
        some = zip(texts[start : start + AT_ONCE], vectors[start : start + AT_ONCE], strict=True)
        await stories.save_vectors("bench", "m", [StoryVector(*one) for one in some])
    tell(f"{name}: {STORIES} stories kept in {time.perf_counter() - begun:.1f} s")
    asked = random_vectors(1)[0]
    begun = time.perf_counter()
    await stories.nearest("bench", asked, "m", 5)
    tell(f"{name}: the first search {1000 * (time.perf_counter() - begun):.1f} ms")
    await report(f"{name}: a search", lambda: stories.nearest("bench", asked, "m", 5))


async def report(name: str, ask: Callable[[], Awaitable[object]]) -> None:
    took = []
    await ask()
    for _ in range(TRIES):
        begun = time.perf_counter()
        await ask()
        took.append(1000 * (time.perf_counter() - begun))
    slowest = sorted(took)[int(0.95 * len(took))]
    tell(f"{name}: median {statistics.median(took):.1f} ms, 95 % under {slowest:.1f} ms")


def random_vectors(how_many: int) -> list[PackedVector]:
    matrix = np.random.default_rng().normal(size=(how_many, NUMBERS)).astype("<f4")
    return [row.tobytes() for row in matrix / np.linalg.norm(matrix, axis=1, keepdims=True)]


def tell(line: str) -> None:
    sys.stdout.write(line + "\n")


if __name__ == "__main__":
    asyncio.run(main())

"""Test the exact cost of one message.

Units of work, SQL statements, reads, requests to the model and the platform, time-outs and tasks.

A number that has changed is not wrong by itself, but nobody should change one without noticing.
"""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from inline_snapshot import snapshot

from bot.storage.database import parse_url
from bot.storage.postgres import PostgresPool
from tests.fakes import FakeBackend, ScriptStep
from tests.postgres import counting_round_trips, create_postgres_database
from tests.turn.counted_service import FIRST_WORDS, NORA, running_parts


async def test_streamed_answer_has_the_expected_cost(tmp_path: Path) -> None:
    events = [asyncio.Event(), asyncio.Event()]
    scripts: list[list[ScriptStep]] = [[FIRST_WORDS, event, "And an end."] for event in events]
    backend = FakeBackend(*scripts)
    async with running_parts(tmp_path, backend) as service:
        await service.answer("5:1", events[0])
        assert await service.cost("5:2", events[1]) == snapshot(
            {
                "units": 6,
                "statements": 22,
                "reads": 0,
                "writes": 0,
                "model_requests": 1,
                "platform_requests": ["send", "edit"],
                "timeouts": 0,
                "tasks": {
                    "KeyedWorkerPool._process_item": 3,
                    "LiveReply._update_until_cancelled": 1,
                },
            }
        )
        assert list(service.surface.messages.values()) == [f"{FIRST_WORDS}And an end."] * 2


async def test_first_message_of_a_chat_has_the_expected_cost(tmp_path: Path) -> None:
    async with running_parts(tmp_path, FakeBackend(["Hello."])) as service:
        cost = await service.cost("5:1", None)
        assert {name: cost[name] for name in ("units", "reads", "writes")} == snapshot(
            {"units": 6, "reads": 0, "writes": 0}
        )


async def test_unstreamed_answer_has_the_expected_cost(tmp_path: Path) -> None:
    async with running_parts(tmp_path, FakeBackend(["Hello."])) as service:
        await service.answer("5:1", None)
        assert await service.cost("5:2", None) == snapshot(
            {
                "units": 4,
                "statements": 15,
                "reads": 0,
                "writes": 0,
                "model_requests": 1,
                "platform_requests": ["send"],
                "timeouts": 0,
                "tasks": {"KeyedWorkerPool._process_item": 2},
            }
        )
        assert list(service.surface.messages.values()) == ["Hello."] * 2


async def cost_of_twelve_answers(folder: Path, *, memory: bool) -> dict[str, int]:
    """Return the total cost of answers 7 to 12; memories are extracted after answers 6 and 12."""
    note = {"turn": 1, "speaker": "Alice", "quote": "I keep bees", "about": "Alice"}
    noted = json.dumps([{**note, "kind": "fact", "note": "Alice keeps bees"}])
    scripts = ["Hello."] * 6 + [noted] * memory
    backend = FakeBackend(*([one] for one in scripts * 2))
    preset = NORA.model_copy(update={"memory": memory})
    counts = Counter[str]()
    async with running_parts(folder, backend, preset=preset) as service:
        for number in range(1, 13):
            before = len(backend.prompts)
            text = "I keep bees" if number % 6 == 1 else f"small talk {number}"
            cost = await service.cost(f"5:{number}", None, text=text)
            if number > 6:
                counts.update({one: cost[one] for one in ("statements", "model_requests")})
                for prompt in backend.prompts[before:]:
                    counts["prompt_tokens"] += await backend.count_tokens(prompt)
    return dict(counts)


@pytest.mark.parametrize(
    ("memory", "expected"),
    [
        (False, {"statements": 90, "model_requests": 6, "prompt_tokens": 1182}),
        (True, {"statements": 127, "model_requests": 7, "prompt_tokens": 1781}),
    ],
)
async def test_memory_extraction_for_six_answers_has_the_expected_cost(
    tmp_path: Path, memory: bool, expected: dict[str, int]
) -> None:
    """The expected costs are those in docs/costs.md."""
    assert await cost_of_twelve_answers(tmp_path, memory=memory) == expected


async def test_answer_in_a_chat_without_memories_needs_no_database_read(tmp_path: Path) -> None:
    preset = NORA.model_copy(update={"memory": True})
    backend = FakeBackend(["Hello."], ["Hello."])
    async with running_parts(tmp_path, backend, preset=preset) as service:
        await service.answer("5:1", None)
        assert (await service.cost("5:2", None))["reads"] == 0


@pytest.fixture
async def round_trips() -> Counter[str]:
    return Counter()


@pytest.fixture
async def pool(postgres_folder: str, round_trips: Counter[str]) -> AsyncIterator[PostgresPool]:
    url = await create_postgres_database(postgres_folder)
    async with counting_round_trips(postgres_folder, round_trips) as folder:
        yield PostgresPool(parse_url(url.replace(postgres_folder, folder)))


@pytest.mark.service
@pytest.mark.parametrize(("is_streamed", "trips"), [(True, 6), (False, 4)])
async def test_answer_needs_a_fixed_number_of_round_trips(
    tmp_path: Path,
    pool: PostgresPool,
    round_trips: Counter[str],
    is_streamed: bool,
    trips: int,
) -> None:
    """Receiving, beginning, finishing and reporting as sent take one round trip each."""
    ends = [asyncio.Event() if is_streamed else None for _ in range(2)]
    scripts: list[list[ScriptStep]] = [
        [FIRST_WORDS, end, "And an end."] if end else ["Hello."] for end in ends
    ]
    async with running_parts(tmp_path, FakeBackend(*scripts), pool) as service:
        await service.answer("5:1", ends[0])
        round_trips.clear()
        cost = await service.cost("5:2", ends[1])
        assert (cost["units"], cost["reads"] + cost["writes"]) == (trips, 0)
        assert dict(round_trips) == {"round_trips": trips}
        answer = f"{FIRST_WORDS}And an end." if is_streamed else "Hello."
        assert list(service.surface.messages.values()) == [answer] * 2

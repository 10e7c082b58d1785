"""The memories page over HTTP: search, sources, audiences, approval, and deletion."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from bot.chat.memory import Memory, MemoryPlace, MemoryState, MemorySubject, SubjectKind
from tests.platforms.web.channel import write_settings
from tests.support.console import NORA, Playground, opened, read

PLACE = MemoryPlace("telegram:5", "telegram:5", is_private=False)
ALICE = MemorySubject(SubjectKind.PERSON, "telegram:1", "Alice <b>")
BEES = Memory(ALICE, "Keeps <i>bees</i>", "telegram:1", PLACE, is_derived=False, since=9.0)
RAIN = Memory(
    MemorySubject(SubjectKind.PLACE, "telegram:5"),
    "It rains",
    "telegram:2",
    PLACE,
    witnesses=("nora",),
    is_derived=False,
    state=MemoryState.PROPOSED,
)


@pytest.fixture
async def playground(tmp_path: Path) -> AsyncIterator[Playground]:
    async with opened(write_settings(tmp_path, [NORA])) as one:
        await one.open()
        for memory in (BEES, RAIN):
            assert await one.service.container.memories.add(memory)
        yield one


async def list_memories(playground: Playground, query: str = "") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(await read(playground, f"/api/v1/memories{query}"))[
        "memories"
    ]
    return found


async def test_memories_are_searched_with_their_sources(playground: Playground) -> None:
    rain, bees = await list_memories(playground)
    assert bees == {
        "number": 1,
        "text": "Keeps <i>bees</i>",
        "kind": "fact",
        "about": "Alice <b>",
        "said_by": "telegram:1",
        "channel": "telegram:5",
        "audience": "channel telegram:5",
        "characters": [],
        "is_by_hand": True,
        "is_pinned": False,
        "state": "kept",
        "since": 9.0,
    }
    assert (rain["characters"], rain["state"]) == (["nora"], "proposed")
    for query in ("?text=BEES", "?text=alice", "?text=telegram:1", "?state=kept"):
        assert [one["number"] for one in await list_memories(playground, query)] == [1], query
    assert await list_memories(playground, "?text=snow") == []
    assert [one["number"] for one in await list_memories(playground, "?preset=nora")] == [2]
    page = await playground.open("/memories?text=bees")
    assert "Keeps &lt;i&gt;bees&lt;/i&gt;" in page
    assert "It rains" not in page
    assert "Waiting for approval (1)" in page
    page = await playground.open("/presets/nora?tab=lorebook")
    assert "It rains" in page
    assert "bees" not in page


async def test_proposals_are_approved_and_memories_deleted(playground: Playground) -> None:
    await playground.open("/memories?state=proposed")
    assert (await playground.send("/memories/2/approve"))[0] == 303
    assert [one["state"] for one in await list_memories(playground)] == ["kept", "kept"]
    assert (await playground.send("/memories/1/forget"))[0] == 303
    assert [one["text"] for one in await list_memories(playground)] == ["It rains"]
    for path in ("/memories/1/forget", "/memories/0/forget", "/memories/9/approve"):
        assert (await playground.send(path))[0] == 404, path
    entries = json.loads(await read(playground, "/api/v1/audit"))["entries"]
    assert [(one["action"], one["subject"]) for one in entries] == [
        ("forget memory", "1"),
        ("approve memory", "2"),
    ]

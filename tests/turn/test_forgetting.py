"""What is forgotten stands nowhere any more, and what is said in one place reaches no other."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from bot.chat.incoming import Incoming
from bot.errors import Refused
from bot.storage.sql.database import Database
from tests.attacks import with_ours
from tests.fakes import FakeBackend
from tests.samples import ALICE, BOB, make_incoming
from tests.turn.test_worker import CHAT, Stage, running_worker
from tests.waiting import wait_until

CANARY = "canary-5e1f0d"
LONG = f"{CANARY} " * 80  # with others of its kind more than a page of the database


@pytest.fixture
def stage(database: Database) -> Stage:
    return Stage(database, backend=FakeBackend([f"So your word is {CANARY}."]))


def traces(folder: Path) -> list[str]:
    """The files under a folder in which the canary stands, however it was written."""
    forms = [CANARY.encode(), CANARY.encode("utf-16-le"), CANARY.encode("utf-16-be")]
    files = [path for path in folder.rglob("*") if path.is_file()]
    return [path.name for path in files if any(form in path.read_bytes() for form in forms)]


async def forgets_all_that_was_said(stage: Stage, folder: Path) -> None:
    await stage.talk(*[f"{number} {LONG}" for number in range(30)])
    await stage.talk(f"/me I am {CANARY}", "/new", make_incoming(LONG, key="5:90", quote=LONG))
    assert traces(folder)

    await stage.talk("/forget")

    assert traces(folder) == []
    await stage.talk("/me")
    assert stage.texts[-1].startswith("⚠ You have not described yourself")


async def forgets_an_answer_under_way(stage: Stage, folder: Path) -> None:
    goes_on = asyncio.Event()
    stage.backend = FakeBackend([f"{CANARY} ", goes_on, LONG])
    stage = Stage(stage.database, backend=stage.backend)
    await stage.hear(f"say {LONG}")
    async with running_worker(stage) as worker:
        await wait_until(lambda: len(stage.backend.prompts) == 1)
        await stage.hear("/forget")
        goes_on.set()
        await worker
    assert stage.texts[-1].startswith("Deleted for good: 2 messages")
    assert traces(folder) == []


async def forgets_what_could_not_be_sent(stage: Stage, folder: Path) -> None:
    stage.surface.fail_next("send", *[Refused("they have blocked the bot")] * 3)
    await stage.talk(f"say {LONG}")
    await stage.talk("/forget")
    assert traces(folder) == []


async def keeps_places_apart(stage: Stage, folder: Path) -> None:
    await stage.talk(f"my secret is {CANARY}", f"/me I am {CANARY}")
    await _says_elsewhere(stage, make_incoming("what is my secret?", chat="-100", key="-100:1"))
    await _says_elsewhere(
        stage, make_incoming("and in a topic?", chat="-100", thread="5", key="-100:2")
    )
    assert len(stage.backend.prompts) == 3
    for prompt in stage.backend.prompts[1:]:
        assert CANARY not in repr(prompt)


async def asks_for_everybody_anew(stage: Stage, folder: Path) -> None:
    """The same question from somebody else is a question of its own."""
    await stage.talk(make_incoming(f"what is {CANARY}?", key="5:1", author=ALICE))
    there = make_incoming(f"what is {CANARY}?", chat="6", key="6:1", author=BOB)
    await _says_elsewhere(stage, there)
    first, second = stage.backend.prompts
    assert (first.asked_by, second.asked_by) == (ALICE.id, BOB.id)
    assert (first.conversation, second.conversation) == (CHAT, "telegram:6")
    assert second.messages[-1].content == f"what is {CANARY}?"


async def forgets_no_other_place(stage: Stage, folder: Path) -> None:
    await _says_elsewhere(stage, make_incoming("/me I am Robin", chat="55", key="55:1"))
    await stage.talk("/forget")
    await _says_elsewhere(stage, make_incoming("/me", chat="55", key="55:2"))
    assert stage.texts[-1] == "Your description here: I am Robin"


async def _says_elsewhere(stage: Stage, said: Incoming) -> None:
    await stage.hear(said)
    await stage.worker.work(said.address.conversation)
    await stage.deliver([said.address.lane])


Scene = Callable[[Stage, Path], Awaitable[None]]
SCENES: Mapping[str, Scene] = {
    "/forget me removes rows": forgets_all_that_was_said,
    "/forget while turn runs": forgets_an_answer_under_way,
    "/forget: outbox, logs, Redis streams, dead letters": forgets_what_could_not_be_sent,
    "DM content used in group answer": keeps_places_apart,
    "cached answer served to other user": asks_for_everybody_anew,
}
OURS: Mapping[str, Scene] = {
    "/forget with much to delete": forgets_all_that_was_said,
    "/forget in the next chat": forgets_no_other_place,
    "topic of the same number as a chat": keeps_places_apart,
}
NOT_HERE = {
    "/forget: RAG chunks and embeddings": "stories are the operator's, people add none",
    "bot kicked from guild": "nobody listens for it yet",
    "connection-pool mix-up (cancelled Redis read)": "tests/contracts/test_coordinator.py has it",
}


@pytest.mark.parametrize(("title", "given"), with_ours("privacy", OURS))
async def test_what_was_said_stays_where_it_belongs(
    stage: Stage, tmp_path: Path, title: str, given: Any
) -> None:
    scene = OURS.get(title) or SCENES.get(title)
    if scene is None:
        pytest.skip(NOT_HERE.get(title, "there is no scene for this"))
    await scene(stage, tmp_path)

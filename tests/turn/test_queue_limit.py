"""Test that a conversation with too many waiting questions refuses more, and loses none of them."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import select

from bot.chat.incoming import Person, Said
from bot.storage.database import Database, open_database
from bot.storage.tables import inbox
from tests.fakes import FakeBackend, FakeSurface, ScriptStep
from tests.postgres import create_postgres_database
from tests.samples import ALICE, BOB, make_incoming
from tests.turn.busy_channel import answering, end, pass_time_until
from tests.turn.setup import Setup
from tests.waiting import advance_in_steps

MOST = 20
"""Questions that one answer may cover, which is what a preset gathers by default."""


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.service)])
async def database(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Database]:
    """An empty database of each kind."""
    url = f"sqlite:///{tmp_path / 'troupe.db'}"
    if request.param == "postgresql":
        url = await create_postgres_database(request.getfixturevalue("postgres_folder"))
    async with open_database(url) as database:
        yield database


class LimitedSetup(Setup):
    """A worker whose conversations may have so many questions waiting."""

    def __init__(
        self,
        database: Database,
        *scripts: Sequence[ScriptStep],
        surface: FakeSurface | None = None,
    ) -> None:
        super().__init__(
            database,
            backend=FakeBackend(*scripts),
            preset={"busy": "queue"},
            surface=surface,
            max_waiting=MOST,
        )


def question(number: int, author: Person = ALICE, text: str = "") -> Said:
    return make_incoming(text or f"q{number}", key=f"5:{number}", author=author)


async def open_messages(setup: Setup) -> int:
    """Return how many received messages are not finished."""
    unanswered = select(inbox.c.id).where(inbox.c.state == "new")
    return len(await setup.database.read(lambda c: c.execute(unanswered).all()))


def busy_notices(setup: Setup) -> list[str]:
    return [text for text in setup.texts if "I am busy" in text]


async def test_question_over_the_limit_is_not_answered_and_told_so_behind_the_answer(
    database: Database,
) -> None:
    go_on, go_on_next = asyncio.Event(), asyncio.Event()
    next_answers: list[Sequence[ScriptStep]] = [[go_on_next, "next"], *([["next"]] * (MOST - 1))]
    setup = LimitedSetup(database, [go_on, "first"], *next_answers)
    async with answering(setup, question(1)) as worker:
        await setup.receive(*(question(number) for number in range(2, MOST + 2)))
        people = [Person(f"telegram:{number}", f"P{number}") for number in range(100, 150)]
        await setup.receive(*(question(50 + n, one) for n, one in enumerate(people)))
        await advance_in_steps(setup.clock, 5)
        assert setup.texts == [], "no notice is in front of the answer"
        go_on.set()
        await pass_time_until(setup, lambda: len(setup.texts) == 2)
        go_on_next.set()
        await end(setup, worker)
    [told] = busy_notices(setup)  # once a minute in a chat
    assert setup.texts == ["first", told, *["next"] * MOST]
    assert await open_messages(setup) == 0
    assert [text for _, text in await setup.history()].count("q50") == 1, "it is remembered"


async def test_process_that_dies_before_its_answer_has_refused_nothing(database: Database) -> None:
    setup = LimitedSetup(database, [asyncio.Event()])
    async with answering(setup, question(1)) as worker:
        await setup.receive(*(question(number) for number in range(2, MOST + 3)))
        await advance_in_steps(setup.clock, 5)
        await setup.take_over()
        worker.cancel()
    await setup.finish_sending()
    assert await open_messages(setup) == MOST + 2

    scripts = [["again"] for _ in range(MOST + 2)]
    other = LimitedSetup(database, *scripts, surface=setup.surface)
    await other.conversations.release_all("other")
    await other.work()

    assert await open_messages(other) == 0
    assert len(other.backend.prompts) == MOST + 2
    assert busy_notices(other) == []


async def test_commands_and_lines_for_others_are_not_counted(database: Database) -> None:
    go_on = asyncio.Event()
    setup = LimitedSetup(database, [go_on, "first"], *(["next"] for _ in range(MOST)))
    async with answering(setup, question(1)) as worker:
        await setup.receive(*(question(number) for number in range(2, MOST + 2)))
        await setup.receive(question(60, text="/help"))
        await setup.receive(replace(question(61, BOB), wake=None))
        await advance_in_steps(setup.clock, 5)
        assert busy_notices(setup) == []
        go_on.set()
        await end(setup, worker)
    assert busy_notices(setup) == []

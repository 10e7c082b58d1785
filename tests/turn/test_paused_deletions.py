"""Test that what deletes something takes effect during a pause, also on what waits."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlalchemy import select

from bot.chat.button import ButtonAction
from bot.chat.incoming import Deleted, Person, Said, WakeReason
from bot.storage.sql.database import Database, open_database
from bot.storage.sql.tables import inbox
from tests.fakes import FakeBackend
from tests.postgres import create_postgres_database
from tests.samples import ALICE, BOB, make_incoming
from tests.turn.setup import CHAT
from tests.turn.test_pauses import NOTICE, PausedSetup
from tests.turn.test_pressed_buttons import pressed


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.service)])
async def database(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Database]:
    """An empty database of each kind."""
    url = f"sqlite:///{tmp_path / 'troupe.db'}"
    if request.param == "postgresql":
        url = await create_postgres_database(request.getfixturevalue("postgres_folder"))
    async with open_database(url) as database:
        yield database


class LookingSetup(PausedSetup):
    """A worker whose pool also claims what is paused, once for each signal."""

    async def look_for_deletions(self, key: str = CHAT) -> int:
        """Do what the pool does while a conversation is paused; return the number of claims."""
        claims = 0
        while self.pauses.may_claim(key) and (claimed := await self.worker.claim([key])):
            self.pauses.note_claims([key])
            await self.worker.work(claimed[key])
            claims += 1
        await self.finish_sending()
        return claims

    @property
    def said(self) -> list[str]:
        """What the bot said, without the notice of the pause."""
        return [text for text in self.texts if text != NOTICE]


def said(text: str, number: int, author: Person = ALICE) -> Said:
    wake = WakeReason.COMMAND if text.startswith("/") else WakeReason.DM
    return make_incoming(text, key=f"5:{number}", author=author, wake=wake, admin=None)


async def waiting_texts(setup: PausedSetup) -> int:
    """Return how many received messages still have their words stored."""
    stored = select(inbox.c.id).where(inbox.c.payload.is_not(None))
    return len(await setup.database.read(lambda c: c.execute(stored).all()))


async def test_forget_channel_deletes_the_history_and_what_waits(database: Database) -> None:
    setup = LookingSetup(database, backend=FakeBackend(["one"]))
    await setup.say(said("the first", 1))
    await setup.pause()
    await setup.receive(said("waits", 2), said("waits too", 3, BOB), said("/forget", 4))
    await setup.look_for_deletions()
    assert await setup.history() == []
    assert await waiting_texts(setup) == 0
    assert setup.said[-1].startswith("Deleted for good: 2 messages")
    await setup.resume()
    await setup.work()
    assert len(setup.backend.prompts) == 1, "what waited is not answered after the pause"


async def test_questions_of_others_wait_on_when_somebody_is_forgotten(database: Database) -> None:
    setup = LookingSetup(database, backend=FakeBackend(["one"], ["two"]), preset={"busy": "queue"})
    await setup.say(said("mine", 1))
    await setup.pause()
    await setup.receive(said("theirs", 2, BOB), said("mine too", 3), said("/forget me", 4))
    await setup.look_for_deletions()
    assert setup.said[-1].startswith("Delete everything that you said in all channels")
    await setup.receive(pressed(ButtonAction.FORGET, "telegram:5:4/0"))
    await setup.look_for_deletions()
    assert await setup.look_for_deletions() == 0, "nothing new came"
    await setup.look()
    assert await setup.history() == []
    assert await waiting_texts(setup) == 1
    await setup.resume()
    await setup.work()
    assert await setup.history() == [("user", "theirs"), ("assistant", "two")]


async def test_deleted_message_is_not_answered_after_the_pause(database: Database) -> None:
    setup = LookingSetup(database, backend=FakeBackend(["two"]))
    await setup.pause()
    gone, stays = said("a mistake", 1), said("the question", 2)
    await setup.receive(gone, stays)
    await setup.receive(Deleted(gone.address, "5:1:gone", ("1",), gone.at, gone.scopes))
    await setup.look_for_deletions()
    assert await waiting_texts(setup) == 1
    await setup.resume()
    await setup.work()
    assert await setup.history() == [("user", "the question"), ("assistant", "two")]


async def test_who_may_not_forget_the_channel_deletes_nothing_that_waits(
    database: Database,
) -> None:
    setup = LookingSetup(database, backend=FakeBackend(["one"]))
    await setup.pause()
    await setup.receive(said("waits", 1), said("/forget", 2, BOB))
    await setup.look_for_deletions()
    assert "Only an admin can" in setup.said[-1]
    assert await waiting_texts(setup) == 1
    await setup.resume()
    await setup.work()
    assert await setup.history() == [("user", "waits"), ("assistant", "one")]


async def test_forget_last_keeps_its_turn_behind_an_own_question(database: Database) -> None:
    setup = LookingSetup(database, backend=FakeBackend(["one"], ["two"]), preset={"busy": "queue"})
    await setup.say(said("first", 1))
    await setup.pause()
    await setup.receive(said("second", 2), said("/forget last", 3))
    assert await setup.look_for_deletions() == 1, "it is looked at once for each signal"
    assert await waiting_texts(setup) == 2
    await setup.resume()
    await setup.work()
    assert await setup.history() == [("user", "first"), ("assistant", "one")]

"""Turns that are kept in memory are what a fresh read gives, whoever had the conversation since."""

import random
import re
from datetime import UTC, datetime
from typing import TypeVar

import pytest
from typing_extensions import override

from bot.chat.session import Claim, ClaimedMessage, Turn, TurnResult
from bot.errors import Fenced, StoreError
from bot.runtime.clock import SystemClock
from bot.storage.conversations import Conversations
from bot.storage.database import Database
from bot.storage.sqlite import UnitOfWork
from bot.storage.statements import StartUnit, Unit
from tests.samples import ALICE, make_incoming, read_session
from tests.support.store import Store

T = TypeVar("T")
LANE = "telegram:5"
_READS_HISTORY = re.compile(r"SELECT\s.*\sFROM turn\b", re.DOTALL)
EXPIRED = -1.0  # the lease of a claim that anybody may follow
AT = datetime(2026, 11, 21, 12, 0, 0, 123457, tzinfo=UTC)


class ObservedDatabase(Database):
    """Counts how often a history is read; can lose the answers to commits."""

    def __init__(self, database: Database) -> None:
        super().__init__(database._connections)
        self._database = database
        self.reads = 0
        self.loses_answers = False

    @override
    async def run(self, start: StartUnit[T]) -> T:
        value = await self._database.run(lambda: self._observed(start()))
        if self.loses_answers:
            raise StoreError("the database failed: TimeoutError")
        return value

    def _observed(self, unit: Unit[T]) -> Unit[T]:
        query = next(unit)
        try:
            while True:
                self.reads += (
                    _READS_HISTORY.match(query.statement.compiled("sqlite").text) is not None
                )
                query = unit.send((yield query))
        except StopIteration as ended:
            value: T = ended.value
            return value

    @override
    async def read(self, unit: UnitOfWork[T]) -> T:
        return await self._database.read(unit)

    @override
    async def write(self, unit: UnitOfWork[T]) -> T:
        return await self._database.write(unit)

    @override
    async def truncate_log(self) -> None:
        """Nothing here looks at the log."""


class Process:
    """One process that answers messages in a chat."""

    def __init__(self, store: Store, name: str) -> None:
        self._store = store
        self._name = name
        self.database = ObservedDatabase(store.database)
        self.conversations = Conversations(self.database, SystemClock())

    async def claim(self, key: str) -> ClaimedMessage:
        """Receive a message and claim its conversation, whoever has it."""
        await self._store.inbox.receive([make_incoming(key=key)], {})
        [begun] = await self.conversations.begin([LANE], self._name, EXPIRED)
        return begun

    async def finish(self, begun: ClaimedMessage, *texts: str, new_session: bool = False) -> None:
        turns = [Turn("user", text, ALICE, AT) for text in texts]
        result = TurnResult(turns, new_session=new_session)
        await self.conversations.finish(begun.claim, begun.message, result)

    async def answer(self, key: str, *texts: str) -> int:
        """Load the history and extend it, as for a message; return how often SQL was read."""
        begun, before = await self.claim(key), self.database.reads
        await self.expect_fresh(begun.claim)
        await self.finish(begun, *texts)
        return self.database.reads - before

    async def expect_fresh(self, claim: Claim, max_turns: int = 100) -> None:
        loaded = await self.conversations.load_session(claim, max_turns)
        assert loaded == await read_session(self._store.database, LANE, max_turns)


@pytest.fixture
def here(store: Store) -> Process:
    return Process(store, "here")


@pytest.fixture
def there(store: Store) -> Process:
    return Process(store, "there")


async def test_following_messages_are_answered_without_a_read(here: Process) -> None:
    reads = [await here.answer(f"5:{n}", f"said {n}", "answered\0") for n in range(4)]
    assert reads == [1, 0, 0, 0]


async def test_claim_of_another_process_drops_the_window(here: Process, there: Process) -> None:
    await here.answer("5:1", "a")
    await there.answer("5:2", "b")
    assert await here.answer("5:3", "c") == 1
    assert await here.answer("5:4", "d") == 0


async def test_claim_that_finished_nothing_drops_the_window_of_others(
    here: Process, there: Process
) -> None:
    await here.answer("5:1", "a")
    begun = await there.claim("5:2")
    await there.conversations.release(begun.claim)
    [again] = await here.conversations.begin([LANE], "here", 60)
    await here.expect_fresh(again.claim)
    assert here.database.reads == 2


async def test_short_window_does_not_hide_older_turns(here: Process, there: Process) -> None:
    await there.answer("5:1", *"abcdef")
    begun = await here.claim("5:2")
    for most, reads in ((2, 1), (1, 1), (4, 2), (3, 2), (100, 3), (50, 3)):
        await here.expect_fresh(begun.claim, most)
        assert here.database.reads == reads
    await here.finish(begun, "g")
    assert await here.answer("5:3", "h") == 0


async def test_forget_drops_the_window(here: Process) -> None:
    await here.answer("5:1", "CANARY")
    begun = await here.claim("5:2")
    await here.expect_fresh(begun.claim)
    await here.conversations.forget(begun.claim)
    await here.expect_fresh(begun.claim)
    await here.finish(begun, "new")
    await here.answer("5:3", "x")


async def test_new_session_drops_the_window(here: Process) -> None:
    await here.answer("5:1", "old")
    begun = await here.claim("5:2")
    await here.finish(begun, "greeting", new_session=True)
    assert await here.answer("5:3", "x") == 1


async def test_fenced_finish_leaves_nothing_in_memory(here: Process, there: Process) -> None:
    await here.answer("5:1", "a")
    late = await here.claim("5:2")
    await here.expect_fresh(late.claim)
    await there.answer("5:3", "b")
    with pytest.raises(Fenced):
        await here.finish(late, "lost")
    await here.answer("5:4", "c")


async def test_fenced_finish_does_not_disturb_the_claim_after_it(here: Process) -> None:
    await here.answer("5:1", "a")
    late = await here.claim("5:2")
    [new] = await here.conversations.begin([LANE], "here", 60)
    await here.expect_fresh(new.claim)
    with pytest.raises(Fenced):
        await here.finish(late, "lost")
    await here.finish(new, "b")
    assert await here.answer("5:3", "c") == 0


async def test_commit_without_an_answer_drops_the_window(here: Process) -> None:
    begun = await here.claim("5:1")
    await here.expect_fresh(begun.claim)
    here.database.loses_answers = True
    with pytest.raises(StoreError):
        await here.finish(begun, "committed")
    here.database.loses_answers = False
    await here.expect_fresh(begun.claim)
    assert await here.answer("5:2", "b") == 0


@pytest.mark.parametrize("seed", range(8))
async def test_any_mixture_of_steps_gives_what_a_fresh_read_gives(
    here: Process, there: Process, seed: int
) -> None:
    await _mix_steps(here, there, seed)


async def _mix_steps(here: Process, there: Process, seed: int) -> None:
    dice = random.Random(seed)
    for number in range(30):
        process = dice.choice((here, here, here, there))
        begun = await process.claim(f"5:{number}")
        for _ in range(dice.randrange(3)):
            await process.expect_fresh(begun.claim, dice.choice((1, 3, 10, 400)))
        match dice.randrange(10):
            case 0:
                await process.conversations.forget(begun.claim)
            case 1:
                await process.conversations.release(begun.claim)
            case 2:
                await dice.choice((here, there)).claim(f"5:{number}+")
                with pytest.raises(Fenced):
                    await process.finish(begun, "lost")
            case 3:
                await process.finish(begun, "hello", new_session=True)
            case _:
                await process.finish(begun, *map(str, range(dice.randrange(4))))

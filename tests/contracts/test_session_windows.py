"""Contract: cached turns equal stored turns, even if another process changed the history."""

import random
import re
import secrets
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import pytest
from cryptography.fernet import Fernet
from redis.asyncio import Redis
from typing_extensions import override

from bot.chat.session import Claim, ClaimedMessage, Session, Turn, TurnResult
from bot.errors import Fenced, StoreError
from bot.runtime.clock import SystemClock
from bot.storage.codec import TextCodec, TextEncryption
from bot.storage.conversations import Conversations
from bot.storage.database import Database
from bot.storage.fernets import FernetCodec
from bot.storage.redis_session_windows import open_session_windows
from bot.storage.session_windows import SessionWindow, SharedSessionWindows, create_window
from bot.storage.statements import Query, StartUnit
from tests.fakes import FakeClock
from tests.samples import ALICE, make_incoming, read_session
from tests.support.store import Store
from tests.support.units import through
from tests.valkey import frozen_valkey, run_redis, run_valkey
from tests.waiting import wait_until_async

T = TypeVar("T")
LANE = "telegram:5"
_READS_HISTORY = re.compile(r"SELECT\s.*\sFROM turn\b", re.DOTALL)
EXPIRED = -1.0  # the lease of a claim that anybody may follow
AT = datetime(2026, 11, 21, 12, 0, 0, 123457, tzinfo=UTC)


class ObservedDatabase(Database):
    """A database that counts reads of histories, and can lose the responses to commits."""

    def __init__(self, database: Database) -> None:
        super().__init__(database._pool)
        self._database = database
        self.reads = 0
        self.loses_answers = False

    @override
    async def run(self, start: StartUnit[T]) -> T:
        value = await self._database.run(lambda: through(self._count, start()))
        if self.loses_answers:
            raise StoreError("the database failed: TimeoutError")
        return value

    def _count(self, query: Query) -> Query:
        sql = query.statement.compile_for("sqlite").text
        self.reads += _READS_HISTORY.match(sql) is not None
        return query

    @override
    async def truncate_log(self) -> None:
        """Do nothing, because these tests ignore the log."""


class FakeSharedWindows(SharedSessionWindows):
    """An in-memory cache of windows that all processes of a test share."""

    def __init__(self) -> None:
        self.kept: dict[str, tuple[int, SessionWindow]] = {}

    @override
    def share(self, claim: Claim, window: SessionWindow) -> None:
        self.kept[claim.conversation] = claim.epoch, window

    @override
    async def find(self, claim: Claim) -> SessionWindow | None:
        epoch, window = self.kept.get(claim.conversation, (0, None))
        return window if epoch == claim.epoch - 1 else None

    @override
    async def drop(self, claim: Claim) -> None:
        self.kept.pop(claim.conversation, None)


class Process:
    """One process that answers messages in a chat."""

    def __init__(self, store: Store, name: str, shared: SharedSessionWindows | None = None) -> None:
        self._store = store
        self._name = name
        self.database = ObservedDatabase(store.database)
        self.conversations = Conversations(self.database, SystemClock(), shared_windows=shared)

    async def claim(self, key: str) -> ClaimedMessage:
        """Receive a message and claim its conversation, even if another process holds it."""
        await self._store.inbox.receive([make_incoming(key=key)], {})
        [begun] = await self.conversations.claim_next([LANE], self._name, EXPIRED)
        return begun

    async def finish(self, begun: ClaimedMessage, *texts: str, new_session: bool = False) -> None:
        turns = [Turn("user", text, ALICE, AT) for text in texts]
        result = TurnResult(turns, starts_session=new_session)
        await self.conversations.finish(begun.claim, begun.message, result)

    async def answer(self, key: str, *texts: str) -> int:
        """Answer a message with these turns; return how often the history was read."""
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


async def test_later_messages_need_no_database_read(here: Process) -> None:
    reads = [await here.answer(f"5:{n}", f"said {n}", "answered\0") for n in range(4)]
    assert reads == [1, 0, 0, 0]


async def test_claim_of_another_process_drops_the_window(here: Process, there: Process) -> None:
    await here.answer("5:1", "a")
    await there.answer("5:2", "b")
    assert await here.answer("5:3", "c") == 1
    assert await here.answer("5:4", "d") == 0
    begun = await there.claim("5:5")
    await there.conversations.release(begun.claim)  # it has finished nothing
    [again] = await here.conversations.claim_next([LANE], "here", 60)
    await here.expect_fresh(again.claim)
    assert here.database.reads == 3


async def test_short_window_does_not_hide_older_turns(here: Process, there: Process) -> None:
    await there.answer("5:1", *"abcdef")
    begun = await here.claim("5:2")
    for most, reads in ((2, 1), (1, 1), (4, 2), (3, 2), (100, 3), (50, 3)):
        await here.expect_fresh(begun.claim, most)
        assert here.database.reads == reads
    await here.finish(begun, "g")
    assert await here.answer("5:3", "h") == 0


async def test_new_session_drops_the_window(here: Process) -> None:
    await here.answer("5:1", "old")
    begun = await here.claim("5:2")
    await here.finish(begun, "greeting", new_session=True)
    assert await here.answer("5:3", "x") == 1


async def test_fenced_finish_does_not_disturb_the_next_claim(here: Process) -> None:
    await here.answer("5:1", "a")
    late = await here.claim("5:2")
    [new] = await here.conversations.claim_next([LANE], "here", 60)
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


@pytest.fixture
def sharing(store: Store) -> tuple[Process, Process, FakeSharedWindows]:
    shared = FakeSharedWindows()
    return Process(store, "one", shared), Process(store, "other", shared), shared


async def test_processes_share_a_window_instead_of_reading_the_database(
    sharing: tuple[Process, Process, FakeSharedWindows],
) -> None:
    one, other, _ = sharing
    reads = [
        await process.answer(f"5:{n}", f"said {n}", "answered\0")
        for n, process in enumerate((one, other, other, one, one, other))
    ]
    assert reads == [1, 0, 0, 0, 0, 0]


async def test_outdated_or_lost_window_is_reloaded_from_the_database(
    sharing: tuple[Process, Process, FakeSharedWindows],
) -> None:
    one, other, shared = sharing
    await one.answer("5:1", "a")
    stale = dict(shared.kept)
    await one.answer("5:2", "b")
    shared.kept = stale  # what was kept last did not arrive
    assert await other.answer("5:3", "c") == 1
    shared.kept.clear()
    assert await one.answer("5:4", "d") == 1


async def test_forgotten_turns_are_not_shared(
    sharing: tuple[Process, Process, FakeSharedWindows],
) -> None:
    one, other, shared = sharing
    await one.answer("5:1", "CANARY")
    begun = await other.claim("5:2")
    await other.conversations.forget(begun.claim)
    assert shared.kept == {}
    await other.finish(begun, "new")
    await one.answer("5:3", "x")


@pytest.fixture(params=[run_valkey, run_redis])
async def server(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[str]:
    # A server on a busy machine is not taken for one that is away.
    for name in ("_FIND_WINDOW_TIMEOUT_SECONDS", "TIMEOUT_SECONDS"):
        monkeypatch.setattr(f"bot.storage.redis_session_windows.{name}", 60)
    async with request.param(tmp_path) as url:
        yield url


@pytest.mark.service
async def test_window_is_shared_through_a_server_that_may_lose_it(
    store: Store, server: str
) -> None:
    key = f"test:window:{LANE}"
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(Redis.from_url(server))

        async def process(name: str) -> Process:
            opening = open_session_windows(server, "test:", TextCodec(), SystemClock())
            return Process(store, name, await stack.enter_async_context(opening))

        async def answer(process: Process, number: int) -> int:
            before = await client.get(key)
            reads = await process.answer(f"5:{number}", f"said {number}", "answered\0")

            async def is_shared() -> bool:
                return bool(await client.get(key) != before)

            await wait_until_async(is_shared)
            return reads

        one, other = await process("one"), await process("other")
        assert [await answer(one, 0), await answer(other, 1), await answer(one, 2)] == [1, 0, 0]
        assert 0 < await client.ttl(key) <= 600
        await client.flushall()
        assert [await answer(other, 3), await answer(one, 4)] == [1, 0]
        await client.set(key, b"of another version")
        assert [await answer(other, 5), await answer(one, 6)] == [1, 0]
        begun = await other.claim("5:7")
        await other.conversations.forget(begun.claim)
        assert not await client.exists(key)


def some_window() -> SessionWindow:
    turns = tuple(Turn("user", text, ALICE, AT) for text in ("CANARY", "b"))
    return create_window(Session(3, turns), len(turns))


@pytest.mark.service
async def test_shared_window_is_found_only_by_the_next_claim_of_this_installation(
    server: str,
) -> None:
    codec = FernetCodec(TextEncryption((Fernet.generate_key().decode(),), encrypts_new_texts=True))
    async with (
        open_session_windows(server, "one:", codec, SystemClock()) as here,
        open_session_windows(server, "one:", codec, SystemClock()) as there,
        open_session_windows(server, "other:", codec, SystemClock()) as elsewhere,
        Redis.from_url(server) as client,
    ):
        kept = some_window()
        here.share(Claim("telegram:5", 7, "here"), kept)

        await wait_until_async(lambda: client.exists("one:window:telegram:5"))
        value = await client.get("one:window:telegram:5")
        assert isinstance(value, bytes)
        assert b"CANARY" not in value
        found = [await there.find(Claim("telegram:5", epoch, "there")) for epoch in (6, 7, 8, 9)]
        assert found == [None, None, kept, None]
        assert await there.find(Claim("telegram:6", 8, "there")) is None
        assert await elsewhere.find(Claim("telegram:5", 8, "there")) is None
        here.share(Claim("telegram:5", 8, "here"), kept)
        await here.drop(Claim("telegram:5", 9, "here"))  # also what is still to be kept
        here.share(Claim("telegram:6", 1, "here"), kept)
        await wait_until_async(lambda: client.exists("one:window:telegram:6"))
        assert not await client.exists("one:window:telegram:5")


@pytest.mark.service
async def test_frozen_server_is_retried_after_a_pause(tmp_path: Path) -> None:
    clock = FakeClock()
    async with (
        run_valkey(tmp_path) as url,
        open_session_windows(url, "test:", TextCodec(), clock) as windows,
    ):
        next_claim = Claim("telegram:5", 8, "here")

        async def is_found() -> bool:
            await clock.advance(20)  # a server on a busy machine may have been late
            windows.share(Claim("telegram:5", 7, "here"), some_window())
            return await windows.find(next_claim) is not None

        await wait_until_async(is_found)
        with frozen_valkey():
            assert await windows.find(next_claim) is None
        assert await windows.find(next_claim) is None, "nobody is asked"
        await wait_until_async(is_found)


async def test_missing_server_is_not_an_error(tmp_path: Path) -> None:
    address = f"unix://{tmp_path / secrets.token_hex(4)}.sock"
    async with open_session_windows(address, "test:", TextCodec(), SystemClock()) as windows:
        windows.share(Claim("telegram:5", 7, "here"), some_window())
        assert await windows.find(Claim("telegram:5", 8, "here")) is None
        await windows.drop(Claim("telegram:5", 8, "here"))


@pytest.mark.parametrize("is_shared", [False, True])
@pytest.mark.parametrize("seed", range(8))
async def test_cached_turns_equal_stored_turns_after_any_sequence_of_steps(
    store: Store, seed: int, *, is_shared: bool
) -> None:
    shared = FakeSharedWindows() if is_shared else None
    here, there = Process(store, "here", shared), Process(store, "there", shared)
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

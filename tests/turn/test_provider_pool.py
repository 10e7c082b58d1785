"""Test that each worker of a pool answers where the preset uses a provider that it serves."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlalchemy import select
from typing_extensions import override

from bot.chat.incoming import Deleted
from bot.runtime.signals import InProcessSignals
from bot.storage.sql.database import Database, open_database
from bot.storage.sql.tables import inbox
from bot.turn.arrivals import CONVERSATIONS
from tests.fakes import FakeBackend, FakeClock, FakeSurface
from tests.postgres import create_postgres_database
from tests.samples import make_incoming
from tests.turn.setup import CHAT, Setup

OTHER: dict[str, object] = {"name": "rex", "provider": "q"}


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.service)])
async def database(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Database]:
    """An empty database of each kind."""
    url = f"sqlite:///{tmp_path / 'troupe.db'}"
    if request.param == "postgresql":
        url = await create_postgres_database(request.getfixturevalue("postgres_folder"))
    async with open_database(url) as database:
        yield database


class PoolSetup(Setup):
    """A worker that serves one provider; its pool claims what it may."""

    def __init__(
        self,
        database: Database,
        provider: str,
        signals: InProcessSignals,
        clock: FakeClock,
        surface: FakeSurface,
    ) -> None:
        super().__init__(
            database,
            backend=FakeBackend([f"by {provider}"], [f"by {provider} again"]),
            others=[OTHER],
            owner=provider,
            signals=signals,
            clock=clock,
            surface=surface,
            served_providers={provider},
        )
        self.claims = 0

    @override
    async def work(self, key: str = CHAT) -> None:
        """Process what this worker may claim, until it has handed it over or finished it."""
        assert self.pool is not None
        while self.pool.may_claim(key) and (claimed := await self.worker.claim([key])):
            self.claims += 1
            await self.worker.work(claimed[key])
        await self.finish_sending()


@pytest.fixture
def pools(database: Database) -> tuple[PoolSetup, PoolSetup]:
    """The workers for the default preset's provider p and for q."""
    signals, clock, surface = InProcessSignals(), FakeClock(), FakeSurface()
    p, q = (PoolSetup(database, name, signals, clock, surface) for name in ("p", "q"))
    return p, q


async def attempts(setup: Setup) -> list[int]:
    """Return what is recorded as in flight of each message that is not finished."""
    open_ = select(inbox.c.attempt).where(inbox.c.state == "new")
    return list(await setup.database.read(lambda c: c.execute(open_).scalars().all()))


async def test_worker_hands_over_what_another_provider_answers(
    pools: tuple[PoolSetup, PoolSetup],
) -> None:
    p, q = pools
    await q.receive("hello")
    await q.work()
    assert q.texts == []
    assert q.claims == 1, "it looks once"
    assert await attempts(q) == [0], "nothing was begun"
    await q.work()
    assert q.claims == 1, "it remembers"
    await p.work()
    assert p.texts == ["by p"]
    assert len(q.backend.prompts) == 0


async def test_other_workers_are_woken_by_the_hand_over(pools: tuple[PoolSetup, PoolSetup]) -> None:
    _, q = pools
    woken: list[str] = []
    await q.receive("hello")
    q.signals.subscribe(CONVERSATIONS, woken.extend)
    await q.work()
    assert woken == [CHAT]


async def test_changed_preset_moves_the_conversation_to_its_pool_and_back(
    pools: tuple[PoolSetup, PoolSetup],
) -> None:
    p, q = pools
    await q.receive("/preset use rex", "hello")
    await q.work()
    await p.work()
    assert len(q.texts) == 1, "p has changed the preset"
    assert len(p.backend.prompts) == 0, "and has handed the question over, in its turn"
    await q.work()
    assert q.texts[-1] == "by q"
    await q.receive("/preset use nora", "hello again")
    await q.work()
    await p.work()
    assert p.texts[-1] == "by p"
    assert [len(one.backend.prompts) for one in (p, q)] == [1, 1]


async def test_what_nobody_serves_is_looked_at_again_after_a_while(
    pools: tuple[PoolSetup, PoolSetup],
) -> None:
    _, q = pools
    await q.receive("hello")
    await q.work()
    await q.clock.advance(21)
    await q.work()
    assert q.claims == 2
    assert q.texts == []
    assert await attempts(q) == [0]


async def test_deletions_need_no_provider(pools: tuple[PoolSetup, PoolSetup]) -> None:
    p, q = pools
    await p.receive("hello")
    await p.work()
    said = make_incoming("hello", key="5:1")
    deleted = Deleted(said.address, "5:1:deleted", ("1",), said.at, said.scopes)
    await q.receive(deleted)
    await q.work()
    assert ("user", "hello") not in await q.history()

"""Test pauses: nobody is answered, one notice says so, and nothing is lost."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from typing_extensions import override

from bot.chat.incoming import Address, Said, WakeReason
from bot.storage.operation.pauses import SqlPauses
from bot.storage.sql.database import Database
from tests.fakes import FakeBackend
from tests.samples import make_incoming
from tests.turn.setup import CHAT, Setup, running_worker
from tests.waiting import wait_until

NOTICE = (
    "⏸ I am paused at the moment. I keep what you write: when I go on, I answer what is younger"
    " than 5 minutes, and remember the rest."
)


class PausedSetup(Setup):
    """A worker as the pool of a process calls it: what is paused is not claimed."""

    @property
    def stored(self) -> SqlPauses:
        return SqlPauses(self.database, self.clock)

    async def pause(self, scope: str = "all") -> None:
        assert await self.stored.begin(scope, "anna")
        await self.look()

    async def resume(self, scope: str = "all") -> None:
        assert await self.stored.end(scope)
        await self.look()

    async def look(self) -> None:
        """Do what `run` of the pauses does at a signal, then deliver what is due."""
        await self.pauses.refresh()
        if self.pauses.is_any:
            await self.pauses.tell_waiting()
        for row in (await self.sender.take([CHAT])).values():
            await self.sender.work(row)

    @override
    async def work(self, key: str = CHAT) -> None:
        while not self.pauses.covers(key) and (claimed := await self.worker.claim([key])):
            await self.worker.work(claimed[key])
        await self.finish_sending()


def question(text: str, key: str, wake: WakeReason | None = WakeReason.DM) -> Said:
    return make_incoming(text, key=key, wake=wake)


async def test_messages_wait_and_are_answered_after_the_pause(database: Database) -> None:
    setup = PausedSetup(database, backend=FakeBackend(["one"], ["two"]), preset={"busy": "queue"})
    await setup.pause()
    await setup.receive(question("first", "5:1"), question("second", "5:2"))
    await setup.work()
    assert setup.texts == []
    await setup.look()
    await setup.look()
    assert setup.texts == [NOTICE], "once, whatever is asked"

    await setup.clock.advance(200)
    await setup.resume()
    await setup.work()

    assert setup.texts == [NOTICE, "one", "two"]


async def test_what_waited_longer_than_five_minutes_becomes_context(database: Database) -> None:
    setup = PausedSetup(database, backend=FakeBackend(["the answer"]))
    await setup.pause()
    await setup.receive(question("old", "5:1"))
    await setup.clock.advance(200)
    await setup.receive(question("young", "5:2"))
    await setup.clock.advance(150)
    await setup.resume()

    await setup.work()

    assert setup.texts == ["the answer"]
    assert await setup.history() == [
        ("user", "old"),
        ("user", "young"),
        ("assistant", "the answer"),
    ]
    assert len(setup.backend.prompts) == 1


async def test_forget_is_followed_however_long_it_waited(database: Database) -> None:
    setup = PausedSetup(database, backend=FakeBackend(["the answer"]))
    await setup.say("hello")
    await setup.pause()
    await setup.receive(question("/forget last", "5:8", WakeReason.COMMAND))
    await setup.clock.advance(1000)
    await setup.resume()

    await setup.work()

    assert await setup.history() == []


async def test_answer_in_progress_is_finished_and_the_next_one_waits(database: Database) -> None:
    go_on = asyncio.Event()
    backend = FakeBackend(["the", go_on, " first"], ["the second"])
    setup = PausedSetup(database, backend=backend, preset={"busy": "queue"})
    await setup.receive(question("first", "5:1"))
    async with running_worker(setup) as worker:
        await wait_until(lambda: len(setup.backend.prompts) == 1)
        await setup.receive(question("second", "5:2"))
        await setup.pause()
        go_on.set()
        await worker
    assert setup.texts == ["the first"]
    await setup.resume()
    await setup.work()
    assert setup.texts == ["the first", "the second"]


async def test_only_who_addresses_the_bot_is_told_and_only_where_it_is_paused(
    database: Database,
) -> None:
    setup = PausedSetup(database, backend=FakeBackend())
    await setup.pause("telegram:6")
    await setup.receive(question("here", "5:1"))
    elsewhere = make_incoming("overheard", key="6:1", chat="6", wake=None)
    await setup.receive(elsewhere)

    await setup.look()

    assert await notices(setup, "telegram:6") == []
    await setup.receive(make_incoming("you there?", key="6:2", chat="6"))
    await setup.look()
    assert await notices(setup, "telegram:6") == [NOTICE]
    assert await notices(setup, "telegram:5") == []
    await setup.resume("telegram:6")
    assert setup.pauses._told == set()


async def test_other_process_sends_no_second_notice(database: Database) -> None:
    first = PausedSetup(database, backend=FakeBackend())
    other = PausedSetup(database, backend=FakeBackend(), owner="other", surface=first.surface)
    await first.pause()
    await first.receive(question("first", "5:1"))
    await first.look()
    await other.look()
    assert first.texts == [NOTICE]
    assert other.pauses.covers(CHAT), "it has read the row"


async def test_notice_is_in_the_language_of_who_asks(database: Database) -> None:
    setup = PausedSetup(database, backend=FakeBackend())
    await setup.pause()
    await setup.receive(replace(question("你好", "5:1"), locale="zh-hans"))
    await setup.look()
    [shown] = setup.texts
    assert shown.startswith("⏸ 我")


async def notices(setup: PausedSetup, lane: str) -> Sequence[str]:
    address = Address(*lane.split(":"))
    rows = await setup.outbox.take([address.lane])
    return [row.content.text for row in rows]

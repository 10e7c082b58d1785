"""Test that stops and further messages count although no signal told of them."""

import asyncio

from bot.chat.incoming import Said, WakeReason
from bot.runtime.in_process import InProcessSignals
from bot.storage.database import Database
from bot.turn.signals import ArrivalSignals, MissedSignals
from tests.fakes import FakeBackend
from tests.samples import make_incoming
from tests.turn.busy_channel import LIMITS_OF_CHATS, end
from tests.turn.setup import CHAT, Setup, running_worker
from tests.waiting import advance_in_steps, wait_until


def said(text: str, key: str) -> Said:
    wake = WakeReason.COMMAND if text.startswith("/") else WakeReason.DM
    return make_incoming(text, key=key, wake=wake)


class DeafSetup(Setup):
    """A worker in another process than the gateway; no signal gets through."""

    @property
    def missed(self) -> MissedSignals:
        return MissedSignals(self.inbox, self.stops, self.arrivals, self.clock)

    async def store(self, *events: Said) -> None:
        await self.inbox.receive(events, {})


async def test_stop_without_its_signal_ends_the_answer(database: Database) -> None:
    setup = DeafSetup(database, backend=FakeBackend(["Once upon", asyncio.Event()]))
    await setup.receive("a story")
    async with running_worker(setup) as worker:
        await wait_until(lambda: len(setup.backend.prompts) == 1)
        await advance_in_steps(setup.clock, 2)
        await setup.store(said("/stop", "5:90"))
        await setup.missed.look()
        await worker
    assert setup.texts == ["Once upon\n\n⚠ (stopped)", "Stopped. /retry answers again."]


async def test_message_without_its_signal_interrupts_the_answer(database: Database) -> None:
    preset = {"context": "all", "busy": {"mode": "interrupt", "quiet_seconds": 0}}
    backend = FakeBackend(["Once upon", asyncio.Event()], ["Both."])
    setup = DeafSetup(database, backend=backend, limits=LIMITS_OF_CHATS, preset=preset)
    await setup.receive(said("first", "5:1"))
    async with running_worker(setup) as worker:
        await wait_until(lambda: len(setup.backend.prompts) == 1)
        await setup.store(said("second", "5:2"))
        await setup.missed.look()
        await end(setup, worker)
    assert setup.texts == ["Both."]


async def test_only_what_is_not_being_answered_counts_and_once(database: Database) -> None:
    go_on = asyncio.Event()
    setup = DeafSetup(database, backend=FakeBackend(["Once upon", go_on]))
    arrivals = ArrivalSignals(InProcessSignals())
    missed = MissedSignals(setup.inbox, setup.stops, arrivals, setup.clock)
    noted: list[str] = []
    await setup.receive("a story")
    async with running_worker(setup) as worker:
        await wait_until(lambda: len(setup.backend.prompts) == 1)
        unsubscribe = arrivals.subscribe(CHAT, lambda: noted.append("arrival"))
        await missed.look()
        assert noted == []
        await setup.store(said("another", "5:91"))
        await missed.look()
        await missed.look()
        unsubscribe()
        await setup.store(said("a third", "5:92"))
        await missed.look()
        go_on.set()
        await worker
    assert noted == ["arrival"]

"""Test the processing of a message on a real database: one answer despite failures."""

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import replace

import pytest
import structlog
from sqlalchemy import update
from structlog.contextvars import merge_contextvars
from structlog.typing import Processor
from typing_extensions import override

from bot.chat.incoming import IncomingMessage, MediaItem, MediaKind, WakeReason
from bot.chat.session import Claim
from bot.chat.story import Story
from bot.errors import BackendUnavailable, Fenced, StoreError
from bot.intake import InboxIntake
from bot.memory.stories import StoriesByQuery
from bot.prompting.presets.preset import Preset
from bot.runtime.in_process import InProcessSignals
from bot.storage.conversations import Conversations
from bot.storage.database import Database
from bot.storage.tables import inbox
from bot.telemetry.logs import RecentEvents
from bot.turn.claims import LEASE_SECONDS, LeaseKeeper
from bot.turn.signals import ArrivalSignals, MissedSignalPoller
from tests.fakes import FakeBackend, FakeClock, run_ready_tasks
from tests.samples import make_incoming
from tests.turn.busy_channel import LIMITS_OF_CHATS, end
from tests.turn.setup import CHAT, Setup, answering
from tests.waiting import advance_in_steps, wait_until


async def test_observed_picture_in_a_group_is_not_answered(database: Database) -> None:
    setup = Setup(database)
    media = (MediaItem(MediaKind.IMAGE),)
    await setup.say(replace(make_incoming("", key="5:1", wake=None), attachments=media))
    assert setup.texts == []


async def test_persona_of_the_author_is_in_the_prompt(database: Database) -> None:
    setup = Setup(database, ["My lord."])
    await setup.say("/me a tall knight", "hello")
    said = setup.backend.prompts[-1].messages[-1].content
    assert said == "(Alice says of themselves: a tall knight)\n\nhello"
    assert await setup.history() == [("user", "hello"), ("assistant", "My lord.")]


async def test_ignored_message_is_neither_answered_nor_stored(database: Database) -> None:
    setup = Setup(database, preset={"context": "addressed"})
    await setup.say(make_incoming("nice weather", wake=None))
    assert (setup.texts, await setup.history(), await setup.crashes_of_pending()) == ([], [], [])


async def test_unexpected_exception_is_reported_and_the_next_message_answered(
    database: Database,
) -> None:
    setup = Setup(database, [RuntimeError("a bug")], ["Hi."])
    await setup.say("hello", "are you there?")
    assert [text[:24] for text in setup.texts] == ["⚠ Something went wrong o", "Hi."]
    assert await setup.history() == [("user", "are you there?"), ("assistant", "Hi.")]


async def test_dropped_turns_are_summarized_for_the_next_prompt(database: Database) -> None:
    wants = {"max_input_tokens": 60, "summary": {}}
    setup = Setup(database, ["Hi."], preset=wants)
    summarizing = asyncio.create_task(setup.summarizer.run())
    for n in range(12):
        await setup.say(f"tell me of {n}")
    summarizing.cancel()
    await asyncio.wait([summarizing])
    prompts = setup.backend.prompts
    told = [one.messages[-1].content for one in prompts if one.conversation != CHAT]
    assert told[0].startswith("Conversation:\nAlice: tell me of 0\n")
    first = [one.messages[0] for one in prompts if one.conversation == CHAT][-1]
    assert (first.role, first.content) == ("system", "What was said before, in short:\nHi.")


async def test_message_that_crashed_too_often_is_set_aside(database: Database) -> None:
    setup = Setup(database, ["Hi."])
    await setup.receive("crash", "hello")
    await database.write(
        lambda c: c.execute(update(inbox).where(inbox.c.id == 1).values(own_crashes=3)).rowcount
    )
    await setup.work()
    assert [text[:25] for text in setup.texts] == ["⚠ This message crashed th", "Hi."]
    assert len(setup.backend.prompts) == 1


async def test_worker_that_lost_its_claim_drops_its_answer(database: Database) -> None:
    go_on = asyncio.Event()
    setup = Setup(database, [go_on, "Too late."])
    async with answering(setup, "hello") as worker:
        await setup.take_over()
        go_on.set()
        await worker
    assert setup.texts == []
    assert await setup.history() == []
    assert len(await setup.crashes_of_pending()) == 1


async def test_lost_lease_stops_the_model(database: Database) -> None:
    never = asyncio.Event()
    setup = Setup(database, ["Once ", never])
    async with answering(setup, "hello") as worker:
        await setup.take_over()
        await advance_in_steps(setup.clock, 6)
        await wait_until(worker.done)
        assert worker.exception() is None
    assert setup.backend.closed_early == 1


async def test_full_disk_does_not_count_as_a_crash(database: Database) -> None:
    setup = Setup(database, ["Hi."])
    setup.conversations.full = True
    for _ in range(10):
        with pytest.raises(StoreError):
            await setup.say(*([] if await setup.crashes_of_pending() else ["hello"]))
    setup.conversations.full = False
    await setup.work()
    assert setup.texts == ["Hi."]


async def test_stopping_worker_starts_no_further_message(database: Database) -> None:
    go_on = asyncio.Event()
    setup = Setup(database, [go_on, "one"], ["two"])
    async with answering(setup, "a", "b") as worker:
        setup.worker.stop_after_current_messages()
        go_on.set()
        await worker
    assert setup.texts == ["one"]
    assert await setup.crashes_of_pending() == [0]


async def test_turn_leaves_no_tasks_running(database: Database) -> None:
    setup = Setup(database)
    before = asyncio.all_tasks()
    await setup.say("hello")
    await run_ready_tasks()
    assert asyncio.all_tasks() == before


async def test_retrieved_stories_are_in_the_prompt(database: Database) -> None:
    async def retrieve(preset: Preset, newest: str, _payer: object) -> StoriesByQuery:
        assert (preset.name, newest) == ("nora", "Was there a storm?")
        return {newest: [Story(0, "A storm took the roof.", 0.9)]}

    backend = FakeBackend(["Yes."])
    persona: dict[str, object] = {"persona": "You keep a light.\n{{RAG-dialogue}}"}
    setup = Setup(database, backend=backend, preset=persona, retrieve_stories=retrieve)

    await setup.say("Was there a storm?")

    assert backend.prompts[0].messages[0].content == (
        "You keep a light.\n###\nA storm took the roof."
    )


async def test_pasted_api_key_is_masked_and_its_author_warned(database: Database) -> None:
    setup = Setup(database, ["Fine."])
    intake = InboxIntake(setup.inbox, lambda _: None)
    said = make_incoming("my key is sk-proj-CANARY00000000000000001 ok?")
    await intake.receive([said], {})
    await setup.work()
    assert setup.texts[0] == "Fine."
    assert setup.texts[1].startswith("⚠ Your message seems to contain a token")
    assert await setup.history() == [("user", "my key is ***0001 ok?"), ("assistant", "Fine.")]
    assert "CANARY" not in setup.backend.prompts[0].messages[-1].content


def said(text: str, key: str) -> IncomingMessage:
    wake = WakeReason.COMMAND if text.startswith("/") else WakeReason.DM
    return make_incoming(text, key=key, wake=wake)


class DeafSetup(Setup):
    """A worker that gets no signals from the gateway, which runs in another process."""

    @property
    def missed(self) -> MissedSignalPoller:
        return MissedSignalPoller(self.inbox, self.stops, self.arrivals)

    async def store(self, *events: IncomingMessage) -> None:
        await self.inbox.receive(events, {})


async def test_stop_ends_the_answer_even_if_its_signal_is_lost(database: Database) -> None:
    setup = DeafSetup(database, backend=FakeBackend(["Once upon", asyncio.Event()]))
    async with answering(setup, "a story") as worker:
        await advance_in_steps(setup.clock, 2)
        await setup.store(said("/stop", "5:90"))
        await setup.missed.poll()
        await worker
    assert setup.texts == ["Once upon\n\n⚠ (stopped)", "Stopped. /retry answers again."]


async def test_message_interrupts_the_answer_even_if_its_signal_is_lost(database: Database) -> None:
    preset = {"context": "all", "busy": {"mode": "interrupt", "quiet_seconds": 0}}
    backend = FakeBackend(["Once upon", asyncio.Event()], ["Both."])
    setup = DeafSetup(database, backend=backend, limits=LIMITS_OF_CHATS, preset=preset)
    async with answering(setup, said("first", "5:1")) as worker:
        await setup.store(said("second", "5:2"))
        await setup.missed.poll()
        await end(setup, worker)
    assert setup.texts == ["Both."]


async def test_polling_handles_each_missed_event_once(
    database: Database,
) -> None:
    go_on = asyncio.Event()
    setup = DeafSetup(database, backend=FakeBackend(["Once upon", go_on]))
    arrivals = ArrivalSignals(InProcessSignals())
    missed = MissedSignalPoller(setup.inbox, setup.stops, arrivals)
    noted: list[str] = []
    async with answering(setup, "a story") as worker:
        unsubscribe = arrivals.subscribe(CHAT, lambda: noted.append("arrival"))
        await missed.poll()
        assert noted == []
        await setup.store(said("another", "5:91"))
        await missed.poll()
        await missed.poll()
        unsubscribe()
        await setup.store(said("a third", "5:92"))
        await missed.poll()
        go_on.set()
        await worker
    assert noted == ["arrival"]


async def test_log_of_a_failed_message_is_found_by_its_id(database: Database) -> None:
    events = RecentEvents()
    setup = Setup(database, [BackendUnavailable("503")])
    before = structlog.get_config()["processors"]
    processors: list[Processor] = [merge_contextvars, structlog.stdlib.add_log_level, events]
    structlog.configure(processors=[*processors, *before])
    try:
        await setup.say("hello")
    finally:
        structlog.configure(processors=before)

    [failed] = events.list_failed_messages(9)
    assert failed.turn == "telegram:5:1"
    assert f"(error {failed.error_id})" in setup.texts[0]
    assert [step.event for step in failed.steps] == [
        *("prompt_composed", "prefill", "speaker_failed", "answer_failed"),
    ]


ONE, TWO = Claim("telegram:1", 1, "me"), Claim("telegram:2", 1, "me")


class ScriptedLeases(Conversations):
    """Leases that record which claims are renewed, and report those in `lost` as lost."""

    def __init__(self, database: Database, clock: FakeClock) -> None:
        super().__init__(database, clock)
        self.renewed: list[list[Claim]] = []
        self.lost: set[Claim] = set()
        self.is_down = False

    @override
    async def renew(self, claims: Collection[Claim], lease_seconds: float) -> Sequence[Claim]:
        self.renewed.append(list(claims))
        if self.is_down:
            raise StoreError("down")
        return [one for one in claims if one in self.lost]


class HeldLeases:
    """A lease keeper, and workers that hold claims until they are stopped."""

    def __init__(self, database: Database) -> None:
        self.clock = FakeClock()
        self.leases = ScriptedLeases(database, self.clock)
        self.keeper = LeaseKeeper(self.leases, self.clock)
        self.end = asyncio.Event()

    async def work(self, claim: Claim) -> None:
        with self.keeper.hold(claim):
            await self.end.wait()


async def test_all_leases_are_renewed_together_until_their_work_ends(database: Database) -> None:
    setup = HeldLeases(database)
    async with asyncio.TaskGroup() as group:
        keeping = group.create_task(setup.keeper.run())
        workers = [group.create_task(setup.work(claim)) for claim in (ONE, TWO)]
        await setup.clock.advance(LEASE_SECONDS / 3)
        setup.end.set()
        await asyncio.wait(workers)
        await setup.clock.advance(LEASE_SECONDS)
        keeping.cancel()
    assert setup.leases.renewed == [[ONE, TWO]]


async def test_only_the_work_of_a_lost_lease_is_stopped(database: Database) -> None:
    setup = HeldLeases(database)
    setup.leases.lost = {ONE}
    keeping = asyncio.create_task(setup.keeper.run())
    lost, held = (asyncio.create_task(setup.work(claim)) for claim in (ONE, TWO))
    await setup.clock.advance(LEASE_SECONDS / 3)

    with pytest.raises(Fenced):
        await lost
    assert not held.done()
    setup.end.set()
    await held
    keeping.cancel()


async def test_processing_continues_while_the_database_is_down(database: Database) -> None:
    setup = HeldLeases(database)
    setup.leases.is_down = True
    keeping = asyncio.create_task(setup.keeper.run())
    worker = asyncio.create_task(setup.work(ONE))
    await setup.clock.advance(2 * LEASE_SECONDS / 3)
    assert len(setup.leases.renewed) == 2
    assert not worker.done()
    keeping.cancel()
    worker.cancel()


async def test_claim_counts_as_held_for_half_a_lease_after_its_last_confirmation(
    database: Database,
) -> None:
    setup = HeldLeases(database)
    setup.keeper.record_held_claims([ONE, TWO], setup.clock.monotonic())
    workers = [asyncio.create_task(setup.work(claim)) for claim in (ONE, TWO)]
    await setup.clock.advance(LEASE_SECONDS / 3)
    setup.leases.lost = {TWO}
    keeping = asyncio.create_task(setup.keeper.run())
    await setup.clock.advance(LEASE_SECONDS / 3)
    assert [setup.keeper.is_safely_held(claim) for claim in (ONE, TWO)] == [True, False]
    setup.leases.is_down = True  # or this process stands still
    await setup.clock.advance(LEASE_SECONDS / 2)
    assert not setup.keeper.is_safely_held(ONE)
    setup.end.set()
    keeping.cancel()
    await asyncio.wait([*workers, keeping])
    assert isinstance(workers[1].exception(), Fenced)

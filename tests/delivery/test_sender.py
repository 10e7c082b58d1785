"""Each row of the outbox is sent once and in order, whatever the platform says."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from sqlalchemy import select

from bot.chat.incoming import Incoming
from bot.chat.outgoing import Attachment, Limits, OutboxState, OutgoingPart
from bot.chat.session import TurnResult
from bot.delivery.sender import Sender, nonce
from bot.errors import (
    OutcomeUnknown,
    PlatformError,
    PlatformFatal,
    RateLimited,
    Refused,
    Unreachable,
)
from bot.storage.sql.conversations import SqlConversations
from bot.storage.sql.database import Database
from bot.storage.sql.inbox import SqlInbox
from bot.storage.sql.outbox import SqlOutbox
from bot.storage.sql.tables import outbox
from tests.fakes import LIMITS, FakeClock, FakeSurface
from tests.samples import incoming
from tests.waiting import passes, until

LANE = "telegram:5"
WITH_PLACEHOLDER = replace(LIMITS, placeholder="…")


class Stage:
    def __init__(
        self,
        database: Database,
        limits: Limits = LIMITS,
        platforms: tuple[str, ...] = ("telegram",),
    ) -> None:
        self.database = database
        self.clock = FakeClock()
        self.surface = FakeSurface(limits)
        self.outbox = SqlOutbox(database, self.clock)
        self.sender = Sender(
            self.outbox, dict.fromkeys(platforms, self.surface), self.clock, settle_seconds=10
        )

    @property
    def texts(self) -> list[str]:
        return list(self.surface.messages.values())

    def calls(self, name: str) -> int:
        return sum(call == name for call, _ in self.surface.calls)

    async def queue(
        self, *texts: str, said: Incoming | None = None, file: Attachment | None = None
    ) -> None:
        """Queue an answer of so many parts; a file takes the place of a placeholder."""
        conversations = SqlConversations(self.database, self.clock)
        await SqlInbox(self.database, self.clock).receive([said or incoming(key="5:0")], {})
        claim = await conversations.claim(LANE, "me", 60)
        assert claim is not None
        heard = await conversations.next_message(claim)
        assert heard is not None
        placeholder = self.surface.limits(heard.incoming.address).placeholder
        opened_with = None if file else placeholder
        parts = [OutgoingPart(part, text, opened_with, file) for part, text in enumerate(texts)]
        await conversations.finish(claim, heard, TurnResult(outgoing=parts))

    async def states(self) -> list[str]:
        query = select(outbox.c.state).order_by(outbox.c.id)
        return list(await self.database.read(lambda c: c.execute(query).scalars().all()))

    async def due_in(self) -> float:
        """In how many seconds the first row can go on."""
        query = select(outbox.c.not_before).order_by(outbox.c.id).limit(1)
        due: float = await self.database.read(lambda c: c.execute(query).scalar_one())
        return due - self.clock.now()

    async def crash(self) -> None:
        """What a process that died in the middle of a request leaves behind."""
        await self.outbox.take(LANE)
        await self.outbox.expire_sending(older_than_seconds=0, settle_seconds=0)


@asynccontextmanager
async def working(stage: Stage) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(stage.sender.work(LANE))
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait([task])


async def test_what_is_queued_is_sent_in_order(database: Database) -> None:
    stage = Stage(database)
    await stage.queue("a", "b", "c")
    await stage.sender.work(LANE)
    assert stage.texts == ["a", "b", "c"]
    assert await stage.states() == [OutboxState.SENT] * 3


async def test_nothing_overtakes_what_cannot_be_sent_yet(database: Database) -> None:
    stage = Stage(database)
    stage.surface.refuse("send", RateLimited(60))
    await stage.queue("a", "b")
    await stage.sender.work(LANE)
    await stage.sender.work(LANE)
    assert stage.texts == []
    await stage.clock.advance(61)
    await stage.sender.work(LANE)
    assert stage.texts == ["a", "b"]


@pytest.mark.parametrize(
    ("error", "seconds"),
    [(RateLimited(60), 60), (PlatformFatal("who are you?"), 30)],
)
async def test_what_must_wait_long_is_put_down(
    database: Database, error: PlatformError, seconds: float
) -> None:
    stage = Stage(database)
    stage.surface.refuse("send", error)
    await stage.queue("a")
    await stage.sender.work(LANE)
    assert await stage.states() == [OutboxState.PENDING]
    assert seconds <= await stage.due_in() <= seconds + 0.5


@pytest.mark.parametrize("error", [RateLimited(2), Unreachable("no route")])
async def test_what_may_go_on_soon_is_waited_for(database: Database, error: PlatformError) -> None:
    stage = Stage(database)
    stage.surface.refuse("send", error)
    await stage.queue("a")
    async with working(stage) as work:
        await until(lambda: stage.calls("send") == 1)
        await passes(stage.clock, 4)
        await work
    assert stage.texts == ["a"]


async def test_a_platform_out_of_reach_is_tried_less_and_less_often(database: Database) -> None:
    stage = Stage(database)
    stage.surface.refuse("send", *[Unreachable("no route")] * 9)
    await stage.queue("a")
    pauses: list[int] = []
    while len(pauses) < 9:
        async with working(stage):
            while await stage.due_in() <= 0:  # noqa: ASYNC110 # a look at what is kept
                await asyncio.sleep(0.002)
        pauses.append(round(await stage.due_in()))
        await stage.clock.advance(pauses[-1])
    await stage.sender.work(LANE)
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert stage.texts == ["a"]


async def test_what_is_refused_for_good_does_not_hold_up_the_rest(database: Database) -> None:
    stage = Stage(database)
    stage.surface.refuse("send", Refused("too rude"))
    await stage.queue("a", "b")
    await stage.sender.work(LANE)
    assert stage.texts == ["b"]
    assert await stage.states() == [OutboxState.DEAD, OutboxState.SENT]


async def test_an_edit_of_what_was_never_sent_is_given_up(database: Database) -> None:
    stage = Stage(database, WITH_PLACEHOLDER)
    stage.surface.refuse("send", Refused("blocked"))
    await stage.queue("a")
    await stage.sender.work(LANE)
    assert await stage.states() == [OutboxState.DEAD, OutboxState.DEAD]
    assert stage.calls("edit") == 0


@pytest.mark.parametrize("limits", [LIMITS, WITH_PLACEHOLDER])
async def test_what_arrived_unannounced_is_found_and_not_sent_again(
    database: Database, limits: Limits
) -> None:
    stage = Stage(database, limits)
    stage.surface.answers_to_lose = 1
    await stage.queue("a", "b")
    async with working(stage):
        await until(lambda: stage.calls("send") == 1)
        await passes(stage.clock, 11)
    await stage.clock.advance(11)
    await stage.sender.work(LANE)
    assert stage.texts == ["a", "b"]
    assert stage.calls("send") == 2
    assert stage.calls("find") == 1


@pytest.mark.parametrize("limits", [LIMITS, WITH_PLACEHOLDER])
async def test_what_did_not_arrive_is_sent_again_under_the_same_name(
    database: Database, limits: Limits
) -> None:
    stage = Stage(database, limits)
    stage.surface.refuse("send", OutcomeUnknown("cut off"))
    await stage.queue("a")
    async with working(stage):
        await until(lambda: stage.calls("send") == 1)
        await passes(stage.clock, 11)
    await stage.clock.advance(11)
    await stage.sender.work(LANE)
    assert stage.texts == ["a"]
    assert len(stage.surface.nonces) == 2
    assert len(set(stage.surface.nonces)) == 1


@pytest.mark.parametrize("arrived", [True, False])
@pytest.mark.parametrize("limits", [LIMITS, WITH_PLACEHOLDER])
async def test_a_file_of_unknown_outcome_is_there_once_in_the_end(
    database: Database, limits: Limits, arrived: bool
) -> None:
    stage = Stage(database, limits)
    if arrived:
        stage.surface.answers_to_lose = 1
    else:
        stage.surface.refuse("send", OutcomeUnknown("cut off"))
    file = Attachment("prompt-1.txt", "You are Nora.")
    await stage.queue("here", file=file)
    async with working(stage):
        await until(lambda: stage.calls("send") == 1)
        await passes(stage.clock, 11)
    await stage.clock.advance(11)
    await stage.sender.work(LANE)
    assert stage.texts == ["here"]
    assert list(stage.surface.files.values()) == [file]
    assert stage.calls("send") == (1 if arrived else 2)
    assert stage.calls("edit") == 0


async def test_an_unknown_outcome_has_time_to_settle_where_there_is_no_nonce(
    database: Database,
) -> None:
    stage = Stage(database, WITH_PLACEHOLDER)
    stage.surface.refuse("send", OutcomeUnknown("cut off"))
    await stage.queue("a")
    await stage.sender.work(LANE)
    assert await stage.states() == [OutboxState.UNKNOWN, OutboxState.PENDING]
    assert await stage.due_in() == 10


async def test_an_edit_of_unknown_outcome_is_simply_repeated(database: Database) -> None:
    stage = Stage(database, WITH_PLACEHOLDER)
    stage.surface.refuse("edit", OutcomeUnknown("cut off"))
    await stage.queue("a")
    async with working(stage) as work:
        await until(lambda: stage.calls("edit") == 1)
        await passes(stage.clock, 2)
        await work
    assert stage.texts == ["a"]
    assert stage.calls("find") == 0


async def test_what_a_dead_process_had_sent_is_found(database: Database) -> None:
    stage = Stage(database)
    await stage.queue("a")
    await stage.crash()
    stage.surface.messages["2"] = "a"
    await stage.sender.work(LANE)
    assert stage.texts == ["a"]
    assert stage.calls("send") == 0


@pytest.mark.parametrize(
    "error",
    [RateLimited(30), Unreachable("no route"), PlatformFatal("who are you?"), OutcomeUnknown("?")],
)
async def test_what_could_not_be_looked_up_stays_unknown(
    database: Database, error: PlatformError
) -> None:
    stage = Stage(database)
    await stage.queue("a")
    await stage.crash()
    stage.surface.refuse("find", error)
    async with working(stage):
        await until(lambda: stage.calls("find") == 1)
        await asyncio.sleep(0.05)
    assert await stage.states() == [OutboxState.UNKNOWN]
    assert stage.calls("send") == 0


async def test_where_nothing_can_be_looked_up_a_nonce_makes_sending_again_harmless(
    database: Database,
) -> None:
    stage = Stage(database)
    stage.surface.answers_to_lose = 1
    stage.surface.refuse("find", Refused("no right to read the history"))
    await stage.queue("a")
    async with working(stage) as work:
        await until(lambda: stage.calls("send") == 1)
        await passes(stage.clock, 2)
        await work
    assert stage.texts == ["a"]
    assert await stage.states() == [OutboxState.SENT]


async def test_where_nothing_can_be_looked_up_and_nothing_repeated_the_row_is_given_up(
    database: Database,
) -> None:
    stage = Stage(database, WITH_PLACEHOLDER)
    await stage.queue("a")
    await stage.crash()
    stage.surface.refuse("find", Refused("the chat is gone"))
    await stage.sender.work(LANE)
    assert stage.calls("send") == 0
    assert await stage.states() == [OutboxState.DEAD, OutboxState.DEAD]


async def test_the_answer_to_a_native_command_is_repeated_without_a_search(
    database: Database,
) -> None:
    stage = Stage(database)
    await stage.queue("a", said=replace(incoming(), interaction="app:token"))
    await stage.crash()
    await stage.sender.work(LANE)
    assert stage.texts == ["a"]
    assert stage.calls("find") == 0


async def test_rows_of_a_platform_that_is_not_running_are_left_for_later(
    database: Database,
) -> None:
    stage = Stage(database, platforms=())
    await stage.queue("a")
    await stage.sender.work(LANE)
    assert await stage.states() == [OutboxState.PENDING]
    assert await stage.due_in() == 60


async def test_an_unknown_outcome_outlives_a_time_without_its_platform(database: Database) -> None:
    stage = Stage(database, platforms=())
    await stage.queue("a")
    await stage.crash()
    await stage.sender.work(LANE)
    assert await stage.states() == [OutboxState.UNKNOWN]


def test_a_message_is_named_by_its_turn_and_part_for_ever() -> None:
    assert nonce("discord:7", 0) == nonce("discord:7", 0) == "UUIHXVOY55CHZNP3UOSANEIS"
    assert len({nonce(turn, part) for turn in ("a", "b", "a/1") for part in range(3)}) == 9


# --- waiting for a message to arrive -----------------------------------------------------------


async def test_an_arrival_is_told_at_once(database: Database) -> None:
    stage = Stage(database)
    await stage.queue("a")
    waiting = asyncio.create_task(stage.sender.arrival(1))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    await stage.sender.work(LANE)
    async with asyncio.timeout(0.5):
        assert await waiting == "1"


async def test_an_arrival_in_another_process_is_noticed(database: Database) -> None:
    stage, other = Stage(database), Stage(database)
    await stage.queue("a")
    waiting = asyncio.create_task(stage.sender.arrival(1))
    await asyncio.sleep(0.05)
    await other.sender.work(LANE)
    await passes(stage.clock, 2)
    assert await waiting == "1"


async def test_several_may_wait_for_one_arrival(database: Database) -> None:
    stage = Stage(database)
    await stage.queue("a")
    waiting = [asyncio.create_task(stage.sender.arrival(1)) for _ in range(3)]
    await asyncio.sleep(0.05)
    await stage.sender.work(LANE)
    async with asyncio.timeout(5):
        assert [await one for one in waiting] == ["1"] * 3


async def test_who_stopped_waiting_leaves_nothing_behind(database: Database) -> None:
    stage = Stage(database)
    await stage.queue("a")
    waiting = asyncio.create_task(stage.sender.arrival(1))
    await asyncio.sleep(0.05)
    waiting.cancel()
    await asyncio.wait([waiting])
    assert stage.sender._arrivals == {}


async def test_a_row_that_was_refused_never_arrives_and_is_said_so(database: Database) -> None:
    stage = Stage(database)
    await stage.queue("a")
    stage.surface.refuse("send", Refused("blocked"))
    waiting = asyncio.create_task(stage.sender.arrival(1))
    await asyncio.sleep(0.05)
    await stage.sender.work(LANE)
    await passes(stage.clock, 2)
    with pytest.raises(Refused):
        await waiting


async def test_two_senders_never_take_the_same_row(database: Database) -> None:
    stage = Stage(database)
    await stage.queue("a")
    async with asyncio.TaskGroup() as group:
        taken = [group.create_task(stage.outbox.take(LANE)) for _ in range(5)]
    assert sum(one.result() is not None for one in taken) == 1

"""Test messages that arrive while an answer is generated."""

import asyncio

import pytest
from sqlalchemy import select, update

from bot.chat.command import ButtonAction
from bot.chat.incoming import Incoming, IncomingMessage, WakeReason
from bot.chat.prompt import RateLimitWait
from bot.chat.session import AttemptState
from bot.errors import BackendUnavailable
from bot.storage.database import Database
from bot.storage.tables import conversation, inbox, outbox
from tests.fakes import FakeBackend
from tests.samples import BOB
from tests.turn.busy_channel import LIMITS_OF_CHATS, MENTION, answer_all, asked, contents, end
from tests.turn.setup import (
    CHAT,
    Setup,
    answering,
    pass_time_until,
    pressed,
    running_worker,
    working,
)
from tests.waiting import advance_in_steps, wait_until

FIRST_WORDS = "These words are long enough for a first message. "


def private(number: int) -> IncomingMessage:
    return asked(number, wake=WakeReason.DM)


def make_setup(database: Database, backend: FakeBackend, **busy: object) -> Setup:
    preset = {"context": "all", "busy": busy}
    return Setup(database, backend=backend, limits=LIMITS_OF_CHATS, preset=preset)


@pytest.mark.parametrize("wake", [WakeReason.DM, MENTION])
async def test_question_during_a_rate_limit_gets_its_own_answer(
    database: Database, wake: WakeReason
) -> None:
    go_on = asyncio.Event()
    setup = make_setup(database, FakeBackend([RateLimitWait(19.6), go_on, "one"], ["two"]))
    async with answering(setup, asked(1, wake=wake)) as worker:
        await pass_time_until(setup, lambda: bool(setup.texts))
        assert setup.texts == ["⏳ The model is busy. I'll ask it again in 20 s …"]
        await setup.receive(asked(2, wake=wake))
        await advance_in_steps(setup.clock, 2)
        go_on.set()
        await end(setup, worker)
    assert setup.texts == ["one", "two"]


async def test_messages_that_arrive_during_an_answer_get_one_answer(database: Database) -> None:
    go_on = asyncio.Event()
    setup = make_setup(database, FakeBackend([FIRST_WORDS, go_on], ["all"]))
    async with answering(setup, asked(1)) as worker:
        await advance_in_steps(setup.clock, 2)
        await setup.receive(asked(2), asked(3, BOB), asked(4))
        go_on.set()
        await end(setup, worker)
    assert setup.texts == [FIRST_WORDS.strip(), "all"]
    assert contents(setup)[-3:] == ["Alice:q2", "Bob:q3", "Alice:q4"]
    roles = [(turn.role, turn.text, turn.message_id) for turn in (await setup.session()).turns]
    assert roles == [
        *(("user", "q1", "1"), ("assistant", FIRST_WORDS.strip(), None)),
        *(("user", "q2", "2"), ("user", "q3", "3"), ("user", "q4", "4")),
        ("assistant", "all", None),
    ]


async def test_burst_in_an_idle_group_gets_one_answer(database: Database) -> None:
    setup = make_setup(database, FakeBackend([asyncio.Event()], ["all"]))
    async with answering(setup, asked(1)) as worker:
        await setup.receive(asked(2, BOB))
        await wait_until(lambda: setup.backend.closed_early == 1)
        await advance_in_steps(setup.clock, 0.5)
        assert len(setup.backend.prompts) == 1
        await setup.receive(asked(3))
        await end(setup, worker)
    assert setup.texts == ["all"]
    assert contents(setup)[-3:] == ["Alice:q1", "Bob:q2", "Alice:q3"]


async def test_message_to_other_people_does_not_interrupt_an_answer(database: Database) -> None:
    go_on = asyncio.Event()
    setup = make_setup(database, FakeBackend([go_on, "one"]))
    async with answering(setup, asked(1)) as worker:
        await setup.receive(asked(2, BOB, None))
        await advance_in_steps(setup.clock, 0.3)
        go_on.set()
        await end(setup, worker)
    assert setup.texts == ["one"]
    assert [text for _, text in await setup.history()] == ["q1", "one", "q2"]


async def test_observed_messages_between_gathered_messages_keep_their_order(
    database: Database,
) -> None:
    setup = make_setup(database, FakeBackend(["all"]))
    async with working(
        setup, asked(1), asked(2, BOB, None), asked(3), asked(4, BOB, None)
    ) as worker:
        await end(setup, worker)
    assert setup.texts == ["all"]
    assert [text for _, text in await setup.history()] == ["q1", "q2", "q3", "all", "q4"]


async def test_answer_in_a_private_chat_is_interrupted_by_the_next_message(
    database: Database,
) -> None:
    setup = make_setup(database, FakeBackend([FIRST_WORDS, asyncio.Event()], ["both"]))
    async with answering(setup, private(1)) as worker:
        await pass_time_until(setup, lambda: setup.texts == [FIRST_WORDS.strip()])
        await setup.receive(private(2))
        await wait_until(lambda: setup.backend.closed_early == 1)
        await end(setup, worker)
    assert setup.texts == ["both"]  # the first one is deleted, and the answer stands below q2
    assert [call for call, _ in setup.surface.calls if call != "typing"] == [
        *("send", "send", "delete"),
    ]
    assert contents(setup) == ["q1", "q2"]
    assert await setup.history() == [("user", "q1"), ("user", "q2"), ("assistant", "both")]


async def test_next_answer_reuses_the_part_of_an_interrupted_answer(database: Database) -> None:
    setup = make_setup(database, FakeBackend(["Words ", asyncio.Event()], ["both"]))
    async with answering(setup, private(1)) as worker:
        await setup.receive(private(2))
        await wait_until(lambda: setup.backend.closed_early == 1)
        await end(setup, worker)
    assert setup.texts == ["both"]
    parts = await database.read(lambda c: c.execute(select(outbox.c.part)).scalars().all())
    assert parts == [0], "after a death, parts that begin with 0 stand behind it"


async def test_answer_covers_a_message_that_arrives_before_the_model_request(
    database: Database,
) -> None:
    go_on = asyncio.Event()
    setup = make_setup(database, FakeBackend([go_on, "both"]))
    await setup.receive(private(1))
    claimed = await setup.worker.claim([CHAT])
    await setup.receive(private(2))
    worker = asyncio.create_task(setup.worker.process_messages(claimed[CHAT]))
    prompts = setup.backend.prompts
    await pass_time_until(setup, lambda: bool(prompts) and contents(setup) == ["q1", "q2"])
    go_on.set()
    await end(setup, worker)
    await setup.finish_sending()
    assert setup.texts == ["both"]
    assert contents(setup) == ["q1", "q2"]


async def test_answer_does_not_cover_messages_after_a_command(database: Database) -> None:
    setup = make_setup(database, FakeBackend(["one"], ["two"]))
    command = asked(3, wake=WakeReason.COMMAND, text="/preset list")
    await answer_all(setup, asked(1), asked(2), command, asked(4), asked(5))
    assert setup.texts[0] == "one"
    assert setup.texts[2] == "two"
    history = [text for _, text in await setup.history()]
    assert history == ["q1", "q2", "one", "q4", "q5", "two"]


async def test_answer_covers_a_limited_number_of_messages_and_a_notice_counts_the_rest(
    database: Database,
) -> None:
    go_on = asyncio.Event()
    setup = make_setup(database, FakeBackend(["one"], [go_on, "two"], ["three"]), at_most=3)
    await setup.receive(*[asked(number) for number in range(1, 9)])
    waiting = "⏳ 5 more messages have arrived. I will answer them next."
    async with running_worker(setup) as worker:
        # The notice is dropped if an answer waits behind it.
        await pass_time_until(setup, lambda: waiting in setup.texts)
        go_on.set()
        await end(setup, worker)
    assert setup.texts == ["one", waiting, "two", "three"], "it is said once a minute"
    history = [text for _, text in await setup.history()]
    assert history == [*("q1", "q2", "q3", "one"), *("q4", "q5", "q6", "two"), "q7", "q8", "three"]


async def test_everybody_who_asked_may_stop_the_answer(database: Database) -> None:
    setup = make_setup(database, FakeBackend([FIRST_WORDS, asyncio.Event()]))
    await setup.receive(asked(1), asked(2, BOB), asked(3))
    async with running_worker(setup) as worker:
        await pass_time_until(setup, lambda: len(setup.texts) == 1)
        await setup.receive(asked(4, BOB, WakeReason.COMMAND, "/stop"))
        await end(setup, worker)
    assert setup.texts[0] == f"{FIRST_WORDS.strip()}\n\n⚠ (stopped)"
    history = [text for _, text in await setup.history()]
    assert history == ["q1", "q2", "q3", FIRST_WORDS.strip()]


async def test_stop_command_prevails_over_an_interruption(database: Database) -> None:
    setup = make_setup(database, FakeBackend([asyncio.Event()], ["never"]))
    async with answering(setup, private(1)) as worker:
        await setup.receive(private(2))
        await wait_until(lambda: setup.backend.closed_early == 1)
        await setup.receive(asked(3, wake=WakeReason.COMMAND, text="/stop"))
        await end(setup, worker)
    assert setup.texts == ["Stopped. /retry answers again."]
    assert await setup.history() == [("user", "q1"), ("user", "q2")]


@pytest.mark.parametrize(
    "again",
    [asked(3, wake=WakeReason.COMMAND, text="/retry"), pressed(ButtonAction.RETRY)],
    ids=["command", "button"],
)
async def test_failed_answer_to_several_messages_can_be_retried(
    database: Database, again: Incoming
) -> None:
    away = BackendUnavailable("refused", notice="The model is away.")
    setup = make_setup(database, FakeBackend([away], ["now"]))
    await answer_all(setup, asked(1), asked(2))
    [notice] = setup.texts
    assert notice.startswith("⚠ The model is away. (error ")
    assert await setup.history() == []
    backend, surface = setup.backend, setup.surface
    await Setup(database, backend=backend, surface=surface, limits=LIMITS_OF_CHATS).say(again)
    assert setup.texts[-1] == "now"
    assert contents(setup)[-2:] == ["q1", "q2"]
    assert [text for _, text in await setup.history()] == ["q1", "q2", "now"]


async def test_messages_in_flight_during_a_crash_are_answered_separately(
    database: Database,
) -> None:
    setup = make_setup(database, FakeBackend([asyncio.Event()]))
    await setup.receive(asked(1), asked(2), asked(3))
    dying = asyncio.create_task(setup.work())
    await pass_time_until(setup, lambda: len(setup.backend.prompts) == 1)
    await setup.take_over()  # its end changes nothing any more
    dying.cancel()
    await asyncio.wait([dying])
    free = update(conversation).values(lease_until=0.0)
    await database.write(lambda c: c.execute(free).rowcount)

    other = make_setup(database, FakeBackend(["one"], ["two"], ["three"]))
    async with running_worker(other) as worker:
        await end(other, worker)
    assert other.texts == ["one", "two", "three"]


async def test_crash_counts_for_all_gathered_messages(database: Database) -> None:
    setup = make_setup(database, FakeBackend([asyncio.Event()]))
    await setup.receive(asked(1), asked(2), asked(3, BOB, None))
    worker = asyncio.create_task(setup.work())
    await pass_time_until(setup, lambda: len(setup.backend.prompts) == 1)
    attempts = inbox.select().with_only_columns(inbox.c.attempt).order_by(inbox.c.id)
    recorded = list(await database.read(lambda c: c.execute(attempts).scalars().all()))
    assert recorded == [
        AttemptState.WITH_OTHERS,
        AttemptState.WITH_OTHERS,
        AttemptState.NONE,
    ]
    worker.cancel()  # a clean end blames nobody
    await asyncio.wait([worker])
    assert list(await database.read(lambda c: c.execute(attempts).scalars().all())) == [0, 0, 0]

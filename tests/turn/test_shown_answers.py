"""Test how an answer is shown while it is generated, and in how many messages."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from bot.chat.answers import AnswerSearch
from bot.chat.outgoing import Limits
from bot.chat.prompt import QueuePosition
from bot.errors import BackendUnavailable
from bot.storage.database import Database
from bot.storage.reports import AnswerLog
from tests.fakes import LIMITS, FakeBackend
from tests.samples import make_incoming
from tests.turn.setup import WITHOUT_NONCES, Setup, failure, running_worker, texts_before
from tests.waiting import advance_in_steps, wait_until


async def test_answer_is_shown_while_it_is_generated(database: Database) -> None:
    go_on = asyncio.Event()
    setup = Setup(database, ["Once upon", go_on, " a time."])
    assert await texts_before(setup, go_on) == ["Once upon"]
    assert setup.texts == ["Once upon a time."]
    assert [call for call, _ in setup.surface.calls if call != "typing"] == ["send", "edit"]


async def test_receipt_tells_when_the_answer_was_shown_and_delivered(database: Database) -> None:
    go_on = asyncio.Event()
    setup = Setup(database, ["Once upon", go_on, " a time."])
    written_at = setup.clock.now()
    said = replace(make_incoming("hello"), at=datetime.fromtimestamp(written_at, UTC))
    await setup.clock.advance(1)
    assert await texts_before(setup, go_on, said) == ["Once upon"]

    log = AnswerLog(database)
    [answer] = (await log.search(AnswerSearch(), 1)).answers
    timings, sent_at = answer.receipt.timings, await log.find_delivery(answer)
    assert (timings.received_at, timings.queued_seconds) == (written_at, 1)
    assert len(timings.edits) == 1
    assert 1 <= timings.edits[0] <= 1 + timings.seconds
    assert sent_at == setup.clock.now()


@pytest.mark.parametrize("has_nonces", [True, False])
async def test_queue_position_is_shown_until_the_answer_begins(
    database: Database, has_nonces: bool
) -> None:
    go_on = asyncio.Event()
    backend = FakeBackend([QueuePosition(3, 11.2), go_on, "Hello."])
    setup = Setup(database, backend=backend, limits=replace(LIMITS, can_repeat_sends=has_nonces))
    assert await texts_before(setup, go_on) == ["⏳ You are number 3 in the queue, about 12 s …"]
    assert setup.texts == ["Hello."]


@pytest.mark.parametrize(
    ("ending", "shown"),
    [("Hello.", "Hello."), (BackendUnavailable("gone", "Nothing came."), failure("Nothing came."))],
)
async def test_slow_start_of_a_model_is_shown_until_the_answer_or_the_error(
    database: Database, ending: str | Exception, shown: str
) -> None:
    go_on = asyncio.Event()
    setup = Setup(database, [go_on, ending])
    assert await texts_before(setup, go_on) == ["⏳ The model is still loading or thinking …"]
    assert setup.texts == [shown]


async def test_preset_without_streaming_shows_only_the_final_text(database: Database) -> None:
    go_on = asyncio.Event()
    backend = FakeBackend(["Once upon", go_on, " a time."])
    setup = Setup(database, backend=backend, preset={"stream": False})
    assert await texts_before(setup, go_on, is_streamed=False) == []
    assert setup.texts == ["Once upon a time."]


@pytest.mark.parametrize("limits", [LIMITS, WITHOUT_NONCES], ids=["nonces", "no nonces"])
async def test_answer_that_is_whole_at_once_is_one_message(
    database: Database, limits: Limits
) -> None:
    setup = Setup(database, ["Hi."], limits=limits)
    await setup.say("hello")
    assert [one for one in setup.surface.calls if one[0] != "typing"] == [("send", "Hi.")]


@pytest.mark.parametrize("has_nonces", [True, False])
async def test_long_answer_is_sent_in_parts(database: Database, has_nonces: bool) -> None:
    short = replace(LIMITS, max_units=40, can_repeat_sends=has_nonces)
    setup = Setup(database, [f"{'x' * 30}\n\n{'y' * 30}"], limits=short)
    await setup.say("hello")
    assert setup.texts == ["x" * 30, "y" * 30]
    assert (await setup.history())[1] == ("assistant", f"{'x' * 30}\n\n{'y' * 30}")


async def test_retry_after_a_crash_edits_the_same_messages_and_deletes_surplus_ones(
    database: Database,
) -> None:
    short = replace(LIMITS, max_units=40)
    never = asyncio.Event()
    first = Setup(database, [f"{'x' * 30}\n\n{'y' * 30}", never], limits=short)
    await first.receive("hello")
    async with running_worker(first):
        await wait_until(lambda: len(first.backend.prompts) == 1)
        for _ in range(50):
            await advance_in_steps(first.clock, 1)
            if len(first.texts) == 2:
                break
    assert first.texts == ["x" * 30, "y" * 30]

    restarted = Setup(database, ["z"], surface=first.surface, clock=first.clock)
    await restarted.work()

    assert restarted.texts == ["z"]
    assert await restarted.history() == [("user", "hello"), ("assistant", "z")]

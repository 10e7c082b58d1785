"""Test commands in a conversation: their replies, and their effects on answers and history."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from bot.chat.command import ButtonAction
from bot.chat.incoming import ButtonPress, IncomingMessage, Person, WakeReason
from bot.chat.session import MessageNote
from bot.errors import BackendUnavailable, RateLimited, Refused
from bot.runtime.tasks import cancel_and_wait
from bot.storage.database import Database
from tests.fakes import LIMITS, FakeBackend, run_ready_tasks
from tests.samples import ALICE, BOB, make_incoming
from tests.turn.setup import (
    WITHOUT_NONCES,
    Setup,
    answering,
    pass_time_until,
    pressed,
    running_worker,
    stop_while_answering,
    working,
)
from tests.waiting import advance_in_steps, wait_until


async def test_context_command_points_admins_to_the_file_and_masks_secrets(
    database: Database,
) -> None:
    setup = Setup(database, ["Hi."], preset={"name": "nora sk-canary"})
    await setup.say("hello", "/context", make_incoming("/context", key="5:3", author=BOB))
    to_admin, to_bob = setup.texts[1:]
    assert to_admin == to_bob + "\n\n/context prompt sends the exact prompt as a file."
    assert to_bob.startswith("nora *** (version 3) on p/m, receipt 1: ")


async def test_native_response_is_urgent_if_no_rate_limit_counts_it(
    database: Database,
) -> None:
    limits = replace(LIMITS, responses_count_as_calls=False)
    setup = Setup(database, limits=limits)
    native = make_incoming("/help", key="5:2", wake=WakeReason.COMMAND)
    await setup.say("/help", replace(native, message_id=None, interaction="1:token"))
    assert setup.urgent_deliveries == [False, True]


async def test_settings_why_shows_the_reason_for_each_message(database: Database) -> None:
    setup = Setup(database, ["Hi."], preset={"role_name": "Nora", "context": "addressed"})
    await setup.say(
        make_incoming("good morning all", key="5:1", wake=None),
        make_incoming("hi Nora", key="5:2", wake=None),
        make_incoming("/settings why", key="5:3", wake=WakeReason.COMMAND),
    )
    assert setup.texts[-1].splitlines() == [
        "Scope: shared – everybody here shares one conversation",
        "Alice: “good morning all” – not answered: nora is the only character here, "
        "was not addressed",
        "Alice: “hi Nora” – answered: nora is the only character here, was called by name",
    ]


async def test_settings_why_shows_decisions_of_other_processes(database: Database) -> None:
    setup = Setup(database, ["Hi."], ["Hello."])
    storing = asyncio.create_task(setup.decisions.run())
    await setup.say("hello")
    await advance_in_steps(setup.clock, 0.2)
    await setup.notes.add([MessageNote("why:telegram:5", "{}")])  # damaged
    await cancel_and_wait([storing])
    restarted = Setup(database, backend=setup.backend, surface=setup.surface)
    await restarted.say("good morning", "/settings why")
    reasons = "answered: nora is the only character here, was addressed: this is a private chat"
    assert setup.texts[-1].splitlines()[1:] == [
        f"Alice: “{text}” – {reasons}" for text in ("hello", "good morning")
    ]
    await restarted.say("/forget channel", "/settings why")
    assert "hello" not in setup.texts[-1]


async def test_settings_why_shows_why_the_platform_refused_a_message(database: Database) -> None:
    setup = Setup(database, ["Hi."], ["Hm."], ["Ho."])
    no_right = Refused("Telegram refused: Bad Request: not enough rights to send text messages")
    closed = Refused("Telegram refused: Bad Request: TOPIC_CLOSED")
    setup.surface.fail_next("send", no_right, no_right, closed)
    for text in ("hello", "are you there?", "hello?"):
        await setup.say(text)
    await setup.say("/settings why")
    assert setup.texts[-1].splitlines()[-2:] == [
        f"⚠ Not delivered here: “{no_right}”",
        f"⚠ Not delivered here: “{closed}”",
    ]


CAROL = Person("telegram:3", "Carol")
STOP_OF_OTHERS = "⚠ Only the person who asked the question, or an admin, can stop the answer."


def said(text: str, author: Person = ALICE, key: str = "5:90") -> IncomingMessage:
    wake = WakeReason.COMMAND if text.startswith("/") else WakeReason.DM
    return make_incoming(text, key=key, author=author, wake=wake)


def asked(setup: Setup) -> Sequence[str]:
    return [message.content for message in setup.backend.prompts[-1].messages]


@pytest.mark.parametrize("stops", [1, 2])
async def test_stop_after_a_restart_keeps_the_message_already_sent(
    database: Database, stops: int
) -> None:
    waiting, again = asyncio.Event(), "In a land far away there was a queen"
    backend = FakeBackend(["Once upon a time", waiting], [waiting], [waiting, again, waiting])
    setup = Setup(database, backend=backend)
    async with working(setup, "a story"):  # the process ends while it writes
        await wait_until(lambda: len(backend.prompts) == 1)
        await pass_time_until(setup, lambda: setup.texts)
    async with running_worker(setup) as worker:
        await wait_until(lambda: len(backend.prompts) == 2)
        for number in range(stops):  # the platform sends a press again
            await setup.receive(said("/stop", key=f"5:9{number}"))
            await wait_until(lambda: len(backend.prompts) == 3)
        waiting.set()
        waiting.clear()
        await worker
    assert setup.texts[0] == f"{again}\n\n⚠ (stopped)"
    assert next(iter(setup.surface.messages)) == "1"
    assert "delete" not in [call for call, _ in setup.surface.calls]
    assert await setup.history() == [("user", "a story"), ("assistant", again)]


async def test_stop_after_a_restart_keeps_all_messages_of_the_answer(database: Database) -> None:
    long, waiting = " ".join(map(str, range(900))), asyncio.Event()
    backend = FakeBackend([long, waiting], [waiting], [long])
    setup = Setup(database, backend=backend)
    async with answering(setup, "count"):
        await pass_time_until(setup, lambda: len(setup.texts) >= 2)
    async with running_worker(setup) as worker:
        await wait_until(lambda: len(backend.prompts) == 2)
        await setup.receive(said("/stop"))
        await worker
    *answer, _ = setup.texts
    assert " ".join(answer).split() == long.split()
    assert "delete" not in [call for call, _ in setup.surface.calls]


async def test_queued_stop_cancels_the_question_before_it(
    database: Database,
) -> None:
    setup = Setup(database, ["Two."])
    await setup.say(said("first", key="5:1"), said("/stop", key="5:2"), said("second", key="5:3"))
    await setup.say(said("/stop", key="5:4"), said("third", key="5:5"))
    assert setup.texts == [
        *("Stopped. /retry answers again.", "Two."),
        *("⚠ No answer is being written here.", "Two."),
    ]
    assert [text for _, text in await setup.history()] == [
        "first",
        "second",
        "Two.",
        "third",
        "Two.",
    ]


async def test_late_signal_of_a_stop_does_not_stop_the_next_answer(database: Database) -> None:
    go_on = asyncio.Event()
    setup = Setup(database, ["Once", go_on, " upon."])
    await setup.say(stop := said("/stop"))
    async with answering(setup, said("a story", key="5:91")) as worker:
        setup.stops.announce([stop])
        go_on.set()
        await worker
    assert setup.texts[-1] == "Once upon."


@pytest.mark.parametrize("is_button", [False, True])
async def test_stop_pending_when_a_process_starts_takes_effect(
    database: Database, is_button: bool
) -> None:
    backend = FakeBackend([asyncio.Event()])
    setup = Setup(database, backend=backend, limits=WITHOUT_NONCES)
    async with answering(setup, "a story"):
        pass  # the process ends
    stop = pressed(ButtonAction.STOP) if is_button else said("/stop")
    await elsewhere(setup).say(stop)
    assert len(backend.prompts) == 1
    assert await setup.history() == [("user", "a story")]


async def test_no_further_character_answers_after_a_stop(database: Database) -> None:
    setup = Setup(database, ["I think", asyncio.Event()], ["Me too."], others=[{"name": "luna"}])
    await setup.say("/preset add luna")
    await stop_while_answering(setup, "nora and luna, hello", said("/stop"))
    assert len(setup.backend.prompts) == 1
    assert [role for role, _ in await setup.history()] == ["user", "assistant"]


@pytest.mark.parametrize(
    ("author", "error", "notice"),
    [
        (BOB, None, STOP_OF_OTHERS),
        (
            CAROL,
            RateLimited(9),
            "⚠ Only an admin can stop the answer to somebody else's question, and I could not"
            " check with Telegram whether you are one. Please try again in a minute.",
        ),
    ],
    ids=["no admin", "unknown"],
)
async def test_person_who_did_not_ask_cannot_stop_the_answer(
    database: Database, author: Person, error: RateLimited | None, notice: str
) -> None:
    go_on = asyncio.Event()
    setup = Setup(database, ["Once", go_on, " upon."])
    setup.platform_error = error
    async with answering(setup, "a story") as worker:
        await setup.receive(said("/stop", author))
        await run_ready_tasks()
        go_on.set()
        await worker
    assert setup.texts == ["Once upon.", notice]


async def test_retry_replaces_the_newest_answer(database: Database) -> None:
    setup = Setup(database, ["one"], ["two"], ["better"])
    await setup.say("a", "b", "/retry")
    assert setup.texts == ["one", "two", "better"]
    assert asked(setup) == ["a", "one", "b"]
    assert await setup.history() == [
        *(("user", "a"), ("assistant", "one")),
        *(("user", "b"), ("assistant", "better")),
    ]


@pytest.mark.parametrize("again", ["/retry", pressed(ButtonAction.RETRY)], ids=["typed", "pressed"])
async def test_retry_asks_for_a_different_answer(
    database: Database, again: str | ButtonPress
) -> None:
    preset = {"parameters": {"temperature": 0, "top_p": 1}}
    setup = Setup(database, preset=preset)
    await setup.say("a", again, "b")
    temperatures = [one.parameters["temperature"] for one in setup.backend.prompts]
    assert temperatures == [0, 0.5, 0]


def elsewhere(setup: Setup, **parts: Any) -> Setup:
    """Return a worker of another process, which knows only what is in the database."""
    return Setup(setup.database, backend=setup.backend, surface=setup.surface, **parts)


async def test_retry_and_undo_find_a_question_that_failed_in_another_process(
    database: Database,
) -> None:
    away = BackendUnavailable("refused", notice="The model is away.")
    backend = FakeBackend(["one"], [away], [away], ["two"], [away])
    setup = Setup(database, backend=backend)
    await setup.say("a", "b", make_incoming("by the way", key="5:70", author=BOB, wake=None))
    await setup.say("/settings menu")  # a menu is kept like a question that failed
    await elsewhere(setup).say(said("/retry", key="5:91"))
    await elsewhere(setup).say(said("/retry", key="5:92"))
    answered = [("user", "a"), ("assistant", "one"), ("user", "b"), ("assistant", "two")]
    assert [one for one in await setup.history() if one[1] != "by the way"] == answered
    await elsewhere(setup).say(said("c", key="5:93"))
    for number, removed in enumerate(["c”.", "b” and its answer.", "a” and its answer."]):
        await elsewhere(setup).say(said("/undo", key=f"5:10{number}"))
        assert setup.texts[-1] == f"Removed from the conversation: “{removed}"
    await elsewhere(setup).say(said("/undo", key="5:110"))
    assert setup.texts[-1] == "⚠ There is no question in this conversation yet."


async def test_second_retry_after_a_failure_adds_no_second_question(database: Database) -> None:
    away = BackendUnavailable("refused", notice="The model is away.")
    setup = Setup(database, ["one"], [away], ["two"])
    await setup.say("a", "/retry", "/retry")
    assert await setup.history() == [("user", "a"), ("assistant", "two")]


async def test_retry_answers_a_question_that_was_stopped(database: Database) -> None:
    setup = Setup(database, [asyncio.Event()], ["Here it is."])
    await stop_while_answering(setup, "a story", said("/stop"), said("/retry", key="5:91"))
    assert setup.texts[-1] == "Here it is."
    assert await setup.history() == [("user", "a story"), ("assistant", "Here it is.")]


async def test_undo_removes_the_newest_question_and_its_answer(database: Database) -> None:
    setup = Setup(database, ["one"], ["two"], ["three"])
    await setup.say("a", "b", "/undo")
    assert setup.texts[-1] == "Removed from the conversation: “b” and its answer."
    assert await setup.history() == [("user", "a"), ("assistant", "one")]
    await setup.say("c")
    assert asked(setup) == ["a", "one", "c"]


async def test_undo_keeps_observed_messages(database: Database) -> None:
    setup = Setup(database, ["one"], preset={"context": "all"})
    await setup.say("a", make_incoming("by the way", key="5:70", author=BOB, wake=None))
    await setup.say(said("/undo"))
    assert await setup.history() == [("user", "by the way")]

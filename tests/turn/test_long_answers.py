"""Test long answers sent as a file or in a thread (`long_answer` of a preset)."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from bot.chat.command import ButtonAction
from bot.chat.incoming import IncomingMessage
from bot.storage.database import Database
from tests.fakes import LIMITS, FakeBackend
from tests.samples import make_incoming
from tests.turn.setup import Setup, pass_time_until, pressed, working
from tests.waiting import advance_in_steps

SHORT = replace(LIMITS, max_units=60, deduplicates_sends=False)
LONG = f"{'x' * 30}\n\n{'y' * 40}"
BEGINNING, NOTE = "x" * 30, "📄 The whole answer is in this file."


def make_setup(database: Database, *scripts: list[str | asyncio.Event], **more: Any) -> Setup:
    return Setup(database, *scripts, limits=SHORT, preset={"long_answer": "file"}, **more)


def files(setup: Setup) -> list[str]:
    return [one.text for one in setup.surface.files.values()]


async def test_long_answer_is_sent_as_its_beginning_and_a_complete_file(database: Database) -> None:
    setup = make_setup(database, [LONG])
    await setup.say("hello")
    assert setup.texts == [BEGINNING, NOTE]
    [(message_id, file)] = setup.surface.files.items()
    assert (setup.surface.messages[message_id], file.name, file.text) == (NOTE, "answer.md", LONG)
    assert await setup.history() == [("user", "hello"), ("assistant", LONG)]


async def test_live_answer_shows_its_beginning_until_the_file_is_sent(database: Database) -> None:
    go_on = asyncio.Event()
    setup = make_setup(database, [LONG, go_on, " And more."])
    async with working(setup, "hello") as worker:
        await pass_time_until(setup, lambda: setup.texts)
        assert (setup.texts, files(setup)) == ([BEGINNING], [])
        await advance_in_steps(setup.clock, 5)
        assert setup.texts == [BEGINNING]
        go_on.set()
        await worker
    await setup.finish_sending()
    assert setup.texts == [BEGINNING, NOTE]
    assert files(setup) == [f"{LONG} And more."]


async def test_file_is_sent_only_once_despite_a_crash(database: Database) -> None:
    first = make_setup(database, [LONG, asyncio.Event()])
    async with working(first, "hello"):
        await pass_time_until(first, lambda: first.texts)
    second = make_setup(database, [LONG], surface=first.surface, clock=first.clock)
    await second.work()
    assert (second.texts, files(second)) == ([BEGINNING, NOTE], [LONG])


async def test_file_is_shown_only_with_its_version_of_the_answer(database: Database) -> None:
    setup = make_setup(database, [LONG], ["short"])
    await setup.say("hello")
    await setup.clock.advance(1)
    await setup.say(pressed(ButtonAction.RETRY))
    assert (setup.texts, files(setup)) == (["short"], [])
    await setup.say(pressed(ButtonAction.VERSION, number=1, key="2"))
    assert (setup.texts, files(setup)) == ([BEGINNING, NOTE], [LONG])
    await setup.say(pressed(ButtonAction.VERSION, number=2, key="3"))
    assert (setup.texts, files(setup)) == (["short"], [])


# --- threads -------------------------------------------------------------------------------------

WITH_THREADS = replace(SHORT, has_threads=True, has_buttons=True)
VERY_LONG = f"{LONG}\n\n{'z' * 40}"
REST = ["y" * 40, "z" * 40]


def with_threads(database: Database, *scripts: list[str | asyncio.Event], **more: Any) -> Setup:
    preset = {"long_answer": "thread", "buttons": True}
    return Setup(database, *scripts, preset=preset, **{"limits": WITH_THREADS, **more})


def placed(setup: Setup) -> list[tuple[str, str | None]]:
    """Return the shown texts, each with the message from which its thread was opened."""
    surface = setup.surface
    return [(text, surface.threads.get(id_)) for id_, text in surface.messages.items()]


async def test_long_answer_continues_in_a_thread(database: Database) -> None:
    setup = with_threads(database, [VERY_LONG])
    await setup.say("hello")
    assert placed(setup) == [(BEGINNING, None), *((text, "1") for text in REST)]
    assert await setup.history() == [("user", "hello"), ("assistant", VERY_LONG)]
    buttons = [len(content.buttons) for content in setup.surface.contents]
    assert buttons == [3, 0, 0], "the buttons stay in the channel"


async def test_long_answer_is_sent_in_parts_if_threads_are_unsupported(database: Database) -> None:
    setup = with_threads(database, [VERY_LONG], limits=SHORT)
    await setup.say("hello")
    assert placed(setup) == [(text, None) for text in [BEGINNING, *REST]]


@pytest.mark.parametrize(
    "message",
    [replace(make_incoming(), in_thread=True), replace(make_incoming(), is_private=True)],
    ids=["in a thread", "in private"],
)
async def test_no_thread_is_opened_in_threads_or_private_chats(
    database: Database, message: IncomingMessage
) -> None:
    setup = with_threads(database, [VERY_LONG])
    await setup.say(message)
    assert placed(setup) == [(text, None) for text in [BEGINNING, *REST]]


async def show(setup: Setup, messages: int) -> None:
    """Advance the clock until a number of the answer's messages are shown."""
    await pass_time_until(setup, lambda: len(setup.texts) >= messages)


async def test_live_answer_continues_in_its_thread(database: Database) -> None:
    go_on = asyncio.Event()
    setup = with_threads(database, [LONG, go_on, f"\n\n{'z' * 40}"])
    async with working(setup, "hello") as worker:
        await show(setup, 2)
        assert placed(setup) == [(BEGINNING, None), (REST[0], "1")]
        stop_buttons = [len(content.buttons) for content in setup.surface.contents]
        assert stop_buttons == [1, 0], "it stays in the channel"
        go_on.set()
        await worker
    await setup.finish_sending()
    assert placed(setup) == [(BEGINNING, None), *((text, "1") for text in REST)]


@pytest.mark.parametrize("text", ["short", VERY_LONG.replace("y", "w")])
async def test_answer_generated_again_after_a_crash_replaces_its_thread(
    database: Database, text: str
) -> None:
    first = with_threads(database, [LONG, asyncio.Event()])
    async with working(first, "hello"):
        await show(first, 2)
    second = with_threads(database, [text], surface=first.surface, clock=first.clock)
    await second.work()
    rest = [] if text == "short" else ["w" * 40, "z" * 40]
    beginning = text if text == "short" else BEGINNING
    assert placed(second) == [(beginning, None), *((one, "1") for one in rest)]


async def test_interrupted_answer_reuses_its_thread(database: Database) -> None:
    preset = {"long_answer": "thread", "busy": "interrupt"}
    backend = FakeBackend([LONG, asyncio.Event()], [VERY_LONG.replace("y", "w")])
    setup = Setup(database, backend=backend, limits=WITH_THREADS, preset=preset)
    async with working(setup, "hello") as worker:
        await show(setup, 2)
        await setup.receive(make_incoming("and again", key="5:2"))
        await advance_in_steps(setup.clock, 3)
        await worker
    await setup.finish_sending()
    [first] = (id_ for id_, text in setup.surface.messages.items() if text == BEGINNING)
    assert placed(setup) == [(BEGINNING, None), ("w" * 40, first), ("z" * 40, first)]


async def test_retry_replaces_the_messages_in_the_thread(database: Database) -> None:
    setup = with_threads(database, [VERY_LONG], [LONG.replace("y", "w")], ["short"])
    await setup.say("hello")
    await setup.clock.advance(1)
    await setup.say(pressed(ButtonAction.RETRY))
    assert placed(setup) == [(BEGINNING, None), ("w" * 40, "1")]
    await setup.say(pressed(ButtonAction.VERSION, number=1, key="2"))
    assert placed(setup) == [(BEGINNING, None), *((text, "1") for text in REST)]
    await setup.say(pressed(ButtonAction.DELETE, key="3"))
    assert placed(setup) == []


async def test_two_characters_each_have_their_own_thread(database: Database) -> None:
    others = [{"name": "luna", "long_answer": "thread"}]
    limits = replace(WITH_THREADS, shows_faces=True)
    setup = with_threads(
        database, [VERY_LONG], [LONG.replace("y", "w")], limits=limits, others=others
    )
    await setup.say("/preset add luna", "nora and luna, who are you?")
    first, second = (id_ for id_, text in setup.surface.messages.items() if text == BEGINNING)
    assert [one for one in placed(setup) if one[1]] == [
        *((text, first) for text in REST),
        ("w" * 40, second),
    ]

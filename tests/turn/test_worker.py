"""Test the turn of one message on a real database: it is answered once, whatever goes wrong."""

import asyncio
from contextlib import suppress
from dataclasses import replace

import pytest
from sqlalchemy import select, update

from bot.chat.incoming import MediaItem, MediaKind
from bot.chat.story import Story
from bot.errors import BackendUnavailable, StoreError
from bot.intake import InboxIntake
from bot.memory import RetrievedStories
from bot.prompting.presets.preset import Preset
from bot.storage.database import Database
from bot.storage.tables import inbox, turn
from tests.fakes import FakeBackend, run_ready_tasks
from tests.samples import make_incoming
from tests.turn.setup import CHAT, Setup, failure, running_worker
from tests.waiting import advance_in_steps, wait_until


async def test_private_message_that_cannot_be_read_is_answered_in_words(database: Database) -> None:
    setup = Setup(database)
    media = (MediaItem(MediaKind.VOICE), MediaItem(MediaKind.IMAGE))
    await setup.say(replace(make_incoming("", key="5:1"), attachments=media))
    assert setup.texts == [
        "I cannot listen to voice messages or look at pictures here. "
        "Please tell me in words what it is about."
    ]
    assert await setup.history() == []
    assert setup.backend.prompts == []


async def test_picture_in_a_group_that_is_for_nobody_is_not_answered(database: Database) -> None:
    setup = Setup(database)
    media = (MediaItem(MediaKind.IMAGE),)
    await setup.say(replace(make_incoming("", key="5:1", wake=None), attachments=media))
    assert setup.texts == []


async def test_message_is_answered_once_and_stored(database: Database) -> None:
    setup = Setup(database, ["Hi ", "there."])
    await setup.say("hello")
    await setup.work()
    assert setup.texts == ["Hi there."]
    assert await setup.history() == [("user", "hello"), ("assistant", "Hi there.")]
    assert len(setup.backend.prompts) == 1


async def test_persona_of_the_author_is_in_the_prompt(database: Database) -> None:
    setup = Setup(database, ["My lord."])
    await setup.say("/me a tall knight", "hello")
    said = setup.backend.prompts[-1].messages[-1].content
    assert said == "(Alice says of themselves: a tall knight)\n\nhello"
    assert await setup.history() == [("user", "hello"), ("assistant", "My lord.")]


async def test_history_stores_preset_and_version_of_an_answer(database: Database) -> None:
    setup = Setup(database, ["Hi."])
    await setup.say("hello")
    written = select(turn.c.role, turn.c.preset, turn.c.preset_version).order_by(turn.c.id)
    rows = await database.read(lambda c: c.execute(written).all())
    assert [tuple(row) for row in rows] == [("user", None, None), ("assistant", "nora", 3)]


async def test_messages_are_answered_in_order_with_the_history_before_them(
    database: Database,
) -> None:
    setup = Setup(database, ["one"], ["two"], ["three"])
    await setup.say("a", "b", "c")
    assert setup.texts == ["one", "two", "three"]
    asked = [message.content for message in setup.backend.prompts[-1].messages]
    assert asked == ["a", "one", "b", "two", "c"]


async def test_message_received_during_an_answer_is_answered_next(
    database: Database,
) -> None:
    go_on = asyncio.Event()
    setup = Setup(database, [go_on, "one"], ["two"])
    await setup.receive("a")
    async with running_worker(setup) as worker:
        await wait_until(lambda: len(setup.backend.prompts) == 1)
        await setup.receive("b")
        go_on.set()
        await worker
    assert setup.texts == ["one", "two"]


async def test_failed_turn_leaves_no_trace(database: Database) -> None:
    no_model = BackendUnavailable("refused", notice="The model is away.")
    setup = Setup(database, [no_model], ["Hi."])
    await setup.say("hello")
    assert setup.texts == [failure("The model is away.")]
    assert await setup.history() == []
    await setup.say("hello again")
    assert [message.content for message in setup.backend.prompts[-1].messages] == ["hello again"]


async def test_observed_message_is_stored_but_not_answered(database: Database) -> None:
    setup = Setup(database, preset={"context": "all"})
    await setup.say(make_incoming("nice weather", wake=None))
    assert setup.texts == []
    assert setup.backend.prompts == []
    assert await setup.history() == [("user", "nice weather")]


async def test_ignored_message_is_neither_answered_nor_stored(database: Database) -> None:
    setup = Setup(database, preset={"context": "addressed"})
    await setup.say(make_incoming("nice weather", wake=None))
    assert (setup.texts, await setup.history(), await setup.crashes_of_pending()) == ([], [], [])


async def test_bug_is_reported_and_the_next_message_is_answered(database: Database) -> None:
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


async def test_message_that_crashed_too_often_is_set_aside(
    database: Database,
) -> None:
    setup = Setup(database, ["Hi."])
    await setup.receive("crash", "hello")
    await database.write(
        lambda c: c.execute(update(inbox).where(inbox.c.id == 1).values(own_crashes=3)).rowcount
    )
    await setup.work()
    assert [text[:25] for text in setup.texts] == ["⚠ This message crashed th", "Hi."]
    assert len(setup.backend.prompts) == 1


async def test_fenced_worker_drops_its_answer(database: Database) -> None:
    go_on = asyncio.Event()
    setup = Setup(database, [go_on, "Too late."])
    await setup.receive("hello")
    async with running_worker(setup) as worker:
        await wait_until(lambda: len(setup.backend.prompts) == 1)
        await setup.take_over()
        go_on.set()
        await worker
    assert setup.texts == []
    assert await setup.history() == []
    assert len(await setup.crashes_of_pending()) == 1


async def test_lost_lease_stops_the_model(database: Database) -> None:
    never = asyncio.Event()
    setup = Setup(database, ["Once ", never])
    await setup.receive("hello")
    async with running_worker(setup) as worker:
        await wait_until(lambda: len(setup.backend.prompts) == 1)
        await setup.take_over()
        await advance_in_steps(setup.clock, 6)
        await wait_until(worker.done)
        assert worker.exception() is None
    assert setup.backend.closed_early == 1


async def test_lease_is_renewed_while_the_model_generates(database: Database) -> None:
    go_on = asyncio.Event()
    setup = Setup(database, [go_on, "At last."])
    await setup.receive("hello")
    async with running_worker(setup) as worker:
        await wait_until(lambda: len(setup.backend.prompts) == 1)
        for _ in range(6):
            await advance_in_steps(setup.clock, 5)
        assert await setup.conversations.begin([CHAT], "other", 15) == []
        go_on.set()
        await worker
    assert setup.texts == ["At last."]


async def test_cancellation_does_not_count_as_a_crash(database: Database) -> None:
    never = asyncio.Event()
    setup = Setup(database, [never])
    await setup.receive("hello")
    async with running_worker(setup) as worker:
        await wait_until(lambda: len(setup.backend.prompts) == 1)
        worker.cancel()
        with suppress(asyncio.CancelledError):
            await worker
        assert worker.cancelled()
    assert setup.backend.closed_early == 1
    assert await setup.crashes_of_pending() == [0]
    assert await setup.conversations.begin([CHAT], "other", 15) != []


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
    await setup.receive("a", "b")
    async with running_worker(setup) as worker:
        await wait_until(lambda: len(setup.backend.prompts) == 1)
        setup.worker.stop_after_current()
        go_on.set()
        await worker
    assert setup.texts == ["one"]
    assert await setup.crashes_of_pending() == [0]


async def test_conversation_claimed_by_another_worker_is_skipped(database: Database) -> None:
    setup = Setup(database)
    await setup.receive("hello")
    await setup.conversations.begin([CHAT], "other", 15)
    await setup.work()
    assert setup.backend.prompts == []


async def test_turn_leaves_no_tasks_running(database: Database) -> None:
    setup = Setup(database)
    before = asyncio.all_tasks()
    await setup.say("hello")
    await run_ready_tasks()
    assert asyncio.all_tasks() == before


async def test_retrieved_stories_are_in_the_prompt(
    database: Database,
) -> None:
    async def retrieve(preset: Preset, newest: str, _payer: object) -> RetrievedStories:
        assert (preset.name, newest) == ("nora", "Was there a storm?")
        return {newest: [Story(0, "A storm took the roof.", 0.9)]}

    backend = FakeBackend(["Yes."])
    persona: dict[str, object] = {"persona": "You keep a light.\n{{RAG-dialogue}}"}
    setup = Setup(database, backend=backend, preset=persona, retrieve_stories=retrieve)

    await setup.say("Was there a storm?")

    assert backend.prompts[0].messages[0].content == (
        "You keep a light.\n###\nA storm took the roof."
    )


async def test_pasted_key_is_neither_kept_nor_sent_and_its_author_is_told(
    database: Database,
) -> None:
    setup = Setup(database, ["Fine."])
    intake = InboxIntake(setup.inbox, lambda _: None)
    said = make_incoming("my key is sk-proj-CANARY00000000000000001 ok?")
    await intake.receive([said], {})
    await setup.work()
    assert setup.texts[0] == "Fine."
    assert setup.texts[1].startswith("⚠ Your message seems to hold a token")
    assert await setup.history() == [
        ("user", "my key is ***0001 ok?"),
        ("assistant", "Fine."),
    ]
    assert "CANARY" not in setup.backend.prompts[0].messages[-1].content

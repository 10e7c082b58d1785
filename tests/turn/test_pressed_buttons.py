"""Test the buttons under an answer: what a press does, and to whom it is refused."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from bot.chat.command import MAX_DATA_BYTES, ButtonAction, ButtonData, read_button
from bot.chat.incoming import Address, Person, Pressed
from bot.chat.prompt import Finish, FinishReason
from bot.errors import BackendUnavailable
from bot.storage.database import Database
from tests.fakes import LIMITS, FakeBackend
from tests.samples import ALICE, BOB, make_incoming
from tests.turn.setup import FIRST, Setup, pressed, running_worker
from tests.waiting import advance_in_steps, wait_until

CAROL = Person("telegram:3", "Carol")
AWAY = BackendUnavailable("refused", notice="The model is away.")


@pytest.mark.parametrize("action", ButtonAction)
def test_data_of_a_button_fits_and_is_read_back(action: ButtonAction) -> None:
    part = "telegram@7012345678:-1001234567890:1234567890:e1234567890/9999"
    data = ButtonData(action, part, 12 if action is ButtonAction.VERSION else 0)
    assert len(data.encode().encode()) <= MAX_DATA_BYTES
    address = Address("telegram", "-1001234567890", None, "7012345678")
    press = Pressed(address, "cb1", "1", ALICE, data.encode(), datetime.now(UTC), ())
    assert read_button(press) == data


@pytest.mark.parametrize("data", ["", "noop", "retry", "retry:", "retry:5:1", "steal:5:1/0"])
def test_data_of_others_is_no_button(data: str) -> None:
    press = Pressed(Address("telegram", "5"), "cb1", "1", ALICE, data, datetime.now(UTC), ())
    assert read_button(press) is None


async def test_retry_writes_the_answer_again_in_its_message(database: Database) -> None:
    setup = Setup(database, ["one"], ["two"])
    await setup.say("a", pressed(ButtonAction.RETRY))
    assert setup.texts == ["two"]
    assert await setup.history() == [("user", "a"), ("assistant", "two")]
    assert [one.content for one in setup.backend.prompts[-1].messages] == ["a"]


async def test_retry_draws_another_answer_where_nothing_is_left_to_chance(
    database: Database,
) -> None:
    preset = {"parameters": {"temperature": 0, "top_p": 1}}
    setup = Setup(database, preset=preset)
    await setup.say("a", pressed(ButtonAction.RETRY))
    assert [one.parameters["temperature"] for one in setup.backend.prompts] == [0, 0.5]


async def test_versions_are_kept_and_shown_again(database: Database) -> None:
    setup = Setup(database, ["one"], ["two"], ["three"], ["next"])
    await setup.say("a")
    for key in "12":
        await setup.clock.advance(1)
        await setup.say(pressed(ButtonAction.RETRY, key=key))
    await setup.say(pressed(ButtonAction.VERSION, number=1, key="3"))
    assert setup.texts == ["one"]
    await setup.say(pressed(ButtonAction.VERSION, number=3, key="4"))
    assert setup.texts == ["three"]
    await setup.say(pressed(ButtonAction.VERSION, number=2, key="5"))
    assert setup.texts == ["two"]
    found = await setup.conversations.load_answered("telegram:5", FIRST, 10)
    assert found is not None
    [versions] = found.versions
    assert [one.turn.text for one in versions] == ["one", "two", "three"]
    await setup.say("b")
    assert [one.content for one in setup.backend.prompts[-1].messages] == ["a", "two", "b"]


async def test_version_that_is_longer_than_the_shown_one_gets_more_messages(
    database: Database,
) -> None:
    long = " ".join(map(str, range(700)))
    setup = Setup(database, [long], ["short"])
    await setup.say("a")
    await setup.clock.advance(1)
    await setup.say(pressed(ButtonAction.RETRY))
    assert setup.texts == ["short"]
    await setup.say(pressed(ButtonAction.VERSION, number=1, key="2"))
    assert len(setup.texts) == 2
    await setup.say(pressed(ButtonAction.VERSION, number=2, key="3"))
    assert setup.texts == ["short"]
    await setup.say(pressed(ButtonAction.VERSION, number=1, key="4"))
    assert " ".join(setup.texts).split() == long.split()


async def test_continue_asks_to_go_on(database: Database) -> None:
    cut = Finish(FinishReason.LENGTH)
    setup = Setup(database, ["Once", cut], [" upon a time."])
    await setup.say("a", pressed(ButtonAction.CONTINUE))
    assert [one.content for one in setup.backend.prompts[-1].messages] == ["a", "Once", "Go on."]
    assert len(setup.texts) == 2
    assert [role for role, _ in await setup.history()] == ["user", "assistant"] * 2


@pytest.mark.parametrize("action", [ButtonAction.RETRY, ButtonAction.CONTINUE])
async def test_press_in_a_thread_is_answered_with_its_title(
    database: Database, action: ButtonAction
) -> None:
    setup = Setup(database, ["one"], ["two"])
    asked = replace(make_incoming("a", key="5:1"), in_thread=True, thread_title="Ferns")
    await setup.say(asked, replace(pressed(action), in_thread=True, thread_title="Ferns"))
    titles = [one.messages[-1].content.partition("\n\n")[0] for one in setup.backend.prompts]
    assert titles == ["[The title of this thread]\n> Ferns"] * 2


async def test_delete_takes_the_answer_and_its_versions_away(database: Database) -> None:
    setup = Setup(database, ["one"], ["two"])
    await setup.say("a", pressed(ButtonAction.RETRY), pressed(ButtonAction.DELETE, key="2"))
    assert setup.texts == []
    assert await setup.history() == [("user", "a")]
    assert await setup.conversations.load_answered("telegram:5", FIRST, 10) is None
    assert setup.memory.calls == ["forget telegram:5"]


async def test_press_of_others_is_refused_in_words_and_changes_nothing(
    database: Database,
) -> None:
    setup = Setup(database, ["one"])
    await setup.say("a")
    words = "Only the person who asked the question, or an admin, can use this button."
    for action in (ButtonAction.RETRY, ButtonAction.CONTINUE, ButtonAction.DELETE):
        press = pressed(action, by=BOB, key=action)
        assert await setup.buttons.refusal(press) == words
        assert await setup.buttons.refusal(pressed(action, by=CAROL)) is None  # an admin
        await setup.say(press)  # also if a platform could not ask
    assert setup.texts == ["one", *[f"⚠ Bob: {words}"] * 3]
    assert len(setup.backend.prompts) == 1


async def test_only_the_newest_answer_is_written_again(database: Database) -> None:
    setup = Setup(database, ["one"], ["two"])
    await setup.say("a", "b")
    refusal = await setup.buttons.refusal(pressed(ButtonAction.RETRY))
    assert (
        refusal == "The conversation has moved on: this button works only under the newest answer."
    )
    assert await setup.buttons.refusal(pressed(ButtonAction.DELETE)) is None


@pytest.mark.parametrize("action", [ButtonAction.RETRY, ButtonAction.CONTINUE])
@pytest.mark.parametrize("is_private", [False, True])
async def test_press_behind_a_newer_question_is_told_why_nothing_happens(
    database: Database, action: ButtonAction, is_private: bool
) -> None:
    setup = Setup(database, ["one"], ["two"])
    await setup.say("a")
    press = replace(pressed(action), is_private=is_private, locale="en")
    assert await setup.buttons.refusal(press) is None  # the newer question is not answered yet
    await setup.say("b", press)
    words = "The conversation has moved on: this button works only under the newest answer."
    assert setup.texts == ["one", "two", f"⚠ {words}" if is_private else f"⚠ Alice: {words}"]
    assert [text for _, text in await setup.history()] == ["a", "one", "b", "two"]


async def test_answer_that_is_not_known_any_more_is_named(database: Database) -> None:
    setup = Setup(database, ["one"])
    await setup.say("a", "/forget")
    refusal = await setup.buttons.refusal(pressed(ButtonAction.RETRY))
    assert refusal == "This button no longer works: its answer was deleted or replaced."


async def test_retry_of_a_failed_answer_works_after_a_restart(database: Database) -> None:
    backend = FakeBackend([AWAY], [AWAY], ["Here it is."], ["Better."])
    setup = Setup(database, backend=backend)
    await setup.say("a")
    [notice] = setup.texts
    assert notice.startswith("⚠ The model is away. (error ")
    assert await setup.history() == []
    restarted = Setup(database, backend=backend, surface=setup.surface)
    assert await restarted.buttons.refusal(pressed(ButtonAction.RETRY, by=BOB)) is not None
    await restarted.say(pressed(ButtonAction.RETRY))
    [again] = restarted.texts
    assert again.startswith("⚠ The model is away. (error ")
    assert again != notice
    await restarted.say(pressed(ButtonAction.RETRY, key="2"))
    assert restarted.texts == ["Here it is."]
    assert await restarted.history() == [("user", "a"), ("assistant", "Here it is.")]
    await restarted.say(pressed(ButtonAction.RETRY, key="3"))
    assert restarted.texts == ["Better."]


async def test_question_that_failed_is_not_answered_twice(database: Database) -> None:
    setup = Setup(database, [AWAY], ["Here it is."])
    await setup.say("a", "/retry", pressed(ButtonAction.RETRY))
    words = "This button no longer works: its answer was deleted or replaced."
    assert setup.texts[1:] == ["Here it is.", f"⚠ Alice: {words}"]
    assert await setup.history() == [("user", "a"), ("assistant", "Here it is.")]


async def test_failed_retry_keeps_the_old_answer(database: Database) -> None:
    setup = Setup(database, ["one"], [AWAY])
    await setup.say("a", pressed(ButtonAction.RETRY))
    assert setup.texts == ["one", "⚠ The model is away."]
    assert await setup.history() == [("user", "a"), ("assistant", "one")]


async def test_stop_ends_the_answer_that_it_stands_under(database: Database) -> None:
    setup = Setup(database, ["Once upon", asyncio.Event()], ["Two."])
    await setup.receive("a story")
    deciding = asyncio.create_task(setup.stops.run())
    async with running_worker(setup) as worker:
        await wait_until(lambda: len(setup.backend.prompts) == 1)
        await advance_in_steps(setup.clock, 2)
        words = "Only the person who asked the question, or an admin, can use this button."
        assert await setup.buttons.refusal(pressed(ButtonAction.STOP, by=BOB)) == words
        assert await setup.buttons.refusal(pressed(ButtonAction.STOP)) is None
        await setup.receive(pressed(ButtonAction.STOP, "telegram:5:9/0", key="8"))  # of another
        await advance_in_steps(setup.clock, 1)
        assert not worker.done()
        await setup.receive(pressed(ButtonAction.STOP))
        await worker
    deciding.cancel()
    assert setup.texts == ["Once upon\n\n⚠ (stopped)"]
    assert setup.backend.closed_early == 1
    refusal = await setup.buttons.refusal(pressed(ButtonAction.STOP))
    assert refusal == "No answer is being written here."


async def test_answer_of_several_characters_is_retried_and_switched_as_one(
    database: Database,
) -> None:
    setup = Setup(database, ["N1"], ["L1"], ["N2"], ["L2"], others=[{"name": "luna"}])
    await setup.say("/preset add luna", make_incoming("nora and luna, hello", key="5:2"))
    await setup.clock.advance(1)
    await setup.say(pressed(ButtonAction.RETRY, "telegram:5:2/1"))
    assert setup.texts[1:] == ["**nora**\nN2", "**luna**\nL2"]
    await setup.say(pressed(ButtonAction.VERSION, "telegram:5:2/1", number=1, key="2"))
    assert setup.texts[1:] == ["**nora**\nN1", "**luna**\nL1"]
    assert [text for _, text in await setup.history()] == ["nora and luna, hello", "N1", "L1"]


async def test_version_keeps_the_face_of_its_character(database: Database) -> None:
    setup = Setup(
        database,
        ["one"],
        ["two"],
        limits=replace(LIMITS, shows_faces=True),
        preset={"role_name": "Nora"},
    )
    await setup.say("a")
    await setup.clock.advance(1)
    await setup.say(pressed(ButtonAction.RETRY))
    await setup.say(pressed(ButtonAction.VERSION, number=1, key="2"))
    assert setup.texts == ["one"]
    faces = [content.face.name if content.face else None for content in setup.surface.contents]
    assert faces == ["Nora"] * 3

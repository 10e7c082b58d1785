"""Test commands that reply to one message: retry from there, change it, inspect the answer."""

from dataclasses import replace

import pytest

from bot.errors import BackendUnavailable, UserError
from bot.storage.database import Database
from tests.fakes import LIMITS
from tests.samples import BOB, make_incoming
from tests.turn.setup import Setup, on


async def test_retry_from_an_older_answer_takes_what_followed_out_of_the_history(
    database: Database,
) -> None:
    setup = Setup(database, ["one"], ["two"], ["again"])
    await setup.say("a", "b")
    await setup.say(on("1", "/retry", key="5:3"))  # the first answer is message 1
    assert setup.texts == ["one", "two", "again"]
    assert await setup.history() == [("user", "a"), ("assistant", "again")]
    assert [one.content for one in setup.backend.prompts[-1].messages] == ["a"]


async def test_retry_on_the_notice_of_a_failure_takes_its_place(database: Database) -> None:
    away = BackendUnavailable("refused", notice="The model is away.")
    setup = Setup(database, [away], ["again"])
    await setup.say(make_incoming("a", key="5:70"), on("1", "/retry", key="5:71"))
    assert setup.texts == ["again"]
    assert await setup.history() == [("user", "a"), ("assistant", "again")]


async def test_menu_is_neither_a_question_nor_a_text_to_change(database: Database) -> None:
    setup = Setup(database, limits=replace(LIMITS, has_buttons=True))
    await setup.say(make_incoming("/preset menu", key="5:70"), on("1", "/retry", key="5:71"))
    await setup.say(on("1", "/edit x", key="5:72"))
    assert setup.texts[1:] == ["⚠ That message is not in my memory."] * 2
    assert setup.backend.prompts == []


async def test_retry_from_somebody_elses_question_needs_an_admin(database: Database) -> None:
    setup = Setup(database, ["one"], ["again"])
    await setup.say("a", on("1", "/retry", key="5:2", by=BOB))
    assert setup.texts[1].startswith("⚠ Only an admin can retry or undo")


async def test_retry_by_a_native_command_is_answered_for_everybody(database: Database) -> None:
    setup = Setup(database, ["one"], ["again"])
    await setup.say("a")
    native = replace(make_incoming("/retry", key="5:2"), message_id=None, interaction="1:token")
    await setup.say(native)
    assert setup.texts == ["one", "again", "The question is answered again below."]


async def test_changed_answer_is_a_version_in_the_same_message(database: Database) -> None:
    setup = Setup(database, ["one"], ["next"], limits=replace(LIMITS, has_buttons=True))
    await setup.say(make_incoming("a", key="5:70"))
    await setup.say(on("1", "/edit It was quiet.", key="5:2"))
    assert setup.texts == ["It was quiet."]
    labels = [one.label for one in setup.surface.contents[-1].buttons]
    assert labels[-2:] == ["‹", "2/2"]
    await setup.say(make_incoming("b", key="5:3"))
    assert [one.content for one in setup.backend.prompts[-1].messages] == [
        "a",
        "It was quiet.",
        "b",
    ]


async def test_changed_question_is_answered_again_in_place(database: Database) -> None:
    setup = Setup(database, ["one"], ["other"])
    await setup.say(make_incoming("a", key="5:70"), on("70", "/edit c", key="5:71"))
    assert setup.texts == ["other"]
    assert await setup.history() == [("user", "c"), ("assistant", "other")]


async def test_question_is_changed_by_its_author_only(database: Database) -> None:
    setup = Setup(database, ["one"])
    await setup.say(make_incoming("a", key="5:70", author=BOB), on("70", "/edit c", key="5:71"))
    assert setup.texts[1] == "⚠ Only the person who said it can change it."
    with pytest.raises(UserError, match="Only the person who said it"):
        await setup.buttons.text_to_edit(on("70", "/edit", key="5:72"))
    assert await setup.buttons.text_to_edit(on("70", "/edit", key="5:73", by=BOB)) == "a"


async def test_inspect_shows_what_was_read_for_that_answer(database: Database) -> None:
    setup = Setup(database, ["one"], ["two"])
    await setup.say("a")
    await setup.clock.advance(60)
    await setup.say("b")
    await setup.say(on("1", "/context", key="5:3"), on("2", "/context", key="5:4"))
    first, second = setup.texts[2:]
    assert "receipt 1:" in first
    assert "receipt 2:" in second


async def test_message_that_is_not_known_is_named(database: Database) -> None:
    setup = Setup(database)
    for number, command in enumerate(("/retry", "/edit x", "/context")):
        await setup.say(on("999", command, key=f"5:{number}"))
    assert setup.texts == ["⚠ That message is not in my memory."] * 3

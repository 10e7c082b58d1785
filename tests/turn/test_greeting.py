"""The greeting of a group that the bot was added to, and of /new for everybody."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from sqlalchemy import select

from bot.chat.incoming import Address, Joined, Person, Quote, WakeReason
from bot.chat.outgoing import Face, Limits, MessageContent
from bot.storage.database import Database
from bot.storage.tables import outbox
from tests.fakes import LIMITS
from tests.samples import make_incoming
from tests.turn.setup import Setup

AT = datetime(2026, 11, 21, tzinfo=UTC)
GROUP = Address("telegram", "5")
ARRIVAL = Joined(GROUP, "join:5:1", Person("telegram:1", "Alice"), AT, (GROUP.lane,))


async def test_group_is_greeted_once_as_the_character_does(database: Database) -> None:
    preset = {"greeting": "Well met, {{user}}.", "macros": True}
    setup = Setup(database, preset=preset)
    for _ in range(2):  # delivered again after a restart
        await setup.inbox.receive([ARRIVAL], {})
        await setup.work()
    assert setup.texts == ["Well met, Alice."]
    assert await setup.history() == [("assistant", "Well met, Alice.")]


async def test_preset_without_a_greeting_introduces_itself(database: Database) -> None:
    setup = Setup(database, preset={"role_name": "Nora"})
    await setup.inbox.receive([replace(ARRIVAL, author=None, locale="zh-CN")], {})
    await setup.work()
    [text] = setup.texts
    assert "Nora" in text
    assert "Write to me" not in text  # it is said in Chinese
    assert await setup.history() == []


async def test_greeting_of_a_native_command_is_a_message_of_its_own(database: Database) -> None:
    setup = Setup(database, preset={"greeting": "Well met."})
    command = make_incoming("/new", wake=WakeReason.COMMAND)
    await setup.say(replace(command, message_id=None, interaction="1:token"))
    told = "Changed by Alice: A new conversation begins."
    assert setup.texts == ["A new conversation begins.", told, "Well met."]
    asked = select(outbox.c.interaction).order_by(outbox.c.id)
    tokens = await database.read(lambda c: c.execute(asked).scalars().all())
    assert tokens == ["1:token", None, None]
    assert await setup.history() == [("assistant", "Well met.")]


async def test_response_that_everybody_reads_is_not_told_again(database: Database) -> None:
    setup = Setup(database, preset={"greeting": "Well met."})
    command = make_incoming("/new", wake=WakeReason.COMMAND)
    native = replace(command, message_id=None, interaction="1:token", has_public_response=True)
    await setup.say(native)
    assert setup.texts == ["A new conversation begins.\n\nWell met."]


async def test_nobody_else_is_told_of_a_change_in_a_private_chat(database: Database) -> None:
    setup = Setup(database, preset={"greeting": "Well met."})
    command = make_incoming("/new", wake=WakeReason.COMMAND)
    native = replace(command, message_id=None, interaction="1:token", is_private=True)
    await setup.say(native)
    assert setup.texts == ["A new conversation begins.", "Well met."]


@pytest.mark.parametrize("command", ["/new", "/preset use nora"])
async def test_character_greets_everybody_with_its_own_face(
    database: Database, command: str
) -> None:
    nora = {"greeting": "Well met.", "role_name": "Nora"}
    limits = replace(LIMITS, shows_faces=True)
    setup = Setup(database, preset=nora, limits=limits)
    await setup.say(command)
    *told, greeting = setup.surface.contents
    assert [one.face for one in told] == [None]
    assert greeting == MessageContent("Well met.", Face("Nora"))
    assert await setup.history() == [("assistant", "Well met.")]
    reply = Quote(None, "2", "Well met.", by_webhook=True)
    await setup.say(replace(make_incoming("hello", key="5:9", wake=None), quote=reply))
    assert len(setup.backend.prompts) == 1  # it replies to the character


async def test_greeting_names_its_character_among_several(database: Database) -> None:
    nora = {"greeting": "Well met.", "role_name": "Nora"}
    setup = Setup(database, preset=nora, others=[{"name": "luna"}])
    await setup.say("/preset add luna", "/new")
    assert setup.texts[-2:] == ["A new conversation begins.", "**Nora**\nWell met."]
    assert (await setup.history())[-1] == ("assistant", "Well met.")


async def test_character_greets_a_group_with_its_own_face(database: Database) -> None:
    nora = {"greeting": "Well met.", "role_name": "Nora"}
    limits = replace(LIMITS, shows_faces=True)
    setup = Setup(database, preset=nora, limits=limits)
    await setup.inbox.receive([ARRIVAL], {})
    await setup.work()
    assert setup.surface.contents == [MessageContent("Well met.", Face("Nora"))]


async def test_greeting_of_a_typed_command_is_in_its_answer(database: Database) -> None:
    setup = Setup(database, preset={"greeting": "Well met."})
    await setup.say("/new")
    assert setup.texts == ["A new conversation begins.\n\nWell met."]


@pytest.mark.parametrize("limits", [LIMITS, replace(LIMITS, can_edit=False)])
async def test_character_greets_before_its_first_answer(database: Database, limits: Limits) -> None:
    nora = {"greeting": "Well met, {{user}}.", "alternate_greetings": ["Two."], "macros": True}
    setup = Setup(database, ["Hello."], preset=nora, limits=limits)
    await setup.say("hi", "again")
    assert setup.texts == ["Well met, Alice.", "Hello.", "Hello."]
    assert [message.content for message in setup.backend.prompts[0].messages[-2:]] == [
        "Well met, Alice.",
        "hi",
    ]
    assert await setup.history() == [
        ("assistant", "Well met, Alice."),
        ("user", "hi"),
        ("assistant", "Hello."),
        ("user", "again"),
        ("assistant", "Hello."),
    ]


async def test_start_is_two_lines_and_the_greeting(database: Database) -> None:
    nora = {"greeting": "Well met.", "alternate_greetings": ["Two."], "role_name": "Nora"}
    setup = Setup(database, ["Hello."], preset=nora)
    start = replace(make_incoming("/start", wake=WakeReason.COMMAND), is_private=True)
    how = (
        "I am Nora. Write to me here.\n/help lists what I can do, /new 2 begins with another"
        " greeting."
    )
    await setup.say(start, "hi", replace(start, external_key="5:3"))
    assert setup.texts == [f"{how}\n\nWell met.", "Hello.", how]
    assert (await setup.history())[0] == ("assistant", "Well met.")


async def test_opened_chat_greets_or_says_how_long_it_goes_on(database: Database) -> None:
    nora = {"greeting": "Well met.", "role_name": "Nora"}
    setup = Setup(database, ["Hello."], preset=nora)
    opened = replace(ARRIVAL, opens_chat=True)
    for key in ("1", "2"):
        await setup.inbox.receive([replace(opened, external_key=key)], {})
        await setup.work()
    count = "This conversation has 1 message; /new begins another."
    assert setup.texts == ["Well met.", f"Nora answers here. {count}"]

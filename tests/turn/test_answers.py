"""Test what is shown and stored for each way in which an answer can end."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import select

from bot.chat.answers import AnswerSearch
from bot.chat.incoming import Address, ChatJoin, Person, Quote, WakeReason
from bot.chat.outgoing import Face, MessageContent
from bot.chat.prompt import Finish, FinishReason, QueuePosition, ReasoningDelta
from bot.errors import BackendInterrupted, BackendUnavailable
from bot.storage.database import Database
from bot.storage.receipts import Receipts
from bot.storage.reports import AnswerLog
from bot.storage.tables import outbox
from tests.fakes import LIMITS, FakeBackend, ScriptStep
from tests.samples import make_incoming
from tests.turn.setup import CHAT, Setup, failure, texts_before


@pytest.mark.parametrize(
    ("script", "kept", "mark"),
    [
        (["Once upon ", BackendInterrupted("reset")], "Once upon", "(interrupted)"),
        (
            ["Once upon a time. ", *["And then. "] * 999],
            "Once upon a time. And then.",
            "(cut off: the model began to repeat itself; try again, or ask differently)",
        ),
        (
            ["Once upon", Finish(FinishReason.LENGTH)],
            "Once upon",
            "(cut off at the length limit; write “go on” for the rest)",
        ),
        (
            ["Once upon", Finish(FinishReason.FILTERED)],
            "Once upon",
            "(cut off by the provider's content filter; try other words)",
        ),
    ],
    ids=["interrupted", "repeats itself", "length", "filtered"],
)
async def test_note_on_an_incomplete_answer_is_not_stored_in_the_history(
    database: Database, script: list[ScriptStep], kept: str, mark: str
) -> None:
    setup = Setup(database, script)
    await setup.say("a story")
    assert setup.texts == [f"{kept}\n\n⚠ {mark}"]
    assert await setup.history() == [("user", "a story"), ("assistant", kept)]


EMPTY = "The model gave an empty answer. Please try again or rephrase your message."


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        ([Finish(FinishReason.FILTERED)], "content filter"),
        (
            ["  ", BackendInterrupted("reset", notice="The model broke off.")],
            "The model broke off.",
        ),
        (["  \n "], EMPTY),
        (["\u200b\u2060 \ufeff"], EMPTY),
        (
            [ReasoningDelta("Hm. "), ReasoningDelta("No.")],
            "The model spent its whole answer on thinking. Please try again, or ask for something"
            " shorter.",
        ),
    ],
    ids=["filtered", "interrupted", "blank", "invisible", "thoughts only"],
)
async def test_empty_answer_is_an_error(
    database: Database, script: list[ScriptStep], problem: str
) -> None:
    setup = Setup(database, script)
    await setup.say("a story")
    [told] = setup.texts
    assert problem in told
    assert "(error " in told
    assert await setup.history() == []


async def test_reasoning_is_neither_shown_nor_stored_in_the_history(database: Database) -> None:
    go_on = asyncio.Event()
    backend = FakeBackend([ReasoningDelta("They greet"), go_on, ReasoningDelta(" me."), "Hello."])
    setup = Setup(database, backend=backend)
    assert await texts_before(setup, go_on, is_streamed=False) == []
    assert setup.texts == ["Hello."]
    assert [call for call, _ in setup.surface.calls].count("typing") == 1
    assert await setup.history() == [("user", "hello"), ("assistant", "Hello.")]


async def test_too_long_message_is_refused_without_asking_the_model(database: Database) -> None:
    setup = Setup(database, preset={"max_input_tokens": 50})
    await setup.say("word " * 200)
    assert "too long" in setup.texts[0]
    assert setup.backend.prompts == []
    assert await setup.history() == []


async def test_regex_scripts_change_answer_and_history(database: Database) -> None:
    scripts = [{"find": "/<ledger>.*?<\\/ledger>/g", "replace": ""}]
    backend = FakeBackend(["Hi <led", "ger>{1}</ledger>", "there"])
    setup = Setup(database, backend=backend, preset={"regex_scripts": scripts})
    await setup.say("hello", "again")

    assert setup.texts == ["Hi there"] * 2
    assert (await setup.history())[1] == ("assistant", "Hi there")
    assert not any("led" in str(each) for each in setup.surface.contents)


@pytest.mark.parametrize(
    ("pieces", "preset", "shown"),
    [(["one\0", "\0two"], {}, "onetwo"), (["Hi <", "eot>"], {"filter_chars": ["<eot>"]}, "Hi")],
)
async def test_filtered_characters_are_removed_from_answer_and_history(
    database: Database, pieces: list[str], preset: dict[str, object], shown: str
) -> None:
    setup = Setup(database, pieces, preset=preset)
    await setup.say("hello")
    assert setup.texts == [shown]
    assert (await setup.history())[1] == ("assistant", shown)


async def test_receipt_contains_the_prompt_and_what_was_left_out_of_it(database: Database) -> None:
    small = {"max_input_tokens": 60, "system": "Be brief."}
    setup = Setup(database, ["word " * 9], preset=small)
    await setup.say(*(f"tell me of {n}" for n in range(4)))
    [(number, receipt)] = await Receipts(database).find_for_last_message(CHAT)
    assert (number, receipt.preset, receipt.preset_version, receipt.provider) == (4, "nora", 3, "p")
    assert receipt.prompt == setup.backend.prompts[-1]
    assert [(one.section, one.count) for one in receipt.dropped] == [("history", 4)]
    assert (receipt.limit, receipt.tokens <= 60) == (60, True)
    assert receipt.answer == ("word " * 9).strip()


async def test_receipt_records_when_the_answer_was_shown_and_delivered(database: Database) -> None:
    go_on = asyncio.Event()
    setup = Setup(database, ["Once upon", go_on, " a time."])
    written_at = setup.clock.now()
    said = replace(make_incoming("hello"), at=datetime.fromtimestamp(written_at, UTC))
    await setup.clock.advance(1)
    assert await texts_before(setup, go_on, said) == ["Once upon"]

    log = AnswerLog(database)
    [answer] = (await log.search(AnswerSearch(), 1)).answers
    timings, sent_at = answer.receipt.timings, await log.find_sent_time(answer)
    assert (timings.received_at, timings.queued_seconds) == (written_at, 1)
    assert len(timings.edits) == 1
    assert 1 <= timings.edits[0] <= 1 + timings.seconds
    assert sent_at == setup.clock.now()


@pytest.mark.parametrize("has_nonces", [True, False])
async def test_queue_position_is_shown_before_the_answer(
    database: Database, has_nonces: bool
) -> None:
    go_on = asyncio.Event()
    backend = FakeBackend([QueuePosition(3, 11.2), go_on, "Hello."])
    setup = Setup(database, backend=backend, limits=replace(LIMITS, deduplicates_sends=has_nonces))
    assert await texts_before(setup, go_on) == ["⏳ You're number 3 in the queue, about 12 s …"]
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


AT = datetime(2026, 11, 21, tzinfo=UTC)
GROUP = Address("telegram", "5")
ARRIVAL = ChatJoin(GROUP, "join:5:1", Person("telegram:1", "Alice"), AT, (GROUP.lane,))


async def test_group_is_greeted_once_with_the_greeting_of_the_character(database: Database) -> None:
    preset = {"greeting": "Well met, {{user}}.", "macros": True}
    setup = Setup(database, preset=preset)
    for _ in range(2):  # delivered again after a restart
        await setup.inbox.receive([ARRIVAL], {})
        await setup.work()
    greeting, notice = setup.texts
    assert greeting == "Well met, Alice."
    assert notice.startswith("What I do with what you write here:\n• I read what is said to me")
    assert await setup.history() == [("assistant", "Well met, Alice.")]


async def test_preset_without_a_greeting_introduces_itself(database: Database) -> None:
    setup = Setup(database, preset={"role_name": "Nora"})
    await setup.inbox.receive([replace(ARRIVAL, author=None, locale="zh-CN")], {})
    await setup.work()
    [text] = setup.texts
    assert "Nora" in text
    assert "Write to me" not in text  # it is said in Chinese
    assert await setup.history() == []


BEGINS, MET = "A new conversation has started.", "Well met."


@pytest.mark.parametrize(
    ("native", "texts"),
    [
        ({}, [BEGINS, f"Changed by Alice: {BEGINS}", MET]),
        ({"has_public_response": True}, [f"{BEGINS}\n\n{MET}"]),
        ({"is_private": True}, [BEGINS, MET]),
        (None, [f"{BEGINS}\n\n{MET}"]),
    ],
    ids=["native", "public", "private", "typed"],
)
async def test_change_by_a_privately_answered_command_is_announced_to_everybody(
    database: Database, native: dict[str, Any] | None, texts: list[str]
) -> None:
    setup = Setup(database, preset={"greeting": MET})
    command = make_incoming("/new", wake=WakeReason.COMMAND)
    if native is not None:
        command = replace(command, message_id=None, interaction="1:token", **native)
    await setup.say(command)
    assert setup.texts == texts
    asked = select(outbox.c.interaction).order_by(outbox.c.id)
    tokens = await database.read(lambda c: c.execute(asked).scalars().all())
    assert tokens == [None if native is None else "1:token", None, None][: len(texts)]
    assert await setup.history() == [("assistant", MET)]


@pytest.mark.parametrize("command", ["/new", "/preset use nora"])
async def test_character_greets_with_its_own_face(database: Database, command: str) -> None:
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


async def test_greeting_names_its_character_if_several_are_active(database: Database) -> None:
    nora = {"greeting": "Well met.", "role_name": "Nora"}
    setup = Setup(database, preset=nora, others=[{"name": "luna"}])
    await setup.say("/preset add luna", "/new")
    assert setup.texts[-2:] == ["A new conversation has started.", "**Nora**\nWell met."]
    assert (await setup.history())[-1] == ("assistant", "Well met.")


async def test_character_greets_before_its_first_answer(database: Database) -> None:
    nora = {"greeting": "Well met, {{user}}.", "alternate_greetings": ["Two."], "macros": True}
    setup = Setup(database, ["Hello."], preset=nora)
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


async def test_start_command_replies_with_two_lines_and_the_greeting(database: Database) -> None:
    nora = {"greeting": "Well met.", "alternate_greetings": ["Two."], "role_name": "Nora"}
    setup = Setup(database, ["Hello."], preset=nora)
    start = replace(make_incoming("/start", wake=WakeReason.COMMAND), is_private=True)
    how = (
        "I am Nora. Write to me here.\n/help lists what I can do, /new 2 starts with another"
        " greeting."
    )
    await setup.say(start, "hi", replace(start, external_key="5:3"))
    assert setup.texts == [f"{how}\n\nWell met.", "Hello.", how]
    assert (await setup.history())[0] == ("assistant", "Well met.")


async def test_opened_chat_gets_a_greeting_or_the_number_of_stored_messages(
    database: Database,
) -> None:
    nora = {"greeting": "Well met.", "role_name": "Nora"}
    setup = Setup(database, ["Hello."], preset=nora)
    opened = replace(ARRIVAL, opens_chat=True)
    for key in ("1", "2"):
        await setup.inbox.receive([replace(opened, external_key=key)], {})
        await setup.work()
    count = "This conversation has 1 message; /new starts a new one."
    assert setup.texts == ["Well met.", f"Nora answers here. {count}"]

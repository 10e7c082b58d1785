"""Test what is kept and shown of an answer, however it ends."""

import asyncio

import pytest
from structlog.testing import capture_logs

from bot.chat.prompt import Finish, FinishReason, ReasoningDelta
from bot.errors import BackendInterrupted
from bot.storage.database import Database
from bot.storage.receipts import Receipts
from tests.fakes import FakeBackend
from tests.turn.setup import CHAT, Setup, failure, texts_before


async def test_interrupted_answer_is_kept_and_marked(database: Database) -> None:
    setup = Setup(database, ["Once upon ", BackendInterrupted("reset")])
    await setup.say("a story")
    assert setup.texts == ["Once upon\n\n⚠ (interrupted)"]
    assert await setup.history() == [("user", "a story"), ("assistant", "Once upon")]


async def test_answer_that_repeats_itself_is_cut_and_said_so(database: Database) -> None:
    setup = Setup(database, ["Once upon a time. ", *["And then. "] * 999])
    await setup.say("a story")
    assert setup.texts == [
        "Once upon a time. And then.\n\n"
        "⚠ (cut off: the model began to repeat itself; try again, or ask differently)"
    ]
    assert (await setup.history())[1] == ("assistant", "Once upon a time. And then.")


@pytest.mark.parametrize(
    ("reason", "mark"),
    [
        (FinishReason.LENGTH, "⚠ (cut off at the length limit; write “go on” for the rest)"),
        (
            FinishReason.FILTERED,
            "⚠ (cut off by the provider's content filter; try other words)",
        ),
    ],
)
async def test_answer_that_is_cut_off_is_marked_for_its_readers_only(
    database: Database, reason: FinishReason, mark: str
) -> None:
    setup = Setup(database, ["Once upon", Finish(reason)])
    await setup.say("a story")
    assert setup.texts == [f"Once upon\n\n{mark}"]
    assert await setup.history() == [("user", "a story"), ("assistant", "Once upon")]


async def test_answer_that_is_filtered_from_its_first_word_is_an_error(
    database: Database,
) -> None:
    setup = Setup(database, [Finish(FinishReason.FILTERED)])
    await setup.say("a story")
    assert "content filter" in setup.texts[0]


async def test_answer_interrupted_before_its_first_character_is_an_error(
    database: Database,
) -> None:
    lost = BackendInterrupted("reset", notice="The model broke off.")
    setup = Setup(database, ["  ", lost])
    await setup.say("a story")
    assert setup.texts == [failure("The model broke off.")]
    assert await setup.history() == []


async def test_steps_before_a_failure_are_logged_and_those_of_an_answer_are_in_its_receipt(
    database: Database,
) -> None:
    lost = BackendInterrupted("reset", notice="The model broke off.")
    setup = Setup(database, [lost])
    with capture_logs() as logs:
        await setup.say("a story")
    steps = [one["event"] for one in logs if one["event"] in {"prompt_composed", "prefill"}]
    assert steps == ["prompt_composed", "prefill"]
    assert next(one["tokens"] for one in logs if one["event"] == "prompt_composed") > 0

    answering = Setup(database, ["one"])
    with capture_logs() as logs:
        await answering.say("hello")
    assert not [one for one in logs if one["event"] == "prefill"]
    [(_, receipt)] = await Receipts(database).newest("telegram:5")
    timings = receipt.timings
    assert 0 <= timings.composed_seconds <= timings.queued_seconds


async def test_nul_characters_are_removed_from_an_answer(database: Database) -> None:
    setup = Setup(database, ["one\0", "\0two"])
    await setup.say("hello")
    assert setup.texts == ["onetwo"]


@pytest.mark.parametrize("answer", ["  \n ", "\u200b\u2060 \ufeff"])
async def test_empty_answer_is_reported(database: Database, answer: str) -> None:
    setup = Setup(database, [answer])
    await setup.say("hello")
    problem = "The model gave an empty answer. Please try again or rephrase your message."
    assert setup.texts == [failure(problem)]
    assert await setup.history() == []


async def test_reasoning_is_neither_shown_nor_stored_in_the_history(database: Database) -> None:
    go_on = asyncio.Event()
    backend = FakeBackend([ReasoningDelta("They greet"), go_on, ReasoningDelta(" me."), "Hello."])
    setup = Setup(database, backend=backend)
    assert await texts_before(setup, go_on, is_streamed=False) == []
    assert setup.texts == ["Hello."]
    assert [call for call, _ in setup.surface.calls].count("typing") == 1
    assert await setup.history() == [("user", "hello"), ("assistant", "Hello.")]


async def test_answer_of_reasoning_only_is_reported(database: Database) -> None:
    setup = Setup(database, [ReasoningDelta("Hm. "), ReasoningDelta("No.")])
    await setup.say("hello")
    problem = "The model used its whole answer for thinking. Please try again, or ask for something"
    assert setup.texts == [failure(f"{problem} shorter.")]
    assert await setup.history() == []


async def test_too_long_message_is_refused_without_asking_the_model(
    database: Database,
) -> None:
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


async def test_filter_chars_are_removed_from_answer_and_history(
    database: Database,
) -> None:
    setup = Setup(database, ["Hi <", "eot>"], preset={"filter_chars": ["<eot>"]})
    await setup.say("hello")
    assert setup.texts == ["Hi"]
    assert (await setup.history())[1] == ("assistant", "Hi")


async def test_receipt_lists_what_was_sent_and_dropped(
    database: Database,
) -> None:
    small = {"max_input_tokens": 60, "system": "Be brief."}
    setup = Setup(database, ["word " * 9], preset=small)
    await setup.say(*(f"tell me of {n}" for n in range(4)))
    [(number, receipt)] = await Receipts(database).newest(CHAT)
    assert (number, receipt.preset, receipt.preset_version, receipt.provider) == (4, "nora", 3, "p")
    assert receipt.prompt == setup.backend.prompts[-1]
    assert [(one.section, one.count) for one in receipt.dropped] == [("history", 4)]
    assert (receipt.limit, receipt.tokens <= 60) == (60, True)
    assert receipt.answer == ("word " * 9).strip()

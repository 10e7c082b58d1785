"""Test that memories survive /new and a restart, but stay in the chat they come from."""

import re
from collections.abc import Mapping

import pytest

from tests.support.chats import Chat
from tests.support.features import EVERYWHERE, GROUPS, ON_THE_WIRES, at
from tests.support.model_server import Model
from tests.support.service_process import Service, preset_json
from tests.waiting import wait_until

pytestmark = [
    *ON_THE_WIRES,
    pytest.mark.usefixtures("reads_all_messages"),
    pytest.mark.runs_with(
        preset_json("tester", system="You are a tester.", busy="queue", memory=True)
    ),
]
LINE = re.compile(r"^\[(\d+)\] (.+?): .*?(I keep \w+ bees)", re.MULTILINE)


def honest_notes(transcript: str) -> list[Mapping[str, object]]:
    """Return true notes about who keeps bees."""
    return [
        {
            "turn": int(turn),
            "speaker": name,
            "about": name,
            "kind": "fact",
            "quote": quote,
            "note": quote.replace("I keep", f"{name} keeps"),
        }
        for turn, name, quote in LINE.findall(transcript)
    ]


def false_notes(transcript: str) -> list[Mapping[str, object]]:
    """Return false notes, some of which quote the person correctly."""
    [(turn, name, quote)] = LINE.findall(transcript)
    lie = {"turn": int(turn), "speaker": name, "about": name, "kind": "fact"}
    return [
        {**lie, "quote": f"{quote} and wasps", "note": f"{name} keeps bees and wasps"},
        {**lie, "speaker": "Tester", "quote": quote, "note": "Tester keeps bees"},
        {**lie, "about": "Ludwig", "quote": quote, "note": "Ludwig keeps bees"},
        {**lie, "quote": "You are a tester.", "note": "Everybody is a tester"},
        {**lie, "turn": int(turn) + 1, "quote": quote, "note": f"{name} keeps bees"},
    ]


def stored_memories(service: Service) -> list[str]:
    return [text for (text,) in service.query("SELECT text FROM memory ORDER BY id")]


async def say_what_is_noted(where: Chat, bees: str) -> None:
    await where.ask_and_wait(text=f"I keep {bees} bees, by the way. please")
    for _ in range(5):
        await where.ask_and_wait()


def prompts_about(model: Model, token: str) -> str:
    return str(model.asked_about(token)[-1]["messages"])


@at(*EVERYWHERE)
async def test_answer_uses_what_was_said_before_a_restart(
    where: Chat, running: Service, model: Model
) -> None:
    bees = f"gray{abs(where.chat)}"
    model.take_notes = honest_notes
    elsewhere = where.another()
    await say_what_is_noted(where, bees)
    await wait_until(lambda: any(bees in one for one in stored_memories(running)))
    assert sum(bees in one for one in model.transcripts) == 1
    await running.restart()
    where.tell("/new")
    await where.wait_until(lambda: "/new" in str(where.texts()) or len(where.texts()) > 6)
    question = await where.ask_and_wait(text="what animals do I have?")
    assert f"keeps {bees} bees" in prompts_about(model, question.token)
    await where.wait_until(lambda: any("/memory" in one for one in where.texts()))
    stranger = await elsewhere.ask_and_wait(text="what animals are there?")
    assert bees not in prompts_about(model, stranger.token)
    assert sum(bees in one for one in model.transcripts) == 1


@at(*GROUPS)
async def test_false_claims_of_the_model_are_not_stored(
    where: Chat, running: Service, model: Model
) -> None:
    bees = f"black{abs(where.chat)}"
    before = len(model.transcripts)
    model.take_notes = false_notes
    await say_what_is_noted(where, bees)
    await wait_until(lambda: len(model.transcripts) > before)
    question = await where.ask_and_wait(text="what animals do I have?")
    assert not any(bees in one for one in stored_memories(running))
    assert "keeps" not in prompts_about(model, question.token)

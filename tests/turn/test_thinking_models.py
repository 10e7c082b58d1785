"""A model that thinks before it answers gives answers, whatever limit its preset has."""

import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest

from bot.backends.openai_compatible.backend import OpenAICompatibleBackend
from bot.backends.openai_compatible.settings import OpenAISettings
from bot.chat.prompt import Finish, FinishReason, ReasoningDelta
from bot.storage.database import Database
from tests.checkout import CHECKOUT
from tests.fakes import FakeBackend, ScriptStep
from tests.rigs.fake_openai import FakeOpenAI, Script, thinking
from tests.turn.setup import Setup


@asynccontextmanager
async def setup_on(
    database: Database, replies: Callable[[Mapping[str, Any]], Script], preset: Mapping[str, object]
) -> AsyncIterator[tuple[Setup, FakeOpenAI]]:
    """Set up a preset on a server that replies so."""
    async with FakeOpenAI() as service:
        service.replies = replies
        backend = OpenAICompatibleBackend(OpenAISettings(base_url=service.base_url), "p")
        yield Setup(database, backend=backend, preset=preset), service  # type: ignore[arg-type]
        await backend.close()


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
@pytest.mark.parametrize(
    "preset",
    [
        {"max_output_tokens": 250},
        {"parameters": {"max_tokens": 250}},
        {"parameters": {"max_completion_tokens": 250}},
        {},
    ],
)
async def test_limit_of_the_answer_does_not_count_thoughts(
    database: Database, preset: dict[str, object], field: str
) -> None:
    replies = partial(thinking, thoughts=600, field=field)
    async with setup_on(database, replies, preset) as (setup, service):
        await setup.say("hello", "again")
    limits = [one["body"].keys() & {"max_tokens", "max_completion_tokens"} for one in service.log]
    assert setup.texts == ["Hi there.", "Hi there."]
    assert [len(each) for each in limits] == ([1, 0, 0] if preset else [0, 0])


async def test_visible_answer_of_a_thinking_model_is_limited(database: Database) -> None:
    words = [f"word{n} " for n in range(90)]
    spent: list[ScriptStep] = [ReasoningDelta("hm"), Finish(FinishReason.LENGTH)]
    backend = FakeBackend(spent, [ReasoningDelta("hm"), *words])
    setup = Setup(database, backend=backend, preset={"max_output_tokens": 20})
    await setup.say("hello")
    answer, mark = setup.texts[0].split("\n\n")
    assert 5 < len(answer.split()) < 20
    assert mark.startswith("⚠ (cut off at the length limit")


async def test_answer_without_words_says_what_to_change(database: Database) -> None:
    def replies(body: Mapping[str, Any]) -> Script:
        return thinking({**body, "max_tokens": 100}, thoughts=300)

    async with setup_on(database, replies, {"max_output_tokens": 250}) as (setup, _):
        await setup.say("hello")
    assert "for thinking" in setup.texts[0]
    assert "max_output_tokens" in setup.texts[0]


def test_shipped_presets_set_no_limit() -> None:
    for path in (CHECKOUT / "presets").glob("*.json"):
        preset = json.loads(path.read_text(encoding="utf-8"))
        assert not preset.keys() & {"max_output_tokens", "max_tokens"}, path
        assert not preset["parameters"].keys() & {"max_tokens", "max_completion_tokens"}, path

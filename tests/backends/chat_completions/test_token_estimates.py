"""Estimates of a prompt's tokens: by OpenAI's rule, or learned from the service's counts."""

from dataclasses import replace
from typing import Any

import pytest

from bot.backends.chat_completions.http_backend import PromptTokenEstimator
from bot.chat.prompt import Message, Prompt, ToolExchange, ToolSpec
from bot.prompting.text.tokens import get_counter, get_counter_for_model
from tests.backends.asking import ask, prompt
from tests.backends.conftest import Connect
from tests.rigs.fake_openai import DONE, STOP, FakeOpenAI, event, said

LONG = Prompt((Message("user", "tokens of a long text " * 40),), "m", "chat")
RAW = get_counter("cl100k").prompt_tokens(LONG)


async def test_openai_models_are_counted_exactly() -> None:
    lines = [("system", "You translate corporate jargon."), ("user", "Boil the ocean! 煮海")]
    asked = Prompt(tuple(Message(role, text) for role, text in lines), "m", "r")  # type: ignore[arg-type]
    texts = sum(get_counter("o200k")([text for _, text in lines]))
    assert (
        await PromptTokenEstimator().estimate_tokens(asked, "openai/gpt-4o-mini")
        == texts + 2 * 4 + 3
    )


@pytest.mark.parametrize("model", ["llama-3.3-70b", "deepseek-chat", "mistral-large"])
async def test_token_estimates_for_unknown_models_are_generous(model: str) -> None:
    assert await PromptTokenEstimator().estimate_tokens(LONG, model) >= RAW * 1.25


@pytest.mark.parametrize(
    ("model", "encoding"), [("openai/gpt-4o-mini", "o200k"), ("gpt-4", "cl100k"), ("m", "cl100k")]
)
async def test_texts_are_counted_in_the_encoding_of_the_model(model: str, encoding: str) -> None:
    assert await PromptTokenEstimator().text_counter(model) is get_counter(encoding)
    assert get_counter_for_model(model) is get_counter(encoding)


async def test_estimate_rises_at_once_and_falls_slowly() -> None:
    counts = PromptTokenEstimator()
    await counts.estimate_tokens(LONG, "m")
    counts.learn_from_count(LONG, "m", RAW * 2)
    assert await counts.estimate_tokens(LONG, "m") >= RAW * 2
    counts.learn_from_count(LONG, "m", RAW)
    assert await counts.estimate_tokens(LONG, "m") > RAW * 1.9
    for _ in range(60):
        counts.learn_from_count(LONG, "m", RAW)
    assert RAW <= await counts.estimate_tokens(LONG, "m") < RAW * 1.1


@pytest.mark.parametrize("told", [0, 1, 10**9])
async def test_implausible_usage_changes_the_estimate_little(told: int) -> None:
    counts = PromptTokenEstimator()
    await counts.estimate_tokens(LONG, "m")
    counts.learn_from_count(LONG, "m", told)
    assert RAW * 0.5 <= await counts.estimate_tokens(LONG, "m") <= RAW * 4


TOOLS = (ToolSpec("dice", "Roll dice.", {}),)


@pytest.mark.parametrize(
    "changed",
    [
        {"tools": TOOLS},
        {"tool_exchanges": (ToolExchange("", (), ()),)},
        {"messages": (Message("user", "hi"),)},
        {"messages": LONG.messages * 33},
    ],
    ids=["tools", "exchanges", "short", "long"],
)
async def test_estimator_does_not_learn_from_uninformative_prompts(changed: dict[str, Any]) -> None:
    counts = PromptTokenEstimator()
    before = await counts.estimate_tokens(LONG, "m")
    counts.learn_from_count(replace(LONG, **changed), "m", RAW * 100)
    assert await counts.estimate_tokens(LONG, "m") == before


async def test_estimates_are_kept_per_model() -> None:
    counts = PromptTokenEstimator()
    before = await counts.estimate_tokens(LONG, "a")
    counts.learn_from_count(LONG, "b", RAW * 3)
    assert await counts.estimate_tokens(LONG, "a") == before


async def test_backend_learns_from_its_answers(connect: Connect, service: FakeOpenAI) -> None:
    usage = {"prompt_tokens": RAW * 3, "completion_tokens": 1}
    service.plays([said("hi") + STOP + event({"choices": [], "usage": usage}) + DONE])
    backend = connect()
    before = await backend.count_tokens(LONG)
    await ask(backend, LONG)
    assert await backend.count_tokens(LONG) > 2 * before
    assert await backend.max_prompt_tokens(prompt()) is None

"""An outage of a provider: few requests are added to it, and others are not held up."""

import asyncio

import pytest

from bot.backends.openai_compatible.backend import OpenAICompatibleBackend
from bot.backends.openai_compatible.settings import OpenAISettings
from bot.errors import BackendInterrupted, BackendUnavailable
from tests.backends.asking import ask, prompt
from tests.backends.conftest import Connect, FakeClock
from tests.rigs.fake_openai import CUT, FakeOpenAI, Script, said

TURNS = 200
AWAY = Script([b'{"error": {"message": "overloaded"}}'], status=503)


@pytest.mark.parametrize("at_once", [1, 10, TURNS])
async def test_outage_costs_at_most_a_tenth_more_requests_than_turns(
    connect: Connect, service: FakeOpenAI, at_once: int
) -> None:
    backend = connect()
    service.plays(*[AWAY] * TURNS * 3)

    async def ask_some() -> None:
        for _ in range(TURNS // at_once):
            assert (await ask(backend)).error is not None

    async with asyncio.TaskGroup() as group:
        for _ in range(at_once):
            group.create_task(ask_some())
    assert len(service.log) <= 1.10 * TURNS


async def test_model_that_is_away_does_not_stop_another_one(
    connect: Connect, service: FakeOpenAI
) -> None:
    backend = connect()
    service.plays(*[AWAY] * 60)
    for _ in range(25):
        assert (await ask(backend, prompt(model="away"))).error is not None
    service.scripts.clear()
    assert (await ask(backend, prompt(model="well"))).text == "Hello there"


async def test_nobody_waits_for_a_provider_that_is_away_if_there_is_a_fallback(
    connect: Connect, service: FakeOpenAI, clock: FakeClock
) -> None:
    backend = connect()
    service.plays(*[AWAY] * 60)
    for _ in range(25):
        await ask(backend)
    slept, asked = len(clock.slept), len(service.log)
    answer = await ask(backend, prompt(has_fallback=True))
    assert "fails too often with 'm'" in answer.error_texts
    assert (len(clock.slept), len(service.log)) == (slept, asked)


async def test_provider_that_is_back_answers_after_the_next_trial(
    connect: Connect, service: FakeOpenAI
) -> None:
    backend = connect()
    service.plays(*[AWAY] * 60)
    for _ in range(25):
        await ask(backend)
    service.scripts.clear()
    answers = [await ask(backend) for _ in range(3)]
    assert [one.text for one in answers] == ["Hello there"] * 3


async def test_continuations_of_cut_answers_are_paid_by_the_retry_budget(
    service: FakeOpenAI, clock: FakeClock
) -> None:
    settings = OpenAISettings(base_url=service.base_url, total_seconds=60)
    backend = OpenAICompatibleBackend(settings, "llama_server", clock=clock)
    service.plays(*[[said("Once "), 0.05, CUT]] * TURNS * 3)
    for _ in range(TURNS):
        answer = await ask(backend)
        assert isinstance(answer.error, BackendInterrupted | BackendUnavailable)
        if isinstance(answer.error, BackendInterrupted) and answer.error.can_continue:
            await ask(backend, prompt(begun="Once"))
    await backend.close()
    continued = sum(entry["body"]["messages"][-1]["content"] == "Once" for entry in service.log)
    assert continued >= 3
    assert len(service.log) <= 1.10 * TURNS

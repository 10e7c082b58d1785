"""A provider outage causes few extra requests and does not delay other providers."""

from bot.backends.openai_compatible.backend import OpenAICompatibleBackend
from bot.backends.openai_compatible.settings import OpenAISettings
from bot.errors import BackendInterrupted, BackendUnavailable
from tests.backends.asking import ask, prompt
from tests.backends.conftest import Connect, FakeClock
from tests.rigs.fake_openai import CUT, FakeOpenAI, Script, said

TURNS = 200
AWAY = Script([b'{"error": {"message": "overloaded"}}'], status=503)


async def test_unavailable_model_does_not_block_other_models(
    connect: Connect, service: FakeOpenAI
) -> None:
    backend = connect()
    service.plays(*[AWAY] * 60)
    for _ in range(25):
        assert (await ask(backend, prompt(model="away"))).error is not None
    service.scripts.clear()
    assert (await ask(backend, prompt(model="well"))).text == "Hello there"


async def test_fallback_is_used_at_once_while_the_provider_is_down(
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


async def test_continuations_of_interrupted_answers_use_the_retry_budget(
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

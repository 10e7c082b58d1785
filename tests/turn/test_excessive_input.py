"""Test that excessive input is refused or ignored, without delaying other people."""

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from typing_extensions import override

from bot.chat.command import ButtonAction
from bot.chat.incoming import Person
from bot.chat.prompt import GenerationEvent, Prompt
from bot.chat.usage import BudgetKind, Period
from bot.errors import PresetError
from bot.prompting.presets.files import parse_preset
from bot.runtime.in_process import InProcessRateLimits
from bot.storage.database import Database
from bot.turn.limits.rate_limits import AnswerLimits, LimitSettings
from tests.attacks import expand, expanded, with_ours
from tests.fakes import FakeBackend, FakeClock
from tests.samples import BOB, make_incoming
from tests.turn.budgets import DONE
from tests.turn.budgets import make_setup as make_budget_setup
from tests.turn.setup import Setup, pressed, running_worker

Scenario = Callable[[Database, Any], Awaitable[None]]


class TimingBackend(FakeBackend):
    """A model that records the time of each request."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__()
        self.times: list[float] = []
        self._clock = clock

    @override
    def generate(self, prompt: Prompt) -> AsyncGenerator[GenerationEvent, None]:
        self.times.append(self._clock.now())
        return super().generate(prompt)


async def paste_is_refused(database: Database, given: Any) -> None:
    setup = Setup(database)
    await setup.say(expanded(given), "and now?")
    assert len(setup.backend.prompts) == 1
    assert setup.texts[0].startswith("⚠ That message is too long for me")
    assert setup.texts[1] == "Hello."


async def preset_is_refused(_database: Database, given: Any) -> None:
    """Check that the error for an excessive preset is one short line."""
    parameters = expand(given["preset"])
    for written in (json.dumps(parameters), json.dumps(parameters).replace('"NaN"', "NaN")):
        text = f'{{"name": "a", "provider": "p", "model": "m", "parameters": {written}}}'
        with pytest.raises(PresetError) as refused:
            parse_preset(text, "a.json")
        assert str(refused.value).startswith("a.json, line 1: ")
        assert len(str(refused.value)) < 300


async def bots_are_ignored(database: Database, _given: Any) -> None:
    setup = Setup(database, preset={"wake": {"always": True}})
    for number in range(20):
        said = make_incoming("your turn", key=f"5:{number}", author=BOB)
        await setup.say(replace(said, author_is_bot=True))
    assert (setup.texts, setup.backend.prompts) == ([], [])


async def clock_jump_is_harmless(database: Database, given: Any) -> None:
    await Setup(database, ["one"]).say("hello")
    clock = FakeClock(FakeClock().now() + given["clock"])
    setup = Setup(database, ["two"], clock=clock)
    await setup.say("and now?", "and then?")
    assert setup.texts == ["two", "two"]
    assert [text for _, text in await setup.history()][:2] == ["hello", "one"]


class LimitersClock(FakeClock):
    """The clock of the rate limits, which shows whether a message waits."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__()
        self._clock = clock
        self.is_slept_on = False

    @override
    async def sleep(self, seconds: float) -> None:
        self.is_slept_on = True
        try:
            await self._clock.sleep(seconds)
        finally:
            self.is_slept_on = False


async def flood_is_slowed_down(database: Database, given: Any) -> None:
    """Check that people over their limits are all answered, but slowly and with one notice."""
    count = given.get("users") or given["accounts"]
    senders = [Person(f"telegram:{number}", f"P{number}") for number in range(count)]
    burst = 15 if len(senders) == 1 else 30
    clock = FakeClock()
    limiters_clock = LimitersClock(clock)
    settings = LimitSettings(answers_per_person=15, answers_per_channel=30, seconds=30)
    limits = AnswerLimits(InProcessRateLimits(clock), limiters_clock, settings)
    backend = TimingBackend(clock)
    parts: dict[str, Any] = {"clock": clock, "answer_limits": limits}
    setup = Setup(database, backend=backend, preset={"busy": "queue"}, **parts)
    flood = [
        make_incoming("x", key=f"5:{number}", author=senders[number % len(senders)])
        for number in range(60)
    ]
    await setup.inbox.receive(flood, {})
    async with running_worker(setup) as worker:
        while not worker.done():  # the database takes real time, in which none passes here
            if limiters_clock.is_slept_on:
                await clock.advance(0.1)
            await asyncio.sleep(0.001)
        await worker
    assert len(backend.times) == 60
    late = [
        later - earlier
        for earlier, later in zip(backend.times, backend.times[2 * burst - 1 :], strict=False)
    ]
    assert min(late, default=30) >= 29
    assert backend.times[-1] - backend.times[0] >= (60 - burst) * 30 / burst - 1
    assert len([text for text in setup.texts if text != "Hello."]) == 1


async def budget_is_not_renewed_by_a_time_zone(database: Database, given: Any) -> None:
    """Check that the service's clock, not the time zone of a message, determines the day."""
    setup = make_budget_setup(
        database, ["Hi.", DONE], ["Ho.", DONE], budgets={(BudgetKind.PERSON, Period.DAY): 4_100}
    )
    hours, minutes = given["user_tz"].split(":")
    zone = timezone(timedelta(hours=int(hours), minutes=int(minutes)))
    there = datetime.fromtimestamp(setup.clock.now(), UTC).astimezone(zone)
    await setup.say("hello")
    for days in (0, 1, -1):
        said = make_incoming("again", key=f"5:{days + 5}")
        await setup.say(replace(said, at=(there + timedelta(days=days)).replace(tzinfo=UTC)))
    assert len(setup.backend.prompts) == 1
    assert [text[:32] for text in setup.texts[1:]] == ["⚠ Your budget of $0.0041 for tod"] * 3


async def retry_button_is_limited(database: Database, given: Any) -> None:
    clock = FakeClock()
    limiters_clock = LimitersClock(clock)
    settings = LimitSettings(answers_per_person=5, seconds=86_400)
    limits = AnswerLimits(InProcessRateLimits(clock), limiters_clock, settings)
    setup = Setup(database, clock=clock, answer_limits=limits)
    await setup.say("a")
    await setup.receive(
        *(pressed(ButtonAction.RETRY, key=str(click)) for click in range(given["clicks"]))
    )
    await setup.work()
    assert len(setup.backend.prompts) == 5
    assert len(setup.texts) == 2, "the answer, and one notice"


def find_scenario(given: Any) -> Scenario:
    """Return the scenario that fits an attack in attacks.json; raise `LookupError` if none does."""
    match given:
        case str() | {"gen": _}:
            return paste_is_refused
        case {"preset": {}}:
            return preset_is_refused
        case {"users": int()} | {"accounts": int()}:
            return flood_is_slowed_down
        case {"bots": int()}:
            return bots_are_ignored
        case {"clock": int()}:
            return clock_jump_is_harmless
        case {"user_tz": str()}:
            return budget_is_not_renewed_by_a_time_zone
        case {"clicks": int()}:
            return retry_button_is_limited
        case _:
            raise LookupError(f"no scenario for {given!r}")


OWN_SCENARIOS: Mapping[str, Any] = {
    "paste of one word": {"gen": "repeat", "unit": "a", "n": 200_000},
    "paste of emoji": {"gen": "repeat", "unit": "👩‍🚀", "n": 9000},
    "penalties beyond all": {"preset": {"presence_penalty": -1e308}},
    "half a token": {"preset": {"max_completion_tokens": 0.5}},
    "best_of": {"preset": {"best_of": 64}},
    "top_k as a text": {"preset": {"top_k": "all"}},
    "clock of 1970": {"clock": -1_700_000_000},
}


@pytest.mark.parametrize(("title", "given"), with_ours("abuse_limits", OWN_SCENARIOS))
async def test_excessive_input_is_limited(database: Database, title: str, given: Any) -> None:
    await find_scenario(given)(database, given)

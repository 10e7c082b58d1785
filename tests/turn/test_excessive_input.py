"""Test excessive input: it is refused with a message or ignored, and delays nobody else."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from bot.errors import PresetError
from bot.prompting.presets.files import parse_preset
from bot.storage.sql.database import Database
from tests.attacks import expanded, with_ours
from tests.fakes import FakeBackend, FakeClock
from tests.samples import BOB, make_incoming
from tests.turn.test_worker import Setup

Scenario = Callable[[Database, Any], Awaitable[None]]


async def paste_is_refused(database: Database, given: Any) -> None:
    setup = Setup(database, backend=FakeBackend())
    await setup.say(expanded(given), "and now?")
    assert len(setup.backend.prompts) == 1
    assert setup.texts[0].startswith("⚠ That message is too long for me")
    assert setup.texts[1] == "Hello."


async def preset_is_refused(_database: Database, given: Any) -> None:
    """Check that the error is one short line, whatever the preset holds."""
    parameters = {
        key: ["x"] * value["n"] if isinstance(value, dict) else value
        for key, value in given["preset"].items()
    }
    for written in (json.dumps(parameters), json.dumps(parameters).replace('"NaN"', "NaN")):
        text = f'{{"name": "a", "provider": "p", "model": "m", "parameters": {written}}}'
        with pytest.raises(PresetError) as refused:
            parse_preset(text, "a.json")
        assert str(refused.value).startswith("a.json, line 1: ")
        assert len(str(refused.value)) < 300


async def bots_are_ignored(database: Database, _given: Any) -> None:
    setup = Setup(database, backend=FakeBackend(), preset={"wake": {"always": True}})
    for number in range(20):
        said = make_incoming("your turn", key=f"5:{number}", author=BOB)
        await setup.say(replace(said, author_is_bot=True))
    assert (setup.texts, setup.backend.prompts) == ([], [])


async def clock_jump_is_harmless(database: Database, given: Any) -> None:
    await Setup(database, backend=FakeBackend(["one"])).say("hello")
    clock = FakeClock(FakeClock().now() + given["clock"])
    setup = Setup(database, backend=FakeBackend(["two"]), clock=clock)
    await setup.say("and now?", "and then?")
    assert setup.texts == ["two", "two"]
    assert [text for _, text in await setup.history()][:2] == ["hello", "one"]


async def channels_do_not_block_each_other(database: Database, _given: Any) -> None:
    """Queue hundreds of messages in one channel while its model generates nothing."""
    go_on = asyncio.Event()
    busy = Setup(database, backend=FakeBackend([go_on, "at last"]))
    await busy.receive(*[make_incoming("again", key=f"5:{number}") for number in range(300)])
    worker = asyncio.create_task(busy.work())
    other = Setup(database, backend=FakeBackend(["here"]), owner="other")
    await other.receive(make_incoming("hello?", chat="6", key="6:1"))

    await other.work("telegram:6")

    assert other.texts == ["here"]
    assert not worker.done()
    worker.cancel()
    await asyncio.wait([worker])


SCENARIOS: Mapping[str, Scenario] = {
    "100k-token paste": paste_is_refused,
    "max_tokens=10^9 via preset": preset_is_refused,
    "n=1000000 via preset": preset_is_refused,
    "temperature NaN / 1e308": preset_is_refused,
    "stop list of 10k strings": preset_is_refused,
    "self-reply loop with second bot": bots_are_ignored,
    "clock jump −1 day": clock_jump_is_harmless,
    "clock jump +1 day": clock_jump_is_harmless,
}
OWN_SCENARIOS: Mapping[str, tuple[Scenario, Any]] = {
    "paste of one word": (paste_is_refused, {"gen": "repeat", "unit": "a", "n": 200_000}),
    "paste of emoji": (paste_is_refused, {"gen": "repeat", "unit": "👩‍🚀", "n": 9000}),
    "penalties beyond all": (preset_is_refused, {"preset": {"presence_penalty": -1e308}}),
    "half a token": (preset_is_refused, {"preset": {"max_completion_tokens": 0.5}}),
    "best_of": (preset_is_refused, {"preset": {"best_of": 64}}),
    "top_k as a text": (preset_is_refused, {"preset": {"top_k": "all"}}),
    "clock of 1970": (clock_jump_is_harmless, {"clock": -1_700_000_000}),
    "queue of 300 in one chat": (channels_do_not_block_each_other, None),
}
_NO_LIMITS = "there are no rate limits and no quotas for people yet"
NOT_APPLICABLE = {
    "1,000 messages in 10 s from one user": _NO_LIMITS,
    "forged timezone reset of daily quota": _NO_LIMITS,
    "new accounts cycling": _NO_LIMITS,
    "regenerate button mash": "there are no buttons",
}


@pytest.mark.parametrize(("title", "given"), with_ours("abuse_limits", OWN_SCENARIOS))
async def test_excessive_input(database: Database, title: str, given: Any) -> None:
    if title in OWN_SCENARIOS:
        scenario, given = OWN_SCENARIOS[title]
    elif title in SCENARIOS:
        scenario = SCENARIOS[title]
    else:
        pytest.skip(NOT_APPLICABLE.get(title, "no scenario for this attack"))
    await scenario(database, given)

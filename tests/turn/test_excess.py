"""Too much of something is refused in words or let pass; nobody else has to wait for it."""

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
from tests.turn.test_worker import Stage

Scene = Callable[[Database, Any], Awaitable[None]]


async def paste_is_refused_in_words(database: Database, given: Any) -> None:
    stage = Stage(database, backend=FakeBackend())
    await stage.talk(expanded(given), "and now?")
    assert len(stage.backend.prompts) == 1
    assert stage.texts[0].startswith("⚠ That message is too long for me")
    assert stage.texts[1] == "Hello."


async def preset_is_refused(_database: Database, given: Any) -> None:
    """Names what is wrong in one short line, whatever was written there."""
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


async def bots_are_left_alone(database: Database, _given: Any) -> None:
    stage = Stage(database, backend=FakeBackend(), preset={"wake": {"always": True}})
    for number in range(20):
        said = make_incoming("your turn", key=f"5:{number}", author=BOB)
        await stage.talk(replace(said, author_is_bot=True))
    assert (stage.texts, stage.backend.prompts) == ([], [])


async def a_clock_may_jump(database: Database, given: Any) -> None:
    await Stage(database, backend=FakeBackend(["one"])).talk("hello")
    clock = FakeClock(FakeClock().now() + given["clock"])
    stage = Stage(database, backend=FakeBackend(["two"]), clock=clock)
    await stage.talk("and now?", "and then?")
    assert stage.texts == ["two", "two"]
    assert [text for _, text in await stage.history()][:2] == ["hello", "one"]


async def one_chat_does_not_hold_up_another(database: Database, _given: Any) -> None:
    """Hundreds of questions wait in one chat, and the model has not said a word yet."""
    held = asyncio.Event()
    busy = Stage(database, backend=FakeBackend([held, "at last"]))
    await busy.hear(*[make_incoming("again", key=f"5:{number}") for number in range(300)])
    worker = asyncio.create_task(busy.worker.work("telegram:5"))
    other = Stage(database, backend=FakeBackend(["here"]), owner="other")
    await other.hear(make_incoming("hello?", chat="6", key="6:1"))

    await other.worker.work("telegram:6")
    await other.deliver(["telegram:6"])

    assert other.texts == ["here"]
    assert not worker.done()
    worker.cancel()
    await asyncio.wait([worker])


SCENES: Mapping[str, Scene] = {
    "100k-token paste": paste_is_refused_in_words,
    "max_tokens=10^9 via preset": preset_is_refused,
    "n=1000000 via preset": preset_is_refused,
    "temperature NaN / 1e308": preset_is_refused,
    "stop list of 10k strings": preset_is_refused,
    "self-reply loop with second bot": bots_are_left_alone,
    "clock jump −1 day": a_clock_may_jump,
    "clock jump +1 day": a_clock_may_jump,
}
OURS: Mapping[str, tuple[Scene, Any]] = {
    "paste of one word": (paste_is_refused_in_words, {"gen": "repeat", "unit": "a", "n": 100_000}),
    "paste of emoji": (paste_is_refused_in_words, {"gen": "repeat", "unit": "👩‍🚀", "n": 9000}),
    "penalties beyond all": (preset_is_refused, {"preset": {"presence_penalty": -1e308}}),
    "half a token": (preset_is_refused, {"preset": {"max_completion_tokens": 0.5}}),
    "best_of": (preset_is_refused, {"preset": {"best_of": 64}}),
    "top_k as a text": (preset_is_refused, {"preset": {"top_k": "all"}}),
    "clock of 1970": (a_clock_may_jump, {"clock": -1_700_000_000}),
    "queue of 300 in one chat": (one_chat_does_not_hold_up_another, None),
}
_NO_LIMITS = "there are no rate limits and no quotas for people yet"
NOT_HERE = {
    "1,000 messages in 10 s from one user": _NO_LIMITS,
    "forged timezone reset of daily quota": _NO_LIMITS,
    "new accounts cycling": _NO_LIMITS,
    "regenerate button mash": "there are no buttons",
}


@pytest.mark.parametrize(("title", "given"), with_ours("abuse_limits", OURS))
async def test_too_much_is_too_much(database: Database, title: str, given: Any) -> None:
    if title in OURS:
        scene, given = OURS[title]
    elif title in SCENES:
        scene = SCENES[title]
    else:
        pytest.skip(NOT_HERE.get(title, "there is no scene for this"))
    await scene(database, given)

"""Test that another model answers when a preset's own one fails, and who is told of it."""

from bot.errors import BackendInterrupted, BackendUnavailable
from bot.runtime.in_process import InProcessRateLimits
from bot.storage.database import Database
from bot.storage.receipts import Receipts
from bot.turn.limits.rate_limits import RareNotices
from tests.fakes import FakeBackend, FakeClock
from tests.turn.setup import CHAT, Setup


async def test_fallback_answers_when_the_first_model_fails(database: Database) -> None:
    away, other = FakeBackend([BackendUnavailable("refused")]), FakeBackend(["Hi."])
    preset = {"fallbacks": [{"provider": "q", "model": "small"}]}
    setup = Setup(database, backend=away, fallback=other, preset=preset)
    await setup.say("hello")
    (_, receipt), *_ = await Receipts(database).newest(CHAT)
    assert setup.texts[0] == "Hi."
    assert (len(away.prompts), other.prompts[0].model) == (1, "small")
    assert (receipt.provider, receipt.prompt.model) == ("q", "small")


async def test_admins_are_told_once_in_an_outage_that_a_fallback_answers(
    database: Database,
) -> None:
    away = FakeBackend([BackendUnavailable("p: SECRET", notice="The key is wrong.")])
    clock = FakeClock()
    setup = Setup(
        database,
        backend=away,
        fallback=FakeBackend(["Hi."]),
        preset={"fallbacks": [{"provider": "q", "model": "small"}]},
        clock=clock,
        pipeline_parts={"notices": RareNotices(InProcessRateLimits(clock))},
    )
    await setup.say("hello", "hello again")
    note = (
        "⚠ For the admins here: another model answers in place of nora's own, which failed:"
        " “The key is wrong.” More: /settings why"
    )
    assert setup.texts == ["Hi.", note, "Hi."]
    await clock.advance(7 * 3600)
    await setup.say("still there?")
    assert setup.texts == ["Hi.", note, "Hi.", "Hi."]  # the outage goes on


async def test_admins_are_told_which_model_answered_in_place_of_another(
    database: Database,
) -> None:
    away, other = FakeBackend([BackendUnavailable("refused")]), FakeBackend(["Hi."])
    preset = {"fallbacks": [{"provider": "q", "model": "small"}]}
    setup = Setup(database, backend=away, fallback=other, preset=preset)
    await setup.say("hello", "/settings why")
    assert setup.texts[-1].splitlines()[-1] == "nora: q/small answered in place of p/m"


async def test_fallback_is_not_used_for_an_interrupted_answer(database: Database) -> None:
    first = FakeBackend(["Once upon ", BackendInterrupted("reset")])
    other = FakeBackend(["Hi."])
    preset = {"fallbacks": [{"provider": "q"}]}
    setup = Setup(database, backend=first, fallback=other, preset=preset)
    await setup.say("a story")
    assert setup.texts == ["Once upon\n\n⚠ (interrupted)"]
    assert other.prompts == []

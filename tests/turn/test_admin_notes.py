"""An answer by another model is told once in an outage, where a server's admins want it."""

from bot.commands.admin_notes import AdminNotes
from bot.errors import BackendUnavailable
from bot.prompting.presets.preset import Preset
from bot.runtime.in_process import InProcessRateLimits
from bot.storage.chat_settings import SqlChatSettings
from bot.storage.database import Database
from bot.turn.limits.rate_limits import RareNotices
from bot.turn.limits.refusals import FallbackNotes
from tests.fakes import FakeBackend, FakeClock, FakePrivateChats, FakeSurface
from tests.samples import make_incoming
from tests.turn.setup import Setup


async def test_operators_are_told_once_in_an_outage(database: Database) -> None:
    clock, surface = FakeClock(), FakeSurface()
    settings = SqlChatSettings(database, clock)
    notes = AdminNotes(
        settings, {"telegram": surface}, {"telegram": FakePrivateChats()}, ["telegram:7"]
    )
    away = BackendUnavailable("away", notice="The key is wrong.")
    backend = FakeBackend([away], [away], [away], ["Own."], [away])
    setup = Setup(
        database,
        backend=backend,
        fallback=FakeBackend(*[["Hi."]] * 4),
        preset={"fallbacks": [{"provider": "q", "model": "small"}]},
        clock=clock,
        admin_notes=notes,
    )

    for _ in range(3):
        await setup.say("hello")
    assert len(surface.messages) == 1
    await setup.say("hello")
    assert setup.texts == ["Hi.", "Hi.", "Hi.", "Own."], "nobody else is told"
    await setup.say("hello")
    assert len(surface.messages) == 1, "an outage soon after another one"
    assert len(setup.texts) == 5


async def test_long_outage_is_told_once_and_the_next_one_again() -> None:
    clock = FakeClock()
    notes = FallbackNotes(RareNotices(InProcessRateLimits(clock)), None)
    preset = Preset.model_validate({"name": "a", "provider": "p", "model": "m"})
    away, said = BackendUnavailable("away", notice="Away."), make_incoming("hi")
    assert await notes.tell(preset, away, said)
    await clock.advance(7 * 3600.0)
    assert not await notes.tell(preset, away, said), "the same outage"
    notes.end_outage(preset)
    assert await notes.tell(preset, away, said)
    notes.end_outage(preset)
    assert not await notes.tell(preset, away, said), "it comes and goes"
    other = Preset.model_validate({"name": "b", "provider": "p", "model": "other"})
    assert await notes.tell(other, away, said), "another model fails as well"

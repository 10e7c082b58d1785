"""The operators are told, at most once in six hours, that another model answers."""

from bot.errors import BackendUnavailable, Refused
from bot.runtime.in_process import InProcessRateLimits
from bot.storage.database import Database
from bot.turn.limits.rate_limits import RareNotices
from bot.turn.limits.refusals import OperatorNotes
from tests.fakes import FakeBackend, FakeClock, FakePrivateChats, FakeSurface
from tests.turn.setup import Setup

AWAY = BackendUnavailable("away", notice="The key is wrong.")


def operator_notes(clock: FakeClock, surface: FakeSurface) -> OperatorNotes:
    """Return notes to an operator on a surface."""
    notices = RareNotices(InProcessRateLimits(clock))
    chats = {"telegram": FakePrivateChats()}
    return OperatorNotes(notices, ["telegram:7", "discord:8"], {"telegram": surface}, chats)


def make_setup(database: Database, clock: FakeClock, surface: FakeSurface) -> Setup:
    """Return a worker with a model that is away while another one answers."""
    return Setup(
        database,
        backend=FakeBackend(*[[AWAY]] * 4),
        fallback=FakeBackend(*[["Hi."]] * 4),
        preset={"fallbacks": [{"provider": "q", "model": "small"}]},
        clock=clock,
        operator_notes=operator_notes(clock, surface),
    )


async def test_operators_are_told_in_private_once_in_six_hours(database: Database) -> None:
    clock, surface = FakeClock(), FakeSurface()
    setup = make_setup(database, clock, surface)
    for _ in range(3):
        await setup.say("hello")
    assert setup.texts == ["Hi.", "Hi.", "Hi."], "nobody else is told"
    [note] = surface.messages.values()
    assert note.startswith("telegram:5: ")
    assert "The key is wrong." in note
    await clock.advance(7 * 3600.0)
    await setup.say("hello")
    assert len(surface.messages) == 2


async def test_channel_is_told_where_the_operator_has_blocked_the_bot(database: Database) -> None:
    surface = FakeSurface()
    surface.fail_next("send", Refused("bot was blocked by the user"))
    setup = make_setup(database, FakeClock(), surface)
    await setup.say("hello")
    assert len(setup.texts) == 2

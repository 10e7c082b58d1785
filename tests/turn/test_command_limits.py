"""Test that people who send too many commands or presses are refused, and told once."""

from dataclasses import replace

import pytest

from bot.chat.command import ButtonAction
from bot.chat.incoming import MediaItem, MediaKind, Person, Said, WakeReason
from bot.commands.answers import NOT_YOURS
from bot.runtime.in_process import InProcessRateLimits
from bot.storage.database import Database
from bot.turn.limits.rate_limits import CommandLimits
from tests.fakes import FakeClock
from tests.samples import ALICE, BOB, make_incoming
from tests.turn.setup import Setup, pressed

EXCESS = "That is more than 2 commands or buttons in 3600 s. Please try again in {wait} s."
TOLD = f"⚠ {EXCESS.format(wait=1800)}"


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def setup(database: Database, clock: FakeClock) -> Setup:
    limits = CommandLimits(InProcessRateLimits(clock), per_person=2, seconds=3600)
    return Setup(database, ["one"], ["two"], ["three"], clock=clock, command_limits=limits)


async def test_many_stickers_in_a_row_are_told_once_to_be_unreadable(setup: Setup) -> None:
    def sent(number: int, kind: MediaKind, author: Person = ALICE) -> Said:
        said = make_incoming("", key=f"5:{number}", author=author)
        return replace(said, attachments=(MediaItem(kind),))

    await setup.say(*(sent(number, MediaKind.STICKER) for number in range(1, 20)))
    assert setup.texts == ["I cannot see stickers here. Please tell me in words what it is about."]
    await setup.say(sent(20, MediaKind.VIDEO), sent(21, MediaKind.STICKER, BOB))
    assert len(setup.texts) == 1, "a group is told once a minute"
    await setup.say(replace(sent(22, MediaKind.AUDIO), is_private=True))
    assert len(setup.texts) == 2
    await setup.say("hello")
    assert setup.texts[-1] == "one"


async def test_commands_over_the_limit_are_told_once_and_not_run(setup: Setup) -> None:
    await setup.say("/me a", "/me b", "/me c", "/help", "/settings why")
    assert setup.texts[2:] == [TOLD]
    await setup.say(make_incoming("/help", key="5:9", author=BOB))
    assert len(setup.texts) == 4, "others are not held back"


async def test_commands_are_counted_over_all_channels(setup: Setup) -> None:
    await setup.say("/help")
    await setup.receive(*(make_incoming("/help", key=f"6:{key}", chat="6") for key in (1, 2)))
    await setup.work("telegram:6")
    assert setup.texts[2:] == [TOLD]


async def test_native_command_over_the_limit_is_told_each_time(setup: Setup) -> None:
    for number in range(4):
        said = make_incoming("/help", key=f"5:{number}", wake=WakeReason.COMMAND)
        await setup.say(replace(said, interaction="77"))
    assert setup.texts[2:] == [TOLD, TOLD]


async def test_forgetting_is_held_back_by_nothing_else(setup: Setup) -> None:
    await setup.say("/help", "/help", "/help", "/forget last")
    assert setup.texts[2:] == [TOLD, "⚠ There is no question in this conversation yet."]


@pytest.mark.parametrize(
    "action",
    [
        *(ButtonAction.VERSION, ButtonAction.RETRY, ButtonAction.CONTINUE, ButtonAction.SETTINGS),
        *(ButtonAction.TOGGLE, ButtonAction.ABOUT),
    ],
)
async def test_presses_over_the_limit_are_refused_before_anything_is_read(
    setup: Setup, action: ButtonAction
) -> None:
    await setup.say("hello")
    for number in range(2):
        await setup.buttons.refusal(pressed(action, number=1, key=str(number)))
    of_no_answer = pressed(action, "telegram:5:99/0", key="3")
    assert await setup.buttons.refusal(of_no_answer) == EXCESS.format(wait=1800)


async def test_stopping_and_deleting_are_never_held_back(setup: Setup) -> None:
    await setup.say("hello", "/help", "/help", "/help")
    await setup.say("/stop")
    assert setup.texts[3:] == [TOLD, "⚠ No answer is being written here."]
    for action in (ButtonAction.STOP, ButtonAction.DELETE, ButtonAction.FORGET, ButtonAction.KEEP):
        for number in range(4):
            refusal = await setup.buttons.refusal(pressed(action, key=f"{action}{number}"))
            assert refusal in {None, "No answer is being written here."}


async def test_presses_count_together_with_commands(setup: Setup) -> None:
    await setup.say("hello", "/help", "/help")
    refusal = await setup.buttons.refusal(pressed(ButtonAction.VERSION, number=1))
    assert refusal == EXCESS.format(wait=1800)
    of_bob = pressed(ButtonAction.VERSION, number=1, by=BOB)
    assert await setup.buttons.refusal(of_bob) == NOT_YOURS, "others are not held back"


@pytest.mark.parametrize(
    ("answers", "seconds", "admitted"),
    [(15, 30.0, 30), (5, 86_400.0, 30), (1, 30.0, 30), (5, 3.0, 10)],
)
async def test_menus_can_be_used_where_few_answers_are_admitted(
    clock: FakeClock, answers: int, seconds: float, admitted: int
) -> None:
    rates = InProcessRateLimits(clock)
    limits = CommandLimits.beside_answers(rates, answers=answers, seconds=seconds)
    refusals = [
        await limits.press_refusal(pressed(ButtonAction.SETTINGS, key=str(number)))
        for number in range(admitted + 1)
    ]
    assert refusals[:-1] == [None] * admitted
    assert refusals[-1] is not None
    await clock.advance(30)
    assert await limits.press_refusal(pressed(ButtonAction.SETTINGS, key="later")) is None

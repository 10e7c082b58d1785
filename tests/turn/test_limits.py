"""Test that people and channels over their limits are answered slowly, with one notice."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import select
from typing_extensions import override

from bot.chat.command import ButtonAction
from bot.chat.incoming import IncomingMessage, MediaItem, MediaKind, Person, WakeReason
from bot.chat.rate import Rate
from bot.chat.session import Consent
from bot.commands.answers import NOT_AUTHOR_NOTICE
from bot.runtime.in_process import InProcessRateLimits
from bot.storage.database import Database
from bot.storage.tables import inbox
from bot.turn.limits.rate_limits import AnswerLimits, CommandLimits, LimitSettings
from bot.turn.limits.slots import ProviderSlots
from tests.fakes import FakeBackend, FakeClock, ScriptStep, run_ready_tasks
from tests.samples import ALICE, BOB, make_incoming
from tests.turn.busy_channel import end
from tests.turn.setup import Setup, answering, pass_time_until, pressed, working
from tests.waiting import advance_in_steps, settle, wait_until

SLOWED = (
    "⏳ That is more than 2 messages in 20 s. I will answer all of them, but more slowly: one every"
    " 10 s."
)


class RecordingRateLimits(InProcessRateLimits):
    """Rate limits that record the requested rates."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock)
        self.taken: list[Rate] = []

    @override
    async def take(self, rates: Sequence[Rate], max_wait_seconds: float = 0.0) -> float:
        self.taken += rates
        return await super().take(rates, max_wait_seconds)


def make_setup(
    database: Database, *, seconds: float = 20, per_person: int = 2
) -> tuple[Setup, RecordingRateLimits]:
    clock = FakeClock()
    rates = RecordingRateLimits(clock)
    settings = LimitSettings(answers_per_person=per_person, answers_per_channel=0, seconds=seconds)
    limits = AnswerLimits(rates, clock, settings)
    backend = FakeBackend(*([f"answer {number}"] for number in range(1, 9)))
    return Setup(database, backend=backend, clock=clock, answer_limits=limits), rates


async def until_waiting(rates: RecordingRateLimits, taken: int) -> None:
    """Wait until `taken` rates are requested, the last of them for a notice."""
    await wait_until(lambda: len(rates.taken) == taken)
    await run_ready_tasks()


async def test_person_over_the_limit_is_slowed_down_and_notified_once(database: Database) -> None:
    setup, rates = make_setup(database)
    async with working(setup, "a", "b", "c", "d") as worker:
        await until_waiting(rates, 4)
        assert len(setup.backend.prompts) == 2  # no work is done for the third
        await setup.clock.advance(10)
        await until_waiting(rates, 6)
        assert not worker.done()
        await setup.clock.advance(10)
        await worker
    assert setup.texts == ["answer 1", "answer 2", "answer 3", SLOWED, "answer 4"]
    assert [role for role, _ in await setup.history()] == ["user", "assistant"] * 4


async def test_message_that_would_wait_too_long_is_refused_once_and_stored(
    database: Database,
) -> None:
    setup, _rates = make_setup(database, per_person=1, seconds=3600)
    await setup.say("a", "b", "c")
    assert setup.texts == [
        "answer 1",
        "That is more than one message in 3600 s. I have read your message, but will not answer it."
        " Please write again in 3600 s.",
    ]
    assert [text for _, text in await setup.history()] == ["a", "answer 1", "b", "c"]


async def test_retry_over_the_limit_keeps_the_old_answer(database: Database) -> None:
    setup, _rates = make_setup(database, per_person=1, seconds=3600)
    await setup.say("a", "/retry")
    assert setup.texts[1].startswith("⚠ That is more than one message in 3600 s.")
    assert [text for _, text in await setup.history()] == ["a", "answer 1"]


async def test_stop_ends_the_wait_for_the_rate_limit(database: Database) -> None:
    setup, rates = make_setup(database)
    async with working(setup, "a", "b", "c") as worker:
        await until_waiting(rates, 4)
        await setup.receive("/stop")
        await worker
    assert len(setup.backend.prompts) == 2


async def test_commands_are_not_refused_at_the_answer_limit(database: Database) -> None:
    setup, _rates = make_setup(database, per_person=1, seconds=3600)
    await setup.say("a", "/me a tall knight", "/me clear", "/new")
    assert len(setup.texts) == 4


async def test_answers_to_a_person_are_counted_across_channels(database: Database) -> None:
    clock = FakeClock()
    rates = RecordingRateLimits(clock)
    limits = AnswerLimits(rates, clock, LimitSettings())
    setup = Setup(database, ["Hi."], clock=clock, answer_limits=limits)
    await setup.say("hello")
    assert rates.taken == [Rate("person:telegram:1", 15, 30), Rate("channel:telegram:5", 15, 30)]


# --- requests in flight ------------------------------------------------------------------------


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


async def test_fallback_answers_if_the_provider_has_no_free_slot(
    database: Database, clock: FakeClock
) -> None:
    rates = InProcessRateLimits(clock)
    assert await rates.acquire_slot("p", 1, "another process", 600)
    fallback = FakeBackend(["Hi."])
    slots = ProviderSlots(rates, clock, {"p": 1}, lease_seconds=240)
    preset = {"fallbacks": [{"provider": "q"}]}
    setup = Setup(database, fallback=fallback, preset=preset, clock=clock, provider_slots=slots)
    async with working(setup, "a") as worker:
        await run_ready_tasks()
        while not fallback.prompts:
            await settle()
            await clock.advance(1)
        await worker
    assert setup.texts[0] == "Hi."


MOST = 20
"""The limit on waiting questions, which equals the default number that one answer covers."""


def limited_setup(database: Database, *scripts: Sequence[ScriptStep], **parts: Any) -> Setup:
    """Return a worker with a limit on waiting questions per conversation."""
    limits = LimitSettings(answers_per_person=0, waiting_in_conversation=MOST)
    settings = {"limits": limits}
    return Setup(database, *scripts, preset={"busy": "queue"}, settings=settings, **parts)


def question(number: int, author: Person = ALICE, text: str = "") -> IncomingMessage:
    return make_incoming(text or f"q{number}", key=f"5:{number}", author=author)


async def open_messages(setup: Setup) -> int:
    """Return the number of received messages that are not finished."""
    unanswered = select(inbox.c.id).where(inbox.c.state == "new")
    return len(await setup.database.read(lambda c: c.execute(unanswered).all()))


def busy_notices(setup: Setup) -> list[str]:
    return [text for text in setup.texts if "I am busy" in text]


async def test_question_over_the_queue_limit_is_refused_after_the_current_answer(
    database: Database,
) -> None:
    go_on, go_on_next = asyncio.Event(), asyncio.Event()
    next_answers: list[Sequence[ScriptStep]] = [[go_on_next, "next"], *([["next"]] * (MOST - 1))]
    setup = limited_setup(database, [go_on, "first"], *next_answers)
    async with answering(setup, question(1)) as worker:
        await setup.receive(*(question(number) for number in range(2, MOST + 2)))
        people = [Person(f"telegram:{number}", f"P{number}") for number in range(100, 150)]
        await setup.receive(*(question(50 + n, one) for n, one in enumerate(people)))
        await setup.history_scopes.set_consent(BOB.id, Consent.OFF)
        await setup.receive(question(100, BOB))
        await advance_in_steps(setup.clock, 5)
        assert setup.texts == [], "no notice is in front of the answer"
        go_on.set()
        await pass_time_until(setup, lambda: len(setup.texts) == 2)
        go_on_next.set()
        await end(setup, worker)
    [told] = busy_notices(setup)  # once a minute in a chat
    assert setup.texts == ["first", told, *["next"] * MOST]
    assert await open_messages(setup) == 0
    turns = (await setup.session()).turns
    assert [one.text for one in turns].count("q50") == 1, "it is remembered"
    assert BOB.id not in {one.speaker.id for one in turns if one.speaker}


async def test_waiting_messages_are_not_refused_if_the_process_dies(
    database: Database,
) -> None:
    setup = limited_setup(database, [asyncio.Event()])
    async with answering(setup, question(1)) as worker:
        await setup.receive(*(question(number) for number in range(2, MOST + 3)))
        await advance_in_steps(setup.clock, 5)
        await setup.take_over()
        worker.cancel()
    await setup.finish_sending()
    assert await open_messages(setup) == MOST + 2

    scripts = [["again"] for _ in range(MOST + 2)]
    other = limited_setup(database, *scripts, surface=setup.surface)
    await other.conversations.release_all("other")
    await other.work()

    assert await open_messages(other) == 0
    assert len(other.backend.prompts) == MOST + 2
    assert busy_notices(other) == []


async def test_commands_and_observed_messages_do_not_count_as_waiting_questions(
    database: Database,
) -> None:
    go_on = asyncio.Event()
    setup = limited_setup(database, [go_on, "first"], *(["next"] for _ in range(MOST)))
    async with answering(setup, question(1)) as worker:
        await setup.receive(*(question(number) for number in range(2, MOST + 2)))
        await setup.receive(question(60, text="/help"))
        await setup.receive(replace(question(61, BOB), wake=None))
        await advance_in_steps(setup.clock, 5)
        assert busy_notices(setup) == []
        go_on.set()
        await end(setup, worker)
    assert busy_notices(setup) == []


EXCESS = "That is more than 2 commands or buttons in 3600 s. Please try again in {wait} s."
TOLD = f"⚠ {EXCESS.format(wait=1800)}"


@pytest.fixture
def setup(database: Database, clock: FakeClock) -> Setup:
    limits = CommandLimits(InProcessRateLimits(clock), commands_per_person=2, seconds=3600)
    return Setup(database, ["one"], ["two"], ["three"], clock=clock, command_limits=limits)


async def test_series_of_stickers_gets_one_notice(setup: Setup) -> None:
    def sent(number: int, kind: MediaKind, author: Person = ALICE) -> IncomingMessage:
        said = make_incoming("", key=f"5:{number}", author=author)
        return replace(said, attachments=(MediaItem(kind),))

    await setup.say(*(sent(number, MediaKind.STICKER) for number in range(1, 20)))
    assert setup.texts == ["I can't see stickers here. Please tell me in words instead."]
    await setup.say(sent(20, MediaKind.VIDEO), sent(21, MediaKind.STICKER, BOB))
    assert len(setup.texts) == 1, "a group is told once a minute"
    await setup.say(replace(sent(22, MediaKind.AUDIO), is_private=True))
    assert len(setup.texts) == 2
    await setup.say("hello")
    assert setup.texts[-1] == "one"


async def test_commands_over_the_limit_get_one_notice_and_do_not_run(setup: Setup) -> None:
    await setup.say("/me a", "/me b", "/me c", "/help", "/settings why")
    assert setup.texts[2:] == [TOLD]
    await setup.say(make_incoming("/help", key="5:9", author=BOB))
    assert len(setup.texts) == 4, "others are not held back"


async def test_commands_are_counted_across_channels(setup: Setup) -> None:
    await setup.say("/help")
    await setup.receive(*(make_incoming("/help", key=f"6:{key}", chat="6") for key in (1, 2)))
    await setup.work("telegram:6")
    assert setup.texts[2:] == [TOLD]


async def test_native_command_over_the_limit_gets_a_notice_each_time(setup: Setup) -> None:
    for number in range(4):
        said = make_incoming("/help", key=f"5:{number}", wake=WakeReason.COMMAND)
        await setup.say(replace(said, interaction="77"))
    assert setup.texts[2:] == [TOLD, TOLD]


async def test_forget_command_has_its_own_limit(setup: Setup) -> None:
    await setup.say("/help", "/help", "/help", "/forget last")
    assert setup.texts[2:] == [TOLD, "⚠ There is no question in this conversation yet."]


@pytest.mark.parametrize(
    "action",
    [
        *(ButtonAction.VERSION, ButtonAction.RETRY, ButtonAction.CONTINUE, ButtonAction.SETTINGS),
        *(ButtonAction.TOGGLE_CHARACTER, ButtonAction.ENTER_BIO),
    ],
)
async def test_presses_over_the_limit_are_refused(setup: Setup, action: ButtonAction) -> None:
    await setup.say("hello")
    for number in range(2):
        await setup.buttons.find_refusal_reason(pressed(action, number=1, key=str(number)))
    of_no_answer = pressed(action, "telegram:5:99/0", key="3")
    assert await setup.buttons.find_refusal_reason(of_no_answer) == EXCESS.format(wait=1800)


async def test_stop_and_delete_buttons_are_never_limited(setup: Setup) -> None:
    await setup.say("hello", "/help", "/help", "/help")
    await setup.say("/stop")
    assert setup.texts[3:] == [TOLD, "⚠ No answer is being written here."]
    for action in (
        ButtonAction.STOP,
        ButtonAction.DELETE,
        ButtonAction.FORGET,
        ButtonAction.KEEP_DATA,
    ):
        for number in range(4):
            refusal = await setup.buttons.find_refusal_reason(
                pressed(action, key=f"{action}{number}")
            )
            assert refusal in {None, "No answer is being written here."}


async def test_button_presses_and_commands_share_one_limit(setup: Setup) -> None:
    await setup.say("hello", "/help", "/help")
    refusal = await setup.buttons.find_refusal_reason(pressed(ButtonAction.VERSION, number=1))
    assert refusal == EXCESS.format(wait=1800)
    of_bob = pressed(ButtonAction.VERSION, number=1, by=BOB)
    assert await setup.buttons.find_refusal_reason(of_bob) == NOT_AUTHOR_NOTICE, (
        "others are not held back"
    )


@pytest.mark.parametrize(
    ("answers", "seconds", "admitted"),
    [(15, 30.0, 30), (5, 86_400.0, 30), (1, 30.0, 30), (5, 3.0, 10)],
)
async def test_menu_presses_are_allowed_even_with_low_answer_limits(
    clock: FakeClock, answers: int, seconds: float, admitted: int
) -> None:
    rates = InProcessRateLimits(clock)
    settings = LimitSettings(answers_per_person=answers, seconds=seconds)
    limits = CommandLimits.from_settings(rates, settings)
    refusals = [
        await limits.find_press_refusal(pressed(ButtonAction.SETTINGS, key=str(number)))
        for number in range(admitted + 1)
    ]
    assert refusals[:-1] == [None] * admitted
    assert refusals[-1] is not None
    await clock.advance(30)
    assert await limits.find_press_refusal(pressed(ButtonAction.SETTINGS, key="later")) is None

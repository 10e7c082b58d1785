"""Test live updates of an answer: pace, errors, and end."""

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import override

from bot.chat.incoming import Address
from bot.chat.outgoing import Limits, MessageContent, OutgoingMessage, OutgoingPart
from bot.chat.session import OpenPart
from bot.errors import Fenced, RateLimited, Refused, StoreError, Unreachable
from bot.replying.answer_parts import PartDestinations
from bot.replying.live_reply import LiveReply, StreamBuffer, TypingIndicator, final_parts
from bot.replying.split import split
from bot.runtime.http_client import ConnectionFailed, check_send_permission
from tests.fakes import CHAT, LIMITS, FakeClock, FakeSurface, run_ready_tasks

ENOUGH = "Thirty characters are enough to open a message."
TELEGRAM = replace(LIMITS, unit="utf16", deduplicates_sends=False, seconds_between_edits=1.0)


class Outbox:
    """Opens parts like the real outbox: it stores the row, then sends the message."""

    def __init__(self, surface: FakeSurface, clock: FakeClock) -> None:
        self._surface = surface
        self._clock = clock
        self.seconds_to_send = 0.0
        self.openings: list[OutgoingPart] = []
        self.error: Exception | None = None

    async def open(self, opening: OutgoingPart) -> OpenPart:
        if self.error is not None:
            raise self.error
        self.openings.append(opening)
        return OpenPart(len(self.openings), None)

    async def wait_until_sent(self, row: int) -> str:
        if self.seconds_to_send:
            await self._clock.sleep(self.seconds_to_send)
        text = self.openings[row - 1].content.text
        return await self._surface.send(
            OutgoingMessage(CHAT, MessageContent(text), nonce=f"n{row}")
        )


class Setup:
    """A live reply on a fake surface."""

    def __init__(self, limits: Limits = LIMITS) -> None:
        self.limits = limits
        self.surface = FakeSurface(limits)
        self.clock = FakeClock()
        self.outbox = Outbox(self.surface, self.clock)
        self.may_edit = True

    @property
    def texts(self) -> list[str]:
        return list(self.surface.messages.values())

    def edits(self) -> int:
        return sum(call == "edit" for call, _ in self.surface.calls)

    @asynccontextmanager
    async def live(
        self, first_part: int = 0, earlier: LiveReply | None = None
    ) -> AsyncIterator[LiveReply]:
        async with LiveReply(
            self.surface,
            CHAT,
            self.outbox.open,
            self.outbox.wait_until_sent,
            self.clock,
            PartDestinations(first_part),
            previous_speaker_reply=earlier,
            is_claim_held=lambda: self.may_edit,
        ) as live:
            yield live


@pytest.fixture
def setup() -> Setup:
    return Setup()


# --- the stream buffer -------------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.floats(0, 2), st.sampled_from(["feed", "refuse", "take"])), max_size=60)
)
def test_updates_are_never_closer_than_the_platform_allows(steps: list[tuple[float, str]]) -> None:
    buffer, now, last = StreamBuffer(LIMITS), 0.0, -math.inf
    for seconds, what in steps:
        now += seconds
        if what == "feed":
            buffer.feed("word ", now)
        elif what == "refuse":
            buffer.slow_down(now)
        elif buffer.seconds_until_due(now) == 0:
            buffer.take_parts(now)
            assert now - last >= LIMITS.seconds_between_edits
            last = now


def test_refusals_double_the_pause_up_to_ten_seconds_and_success_resets_it() -> None:
    buffer = StreamBuffer(LIMITS)
    buffer.feed(ENOUGH, 0)

    waits = []
    for _ in range(5):
        buffer.slow_down(0)
        waits.append(buffer.seconds_until_due(0))
    buffer.end_slowdown()
    buffer.take_parts(100)
    buffer.feed("more", 100)

    assert waits == [2.4, 4.8, 9.6, 10, 10]
    assert buffer.seconds_until_due(100) == pytest.approx(1.2)


def test_updates_wait_for_the_full_retry_after() -> None:
    buffer = StreamBuffer(LIMITS)
    buffer.feed(ENOUGH, 0)

    buffer.slow_down(0, retry_after_seconds=137)

    assert buffer.seconds_until_due(0) == 137


# --- the live reply --------------------------------------------------------------------------


async def test_answer_is_edited_at_the_pace_of_the_platform(setup: Setup) -> None:
    async with setup.live() as live:
        for _ in range(200):
            live.feed("word ")
            await setup.clock.advance(0.05)

        shown = len(setup.texts[0].split())
        assert 200 - 1.2 / 0.05 <= shown <= 200
        assert [call for call, _ in setup.surface.calls] == ["send", *["edit"] * 7]
        assert live.started_part_numbers == [0]


async def test_message_sent_late_is_edited_only_after_a_full_pause(setup: Setup) -> None:
    setup.outbox.seconds_to_send = 3.0
    async with setup.live() as live:
        live.feed(ENOUGH)
        await setup.clock.advance(1)
        live.feed(" And more.")
        await setup.clock.advance(3)  # it is opened after 3.8 s
        assert [call for call, _ in setup.surface.calls] == ["send"]
        await setup.clock.advance(1)
        assert setup.edits() == 1


async def test_slow_edit_is_followed_by_a_full_pause(setup: Setup) -> None:
    async with setup.live() as live:
        live.feed(ENOUGH)
        await setup.clock.advance(1)
        setup.surface.gate = asyncio.Event()  # the platform lets the edit wait
        live.feed(" And more.")
        await setup.clock.advance(2)
        assert setup.edits() == 1
        live.feed(" And the rest.")
        await setup.clock.advance(5)
        setup.surface.gate.set()
        await setup.clock.advance(0.5)
        assert setup.edits() == 1
        await setup.clock.advance(1)
        assert setup.edits() == 2


async def test_answer_that_is_complete_at_once_is_sent_without_live_updates(setup: Setup) -> None:
    async with setup.live() as live:
        for _ in range(20):
            live.feed("word ")
        await setup.clock.advance(0.7)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    await setup.clock.advance(10)
    assert live.started_part_numbers == []


async def test_short_first_text_waits_for_one_second(setup: Setup) -> None:
    async with setup.live() as live:
        live.feed("Hi")
        await setup.clock.advance(0.9)
        assert setup.texts == []
        await setup.clock.advance(0.2)

    assert setup.texts == ["Hi"]


async def test_message_is_sent_at_the_first_words_if_sends_cannot_be_repeated() -> None:
    setup = Setup(TELEGRAM)

    async with setup.live() as live:
        live.feed(ENOUGH)
        await setup.clock.advance(0.9)

    assert setup.outbox.openings == [OutgoingPart(0, MessageContent(ENOUGH))]
    assert setup.surface.calls == [("send", ENOUGH)]


TELEGRAM_100 = replace(TELEGRAM, max_units=100)


async def test_unchanged_text_causes_no_edits(setup: Setup) -> None:
    async with setup.live() as live:
        live.feed(ENOUGH)
        await setup.clock.advance(60)

    assert setup.edits() == 0


async def test_full_part_is_not_edited_while_the_next_part_grows() -> None:
    setup = Setup(TELEGRAM_100)

    async with setup.live() as live:
        for _ in range(24):
            live.feed("a word ")
            await setup.clock.advance(0.5)

    edited = [text for call, text in setup.surface.calls if call == "edit"]
    full, growing = setup.texts
    assert live.started_part_numbers == [0, 1]
    assert full == split("a word " * 24, TELEGRAM_100)[0]
    assert edited.count(full) <= 1
    assert edited.count(growing) == 1
    assert len(edited) > 4


async def test_answer_is_not_edited_if_its_claim_may_be_lost(setup: Setup) -> None:
    async with setup.live() as live:
        live.feed(ENOUGH)
        await setup.clock.advance(2)
        setup.may_edit = False  # this worker stood still, and its lease may have ended
        live.feed(" More words.")
        await setup.clock.advance(5)
        assert setup.edits() == 0
        setup.may_edit = True
        live.feed(" The rest.")
        await setup.clock.advance(2)

    assert setup.texts == [f"{ENOUGH} More words. The rest."]


async def test_edit_that_waited_too_long_is_not_sent(setup: Setup) -> None:
    written = 0

    class WaitingSurface(FakeSurface):
        @override
        async def edit(self, *args: Any, **more: Any) -> None:
            nonlocal written
            setup.may_edit = False  # the process stood still where the edit waited for its rate
            try:
                check_send_permission()
            except ConnectionFailed as error:
                raise Unreachable(str(error)) from None
            written += 1

    setup.surface = WaitingSurface()
    setup.outbox = Outbox(setup.surface, setup.clock)
    async with setup.live() as live:
        live.feed(ENOUGH)
        await setup.clock.advance(2)
        live.feed(" More words.")
        await setup.clock.advance(5)

    assert not setup.may_edit
    assert written == 0


async def test_exit_waits_for_the_request_in_flight(setup: Setup) -> None:
    async with setup.live() as live:
        live.feed(ENOUGH)
        await setup.clock.advance(2)
        setup.surface.gate = asyncio.Event()
        live.feed("And more.")
        await setup.clock.advance(2)
        ending = asyncio.create_task(live.__aexit__(None, None, None))
        await run_ready_tasks()

        assert not ending.done()
        setup.surface.gate.set()
        await ending

    assert setup.texts == [ENOUGH + "And more."]


async def test_exit_does_not_wait_for_a_message_that_was_never_sent(setup: Setup) -> None:
    setup.surface.gate = asyncio.Event()

    async with setup.live() as live:
        live.feed(ENOUGH)
        await setup.clock.advance(2)

    assert live.started_part_numbers == [0]
    assert setup.texts == []


async def feed_for_a_while(setup: Setup) -> LiveReply:
    async with setup.live() as live:
        for _ in range(100):
            live.feed("word ")
            await setup.clock.advance(0.5)
        return live


async def test_rate_limit_slows_edits_down_without_stopping_them(setup: Setup) -> None:
    setup.surface.fail_next("edit", *[RateLimited(5)] * 4)
    await feed_for_a_while(setup)
    assert len(setup.texts[0]) > 400
    assert setup.edits() < 25


async def test_live_updates_end_without_an_error_after_three_failures_in_a_row(
    setup: Setup,
) -> None:
    setup.surface.fail_next("edit", Unreachable("no"), Refused("no"), Unreachable("no"))
    await feed_for_a_while(setup)
    assert setup.edits() == 3


async def test_store_error_ends_live_updates_without_an_exception(setup: Setup) -> None:
    setup.outbox.error = StoreError("the disk is full")
    assert (await feed_for_a_while(setup)).started_part_numbers == []


async def test_feed_raises_fenced_if_the_claim_was_lost(setup: Setup) -> None:
    setup.outbox.error = Fenced("another worker has it")

    async def answer() -> None:
        async with setup.live() as live:
            live.feed(ENOUGH)
            await setup.clock.advance(2)
            live.feed("more")
            pytest.fail("nobody told")

    with pytest.raises(Fenced):
        await answer()


# --- typing indicator and final parts ---------------------------------------------------------


async def test_typing_indicator_is_repeated_even_if_calls_are_refused() -> None:
    surface, clock = FakeSurface(), FakeClock()
    surface.fail_next("typing", Unreachable("no"), RateLimited(20))

    async with TypingIndicator(surface, CHAT, clock):
        await clock.advance(40)

    assert len(surface.calls) == 4  # at 0.5, 8.5, 28.5 and 36.5 seconds


@pytest.mark.parametrize(("typing_seconds", "answer_seconds"), [(10, 0.4), (0, 10)])
async def test_typing_indicator_is_omitted_if_unsupported_or_not_needed(
    typing_seconds: float, answer_seconds: float
) -> None:
    surface, clock = FakeSurface(replace(LIMITS, typing_seconds=typing_seconds)), FakeClock()

    async with TypingIndicator(surface, CHAT, clock):
        await clock.advance(answer_seconds)
    await clock.advance(10)

    assert surface.calls == []


async def test_typing_call_is_not_repeated_after_stop() -> None:
    surface, clock = FakeSurface(), FakeClock()

    async with TypingIndicator(surface, CHAT, clock) as typing:
        await clock.advance(1)
        typing.stop_typing()
        await clock.advance(40)

    assert surface.calls == [("typing", "")]


def test_final_parts_are_numbered() -> None:
    assert final_parts("One sentence. And two.", replace(TELEGRAM, max_units=14)) == (
        OutgoingPart(0, MessageContent("One sentence.")),
        OutgoingPart(1, MessageContent("And two.")),
    )
    assert final_parts(" \n", LIMITS) == ()


# --- several characters ------------------------------------------------------------------------


@pytest.mark.parametrize("seconds", [0.1, 5])
async def test_previous_answer_is_complete_before_the_next_starts(
    setup: Setup, seconds: float
) -> None:
    async with setup.live() as first:
        first.feed("Nora begins")
        await setup.clock.advance(seconds)
        first.feed(" and ends.")
    first.final_texts = ["Nora begins and ends.", "And more."]
    async with setup.live(first_part=2, earlier=first) as second:
        second.feed("Bram follows, with enough words to be shown.")
        await setup.clock.advance(5)

    assert setup.texts == [
        "Nora begins and ends.",
        "And more.",
        "Bram follows, with enough words to be shown.",
    ]
    assert [one.number for one in setup.outbox.openings] == [0, 1, 2]


# --- drafts ------------------------------------------------------------------------------------


class DraftedSurface(FakeSurface):
    """A surface with drafts, which records the drafts it shows."""

    def __init__(self) -> None:
        super().__init__(replace(TELEGRAM, has_drafts=True, max_units=60))
        self.drafts: list[tuple[int, str]] = []

    @override
    async def draft(self, address: Address, draft_id: int, content: MessageContent) -> None:
        await self._record("draft", content.text)
        self.drafts.append((draft_id, content.text))


async def test_unfinished_answer_is_a_draft_on_platforms_with_drafts(setup: Setup) -> None:
    setup.surface = surface = DraftedSurface()
    async with setup.live() as live:
        for more in (ENOUGH, "", " It goes on", " for quite a while."):
            live.feed(more)
            await setup.clock.advance(3)
    assert surface.messages == {}
    assert live.started_part_numbers == []
    parts = split(f"{ENOUGH} It goes on for quite a while.", surface.limits(CHAT))
    assert surface.drafts == [(1, ENOUGH), (1, f"{ENOUGH} It goes on"), (1, parts[-1])]
    assert len(parts) == 2


async def test_draft_that_is_refused_is_shown_later(setup: Setup) -> None:
    setup.surface = surface = DraftedSurface()
    surface.fail_next("draft", RateLimited(5))
    async with setup.live() as live:
        live.feed(ENOUGH)
        await setup.clock.advance(4)
        assert surface.drafts == []
        await setup.clock.advance(4)
    assert surface.drafts == [(1, ENOUGH)]

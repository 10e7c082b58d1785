"""The live part of an answer: cheap for each word, paced by time, gone when the block ends."""

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bot.chat.outgoing import Limits, OutgoingMessage, OutgoingPart
from bot.errors import Fenced, RateLimited, Refused, StoreError, Unreachable
from bot.replying.live_replies import final_parts, keep_typing
from bot.replying.live_reply import LiveReply
from bot.replying.splitting.split import split
from bot.replying.stream_buffer import StreamBuffer
from tests.fakes import CHAT, LIMITS, FakeClock, FakeSurface, run_ready_tasks

ENOUGH = "Thirty characters are enough to open a message."
TELEGRAM = replace(LIMITS, unit="utf16", placeholder="…", seconds_between_edits=1.0)


class Outbox:
    """Opens parts as the real one does: a row first, the message a moment later."""

    def __init__(self, surface: FakeSurface) -> None:
        self._surface = surface
        self.openings: list[OutgoingPart] = []
        self.error: Exception | None = None

    async def open(self, opening: OutgoingPart) -> int:
        if self.error is not None:
            raise self.error
        self.openings.append(opening)
        return len(self.openings)

    async def arrival(self, row: int) -> str:
        text = self.openings[row - 1].text
        return await self._surface.send(OutgoingMessage(CHAT, text, nonce=f"n{row}"))


class Stage:
    def __init__(self, limits: Limits = LIMITS) -> None:
        self.limits = limits
        self.surface = FakeSurface(limits)
        self.outbox = Outbox(self.surface)
        self.clock = FakeClock()

    @property
    def texts(self) -> list[str]:
        return list(self.surface.messages.values())

    def edits(self) -> int:
        return sum(call == "edit" for call, _ in self.surface.calls)

    @asynccontextmanager
    async def live(self) -> AsyncIterator[LiveReply]:
        async with LiveReply(
            self.surface, CHAT, self.outbox.open, self.outbox.arrival, self.clock
        ) as live:
            yield live


# --- the draft -------------------------------------------------------------------------------


def test_nothing_is_due_before_the_first_words() -> None:
    assert StreamBuffer(LIMITS).seconds_until_due(0) == math.inf


def test_the_first_words_are_due_when_they_are_enough_or_old_enough() -> None:
    draft = StreamBuffer(LIMITS)
    draft.feed("Hello", 0)

    assert draft.seconds_until_due(0.9) > 0
    assert draft.seconds_until_due(1.0) == 0
    draft.feed(ENOUGH, 0.1)
    assert draft.seconds_until_due(0.2) > 0
    assert draft.seconds_until_due(0.25) == 0


@given(
    st.lists(st.tuples(st.floats(0, 2), st.sampled_from(["feed", "refuse", "take"])), max_size=60)
)
def test_two_looks_are_never_closer_than_the_pace(steps: list[tuple[float, str]]) -> None:
    draft, now, last = StreamBuffer(LIMITS), 0.0, -math.inf
    for seconds, what in steps:
        now += seconds
        if what == "feed":
            draft.feed("word ", now)
        elif what == "refuse":
            draft.slow_down(now)
        elif draft.seconds_until_due(now) == 0:
            draft.take_parts(now)
            assert now - last >= LIMITS.seconds_between_edits
            last = now


def test_refusals_double_the_pace_up_to_ten_seconds_and_success_restores_it() -> None:
    draft = StreamBuffer(LIMITS)
    draft.feed(ENOUGH, 0)

    waits = []
    for _ in range(5):
        draft.slow_down(0)
        waits.append(draft.seconds_until_due(0))
    draft.recover()
    draft.take_parts(100)
    draft.feed("more", 100)

    assert waits == [2.4, 4.8, 9.6, 10, 10]
    assert draft.seconds_until_due(100) == pytest.approx(1.2)


def test_a_retry_after_is_waited_for_in_full() -> None:
    draft = StreamBuffer(LIMITS)
    draft.feed(ENOUGH, 0)

    draft.slow_down(0, retry_after_seconds=137)

    assert draft.seconds_until_due(0) == 137


# --- the live reply --------------------------------------------------------------------------


async def test_an_answer_grows_by_edits_at_the_pace_of_the_platform() -> None:
    stage = Stage()

    async with stage.live() as live:
        for _ in range(200):
            live.feed("word ")
            await stage.clock.advance(0.05)

        shown = len(stage.texts[0].split())
        assert 200 - 1.2 / 0.05 <= shown <= 200
        assert [call for call, _ in stage.surface.calls] == ["send", *["edit"] * 8]
        assert live.opened == 1


async def test_an_answer_that_comes_at_once_is_not_shown_twice() -> None:
    stage = Stage()

    async with stage.live() as live:
        for _ in range(20):
            live.feed("word ")
        await stage.clock.advance(0.2)

    assert live.opened == 0


async def test_a_short_beginning_waits_for_a_second() -> None:
    stage = Stage()

    async with stage.live() as live:
        live.feed("Hi")
        await stage.clock.advance(0.9)
        assert stage.texts == []
        await stage.clock.advance(0.2)

    assert stage.texts == ["Hi"]


async def test_a_placeholder_opens_the_message_and_the_text_follows_by_an_edit() -> None:
    stage = Stage(TELEGRAM)

    async with stage.live() as live:
        live.feed(ENOUGH)
        await stage.clock.advance(0.3)

    assert stage.outbox.openings == [OutgoingPart(0, "…")]
    assert stage.surface.calls == [("send", "…"), ("edit", ENOUGH)]


async def test_a_long_answer_opens_the_next_part_and_leaves_the_first_alone() -> None:
    stage = Stage(replace(TELEGRAM, max_units=100))

    async with stage.live() as live:
        for number in range(50):
            live.feed(f"word{number:02} ")
            await stage.clock.advance(0.5)

        assert live.opened == 4
        assert (
            stage.texts[:3] == split(" ".join(f"word{n:02}" for n in range(50)), TELEGRAM_100)[:3]
        )


TELEGRAM_100 = replace(TELEGRAM, max_units=100)


async def test_a_quiet_model_costs_no_edits() -> None:
    stage = Stage()

    async with stage.live() as live:
        live.feed(ENOUGH)
        await stage.clock.advance(60)

    assert stage.edits() == 0


async def test_nothing_live_is_under_way_when_the_block_ends() -> None:
    stage = Stage()
    async with stage.live() as live:
        live.feed(ENOUGH)
        await stage.clock.advance(2)
        stage.surface.gate = asyncio.Event()
        live.feed("And more.")
        await stage.clock.advance(2)
        ending = asyncio.create_task(live.__aexit__(None, None, None))
        await run_ready_tasks()

        assert not ending.done()
        stage.surface.gate.set()
        await ending

    assert stage.texts == [ENOUGH + "And more."]


async def test_the_end_does_not_wait_for_a_message_that_is_not_sent() -> None:
    stage = Stage()
    stage.surface.gate = asyncio.Event()

    async with stage.live() as live:
        live.feed(ENOUGH)
        await stage.clock.advance(2)

    assert live.opened == 1
    assert stage.texts == []


async def test_being_rate_limited_slows_the_edits_down_and_does_not_stop_them() -> None:
    stage = Stage()
    stage.surface.fail_next("edit", *[RateLimited(5)] * 4)

    async with stage.live() as live:
        for _ in range(100):
            live.feed("word ")
            await stage.clock.advance(0.5)

        assert len(stage.texts[0]) > 400
        assert stage.edits() < 25


async def test_three_failures_in_a_row_end_the_show_only() -> None:
    stage = Stage()
    stage.surface.fail_next("edit", Unreachable("no"), Refused("no"), Unreachable("no"))

    async with stage.live() as live:
        for _ in range(100):
            live.feed("word ")
            await stage.clock.advance(0.5)

    assert stage.edits() == 3


async def test_a_full_disk_is_no_reason_to_lose_the_answer() -> None:
    stage = Stage()
    stage.outbox.error = StoreError("the disk is full")

    async with stage.live() as live:
        for _ in range(100):
            live.feed("word ")
            await stage.clock.advance(0.5)

    assert live.opened == 0


async def test_being_fenced_is_told_to_whoever_feeds() -> None:
    stage = Stage()
    stage.outbox.error = Fenced("another worker has it")

    async def answer() -> None:
        async with stage.live() as live:
            live.feed(ENOUGH)
            await stage.clock.advance(2)
            live.feed("more")
            pytest.fail("nobody told")

    with pytest.raises(Fenced):
        await answer()


async def test_where_nothing_can_be_edited_nothing_is_shown_live() -> None:
    stage = Stage(replace(LIMITS, can_edit=False))

    async with stage.live() as live:
        live.feed(ENOUGH)
        await stage.clock.advance(5)

    assert stage.surface.calls == []


# --- typing, and the end ---------------------------------------------------------------------


async def test_typing_is_refreshed_before_it_fades_and_survives_refusals() -> None:
    surface, clock = FakeSurface(), FakeClock()
    surface.fail_next("typing", Unreachable("no"), RateLimited(20))

    typing = asyncio.create_task(keep_typing(surface, CHAT, clock))
    await clock.advance(40)
    typing.cancel()

    assert len(surface.calls) == 4  # at 0, 8, 28 and 36 seconds


async def test_typing_ends_at_once_where_there_is_none() -> None:
    surface = FakeSurface(replace(LIMITS, typing_seconds=0))

    await keep_typing(surface, CHAT, FakeClock())

    assert surface.calls == []


def test_the_final_parts_say_how_they_are_opened() -> None:
    assert final_parts("One sentence. And two.", replace(TELEGRAM, max_units=14)) == (
        OutgoingPart(0, "One sentence.", "…"),
        OutgoingPart(1, "And two.", "…"),
    )
    assert final_parts(" \n", LIMITS) == ()

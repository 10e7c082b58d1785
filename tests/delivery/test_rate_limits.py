"""One clock per chat, shared by messages and edits."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bot.chat.outgoing import Limits
from bot.delivery.rate_limits import RateLimitedSurface, RateLimiter
from bot.errors import RateLimited
from tests.fakes import CHAT, FakeClock, FakeSurface

GROUP = Limits(4096, "utf16", 3.5, 4, calls_per_minute=20, burst=5, placeholder="…")


def allowed(pace: RateLimiter, now: float, *, reserve: int = 0) -> bool:
    free = pace.seconds_until_free("lane", GROUP, now, reserve=reserve) <= 0
    if free:
        pace.count("lane", GROUP, now)
    return free


def careful() -> RateLimiter:
    pace = RateLimiter()
    pace.block("lane", -1.0, 1.0)  # refused once, and free again at 0
    return pace


def test_a_burst_goes_at_once_and_then_the_rate_holds_where_one_was_refused() -> None:
    pace = careful()
    assert [allowed(pace, 0.0) for _ in range(6)] == [True] * 5 + [False]
    assert pace.seconds_until_free("lane", GROUP, 0.0, reserve=0) == 3.0
    assert allowed(pace, 3.0)


def test_an_answer_does_not_wait_for_a_rate_that_nobody_complained_about() -> None:
    pace = RateLimiter()
    assert all(allowed(pace, 0.0) for _ in range(50))


def test_a_courtesy_always_keeps_the_rate_and_leaves_one_call_for_what_matters() -> None:
    pace = RateLimiter()
    assert [allowed(pace, 0.0, reserve=1) for _ in range(5)] == [True] * 4 + [False]
    assert allowed(pace, 0.0)


def test_nothing_is_sent_while_a_platform_says_no() -> None:
    pace = RateLimiter()
    pace.block("lane", 10.0, 30.0)
    assert pace.seconds_until_free("lane", GROUP, 15.0, reserve=0) == 25.0
    assert pace.seconds_until_free("other", GROUP, 15.0, reserve=0) == 0.0
    assert pace.seconds_until_free("lane", GROUP, 40.0, reserve=0) == 0.0


@given(st.lists(st.floats(0, 5), min_size=1, max_size=80))
def test_no_minute_ever_holds_more_than_the_rate_and_one_burst(pauses: list[float]) -> None:
    pace, now = careful(), 0.0
    sent = []
    for pause in pauses:
        now += pause
        if allowed(pace, now):
            sent.append(now)
    for start in sent:
        assert sum(start <= at < start + 60 for at in sent) <= 20 + 5


async def test_a_chat_that_was_refused_gets_no_typing_either_before_its_time() -> None:
    clock, surface = FakeClock(), FakeSurface()
    paced = RateLimitedSurface(surface, RateLimiter(), clock)
    surface.refuse("edit", RateLimited(30))
    with pytest.raises(RateLimited):
        await paced.edit(CHAT, "1", "text")
    with pytest.raises(RateLimited) as refused:
        await paced.typing(CHAT)
    assert refused.value.retry_after_seconds == 30
    await clock.advance(30)
    await paced.typing(CHAT)
    assert [call for call, _ in surface.calls] == ["edit", "typing"]


async def test_a_short_wait_is_slept_through_and_a_long_one_told() -> None:
    clock, surface = FakeClock(), FakeSurface()
    paced = RateLimitedSurface(surface, RateLimiter(), clock)
    surface.refuse("delete", RateLimited(2))
    with pytest.raises(RateLimited):
        await paced.delete(CHAT, "1")
    deleting = asyncio.create_task(paced.delete(CHAT, "1"))
    await clock.advance(1.9)
    assert not deleting.done()
    await clock.advance(0.1)
    await deleting
    surface.refuse("delete", RateLimited(3))
    for _ in range(2):
        with pytest.raises(RateLimited):
            await paced.delete(CHAT, "1")


async def test_a_courtesy_never_waits() -> None:
    clock, surface, pace = FakeClock(), FakeSurface(), RateLimiter()
    pace.block(CHAT.lane, clock.monotonic(), 1)
    with pytest.raises(RateLimited):
        await RateLimitedSurface(surface, pace, clock, courtesy=True).edit(CHAT, "1", "text")
    assert surface.calls == []

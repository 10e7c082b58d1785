"""Rate limits: one budget per chat, shared by messages and edits."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bot.chat.outgoing import Limits, MessageContent
from bot.delivery.rate_limits import RateLimitedSurface, RateLimiter
from bot.errors import RateLimited
from tests.fakes import CHAT, FakeClock, FakeSurface

GROUP = Limits(4096, "utf16", 3.5, 4, calls_per_minute=20, burst=5, can_repeat_sends=False)


def allowed(limiter: RateLimiter, now: float, *, reserve: int = 0) -> bool:
    is_allowed = limiter.seconds_until_allowed("lane", GROUP, now, reserve=reserve) <= 0
    if is_allowed:
        limiter.record_call("lane", GROUP, now)
    return is_allowed


def refused_once() -> RateLimiter:
    limiter = RateLimiter()
    limiter.block("lane", -1.0, 1.0)  # blocked until 0, the rate enforced for an hour
    return limiter


def test_burst_is_allowed_and_then_the_rate_holds_after_a_refusal() -> None:
    limiter = refused_once()
    assert [allowed(limiter, 0.0) for _ in range(6)] == [True] * 5 + [False]
    assert limiter.seconds_until_allowed("lane", GROUP, 0.0, reserve=0) == 3.0
    assert allowed(limiter, 3.0)


def test_rate_is_not_enforced_before_a_refusal() -> None:
    limiter = RateLimiter()
    assert all(allowed(limiter, 0.0) for _ in range(50))


def test_best_effort_calls_keep_the_rate_and_reserve_one_call() -> None:
    limiter = RateLimiter()
    assert [allowed(limiter, 0.0, reserve=1) for _ in range(5)] == [True] * 4 + [False]
    assert allowed(limiter, 0.0)


def test_blocked_lane_allows_no_call_until_its_time_has_passed() -> None:
    limiter = RateLimiter()
    limiter.block("lane", 10.0, 30.0)
    assert limiter.seconds_until_allowed("lane", GROUP, 15.0, reserve=0) == 25.0
    assert limiter.seconds_until_allowed("other", GROUP, 15.0, reserve=0) == 0.0
    assert limiter.seconds_until_allowed("lane", GROUP, 40.0, reserve=0) == 0.0


@given(st.lists(st.floats(0, 5), min_size=1, max_size=80))
def test_no_minute_holds_more_calls_than_the_rate_and_one_burst(pauses: list[float]) -> None:
    limiter, now = refused_once(), 0.0
    sent = []
    for pause in pauses:
        now += pause
        if allowed(limiter, now):
            sent.append(now)
    for start in sent:
        assert sum(start <= at < start + 60 for at in sent) <= 20 + 5


async def test_blocked_chat_gets_no_typing_indicator() -> None:
    clock, surface = FakeClock(), FakeSurface()
    limited = RateLimitedSurface(surface, RateLimiter(), clock)
    surface.fail_next("edit", RateLimited(30))
    with pytest.raises(RateLimited):
        await limited.edit(CHAT, "1", MessageContent("text"))
    with pytest.raises(RateLimited) as refused:
        await limited.typing(CHAT)
    assert refused.value.retry_after_seconds == 30
    await clock.advance(30)
    await limited.typing(CHAT)
    assert [call for call, _ in surface.calls] == ["edit", "typing"]


async def test_short_wait_is_slept_through_and_long_wait_is_raised() -> None:
    clock, surface = FakeClock(), FakeSurface()
    limited = RateLimitedSurface(surface, RateLimiter(), clock)
    surface.fail_next("delete", RateLimited(2))
    with pytest.raises(RateLimited):
        await limited.delete(CHAT, "1")
    deleting = asyncio.create_task(limited.delete(CHAT, "1"))
    await clock.advance(1.9)
    assert not deleting.done()
    await clock.advance(0.1)
    await deleting
    surface.fail_next("delete", RateLimited(3))
    for _ in range(2):
        with pytest.raises(RateLimited):
            await limited.delete(CHAT, "1")


async def test_best_effort_call_never_waits() -> None:
    clock, surface, limiter = FakeClock(), FakeSurface(), RateLimiter()
    limiter.block(CHAT.lane, clock.monotonic(), 1)
    with pytest.raises(RateLimited):
        await RateLimitedSurface(surface, limiter, clock, best_effort=True).edit(
            CHAT, "1", MessageContent("text")
        )
    assert surface.calls == []

"""The frame stack of the event loop's thread."""

import time

import pytest

from bot.cli.run import call_in_stack_chunk

CALLS = 200
DEPTHS = range(150)
REPEATS = 20
"""Only the fastest run counts, so that a busy machine does not change the result."""


def leaf() -> None:
    """Do nothing in a frame that is large enough to cross the end of a stack chunk."""


leaf.__code__ = leaf.__code__.replace(co_stacksize=100)


def measure_calls(depth: int) -> float:
    """Return the duration of many calls at the given stack depth."""
    if depth > 0:
        return measure_calls(depth - 1)
    quickest = 1.0
    for _ in range(REPEATS):
        start = time.perf_counter()
        for _ in range(CALLS):
            leaf()
        quickest = min(quickest, time.perf_counter() - start)
    return quickest


def test_calls_take_about_the_same_time_at_every_stack_depth() -> None:
    seconds = call_in_stack_chunk(lambda: [measure_calls(depth) for depth in DEPTHS])

    assert max(seconds) < min(seconds) * 20  # 500 where each call maps a chunk


def test_call_in_a_large_stack_chunk_returns_the_result_and_raises_errors() -> None:
    assert call_in_stack_chunk(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        call_in_stack_chunk(lambda: 1 // 0)

"""Retry backoff, retry budget and circuit breaker."""

import pytest

from bot.backends.chat_completions.retries import CircuitBreaker, RetryBudget, max_backoff_seconds


def test_backoff_grows_up_to_a_maximum() -> None:
    assert [max_backoff_seconds(retries) for retries in range(7)] == [0.5, 1, 2, 4, 8, 8, 8]


def test_retry_budget_starts_with_three_retries() -> None:
    budget = RetryBudget()

    assert [budget.take() for _ in range(4)] == [True, True, True, False]


def test_retry_budget_grows_by_one_retry_per_ten_calls() -> None:
    budget = RetryBudget(initial=0)

    taken = 0
    for _ in range(100):
        budget.record_call()
        taken += budget.take()

    assert taken == 10


def test_retry_budget_has_a_maximum() -> None:
    budget = RetryBudget()
    for _ in range(10_000):
        budget.record_call()

    assert sum(budget.take() for _ in range(100)) == 10


def breaker_after(*outcomes: bool) -> CircuitBreaker:
    breaker = CircuitBreaker()
    for success in outcomes:
        breaker.record(0, success=success)
    return breaker


def test_breaker_opens_at_half_of_twenty_calls() -> None:
    assert breaker_after(*[True, False] * 10).allows(0) is False


def test_breaker_stays_closed_below_half() -> None:
    assert breaker_after(*[True, False] * 9, True, True).allows(0) is True


def test_breaker_needs_twenty_calls_to_judge() -> None:
    assert breaker_after(*[False] * 19).allows(0) is True


def test_only_the_last_twenty_calls_count() -> None:
    assert breaker_after(*[False] * 9, *[True] * 20, *[False] * 9).allows(0) is True


def breaker_after_away(*calls: tuple[float, bool]) -> CircuitBreaker:
    """Return a breaker after calls without any answer: when, and whether it was a retry."""
    breaker = CircuitBreaker()
    for at, is_retry in calls:
        breaker.record(at, success=False, is_away=True, is_retry=is_retry)
    return breaker


def test_breaker_opens_at_once_for_a_provider_that_gives_no_answer_for_a_second() -> None:
    assert breaker_after_away((0, False), (0.3, True), (1, False)).allows(1) is False


@pytest.mark.parametrize(
    "calls",
    [
        [(0, False), (1.5, False)],
        [(0, False), (0.5, True), (1.5, True), (3, True)],  # one request alone
        [(0, False), (0.2, False), (0.4, False), (0.9, True)],  # hardly a second
    ],
)
def test_single_failures_open_no_breaker(calls: list[tuple[float, bool]]) -> None:
    assert breaker_after_away(*calls).allows(9) is True


@pytest.mark.parametrize("success", [True, False])
def test_any_answer_shows_that_the_provider_is_there(success: bool) -> None:
    breaker = breaker_after_away((0, False), (1, False))
    breaker.record(2, success=success)
    breaker.record(3, success=False, is_away=True)
    breaker.record(3.5, success=False, is_away=True)
    assert breaker.allows(3.5) is True


def test_late_failure_of_a_call_from_before_does_not_put_off_the_trial() -> None:
    breaker = breaker_after(*[False] * 20)
    breaker.record(4, success=False, is_away=True, is_trial=False)

    assert (breaker.allows(5), breaker.failed_trials) == (True, 0)


def test_open_breaker_lets_one_call_through_after_a_while() -> None:
    breaker = breaker_after(*[False] * 20)

    assert [breaker.allows(now) for now in (4.9, 5, 5.1, 9.9)] == [False, True, False, False]


def test_unrecorded_trial_call_does_not_block_the_next() -> None:
    breaker = breaker_after(*[False] * 20)
    breaker.allows(15)

    assert breaker.allows(30) is True


def test_successful_trial_call_closes_the_breaker() -> None:
    breaker = breaker_after(*[False] * 20)
    breaker.allows(15)
    breaker.record(16, success=True)

    assert [breaker.allows(16), breaker.allows(16)] == [True, True]


def test_failed_trial_call_keeps_the_breaker_open() -> None:
    breaker = breaker_after(*[False] * 20)
    breaker.allows(5)
    breaker.record(6, success=False)

    assert [breaker.allows(now) for now in (7, 10.9, 11)] == [False, False, True]

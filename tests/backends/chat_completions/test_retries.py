"""Retry backoff, retry budget and circuit breaker."""

import pytest

from bot.backends.chat_completions.retries import CircuitBreaker, RetryBudget, max_backoff_seconds


def test_backoff_grows_to_a_maximum() -> None:
    assert [max_backoff_seconds(retries) for retries in range(7)] == [0.5, 1, 2, 4, 8, 8, 8]


@pytest.mark.parametrize(("calls", "retries"), [(0, 3), (10, 4), (100, 10), (10_000, 10)])
def test_retry_budget_is_ten_percent_of_calls_and_stays_between_three_and_ten(
    calls: int, retries: int
) -> None:
    budget = RetryBudget()
    for _ in range(calls):
        budget.record_call()

    assert sum(budget.try_spend_retry() for _ in range(100)) == retries


def breaker_after(*outcomes: bool) -> CircuitBreaker:
    breaker = CircuitBreaker()
    for success in outcomes:
        breaker.record_outcome(0, succeeded=success)
    return breaker


@pytest.mark.parametrize(
    ("outcomes", "is_closed"),
    [
        ([True, False] * 10, False),
        ([*[True, False] * 9, True, True], True),
        ([False] * 19, True),
        ([*[False] * 9, *[True] * 20, *[False] * 9], True),
    ],
)
def test_breaker_opens_if_half_of_twenty_calls_fail(outcomes: list[bool], is_closed: bool) -> None:
    assert breaker_after(*outcomes).allows_call(0) is is_closed


def breaker_after_outage(*calls: tuple[float, bool]) -> CircuitBreaker:
    """Return a breaker after failed calls, given as pairs of a time and `is_retry`."""
    breaker = CircuitBreaker()
    for at, is_retry in calls:
        breaker.record_outcome(at, succeeded=False, is_service_down=True, is_retry=is_retry)
    return breaker


@pytest.mark.parametrize(
    ("calls", "is_closed"),
    [
        ([(0, False), (0.3, True), (1, False)], False),
        ([(0, False), (1.5, False)], True),
        ([(0, False), (0.5, True), (1.5, True), (3, True)], True),  # one request alone
        ([(0, False), (0.2, False), (0.4, False), (0.9, True)], True),  # hardly a second
    ],
)
def test_breaker_opens_sooner_if_the_provider_is_down_for_a_second(
    calls: list[tuple[float, bool]], is_closed: bool
) -> None:
    assert breaker_after_outage(*calls).allows_call(1 if not is_closed else 9) is is_closed


@pytest.mark.parametrize("success", [True, False])
def test_any_response_counts_as_the_provider_being_up(success: bool) -> None:
    breaker = breaker_after_outage((0, False), (1, False))
    breaker.record_outcome(2, succeeded=success)
    breaker.record_outcome(3, succeeded=False, is_service_down=True)
    breaker.record_outcome(3.5, succeeded=False, is_service_down=True)
    assert breaker.allows_call(3.5) is True


def test_late_failure_of_an_older_call_does_not_delay_the_trial_call() -> None:
    breaker = breaker_after(*[False] * 20)
    breaker.record_outcome(4, succeeded=False, is_service_down=True, is_trial=False)

    assert (breaker.allows_call(5), breaker.failed_trial_count) == (True, 0)


def test_open_breaker_lets_one_call_through_after_a_while() -> None:
    breaker = breaker_after(*[False] * 20)

    assert [breaker.allows_call(now) for now in (4.9, 5, 5.1, 9.9)] == [False, True, False, False]


@pytest.mark.parametrize(
    ("success", "times", "allowed"),
    [
        (None, (5, 7, 15), [False, True]),  # nobody recorded it
        (True, (5, 6, 6), [True, True]),
        (False, (5, 7, 11), [False, True]),
    ],
)
def test_trial_call_closes_the_breaker_or_keeps_it_open(
    success: bool | None, times: tuple[float, float, float], allowed: list[bool]
) -> None:
    breaker = breaker_after(*[False] * 20)
    tried_at, *later = times
    breaker.allows_call(tried_at)
    if success is not None:
        breaker.record_outcome(6, succeeded=success)

    assert [breaker.allows_call(now) for now in later] == allowed

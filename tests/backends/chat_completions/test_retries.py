"""When another try is worth it."""

from bot.backends.chat_completions.retries import CircuitBreaker, RetryBudget, backoff_ceiling


def test_pauses_grow_up_to_a_ceiling() -> None:
    assert [backoff_ceiling(retries) for retries in range(7)] == [0.5, 1, 2, 4, 8, 8, 8]


def test_a_few_retries_are_there_at_the_start() -> None:
    budget = RetryBudget()

    assert [budget.take() for _ in range(4)] == [True, True, True, False]


def test_every_tenth_call_buys_a_retry() -> None:
    budget = RetryBudget(at_first=0)

    taken = 0
    for _ in range(100):
        budget.call()
        taken += budget.take()

    assert taken == 10


def test_calm_times_do_not_save_up_a_storm_of_retries() -> None:
    budget = RetryBudget()
    for _ in range(10_000):
        budget.call()

    assert sum(budget.take() for _ in range(100)) == 10


def breaker_after(*outcomes: bool) -> CircuitBreaker:
    breaker = CircuitBreaker()
    for well in outcomes:
        breaker.record(0, well=well)
    return breaker


def test_breaker_opens_at_half_of_twenty_calls() -> None:
    assert breaker_after(*[True, False] * 10).admits(0) is False


def test_breaker_stays_closed_below_half() -> None:
    assert breaker_after(*[True, False] * 9, True, True).admits(0) is True


def test_breaker_needs_twenty_calls_to_judge() -> None:
    assert breaker_after(*[False] * 19).admits(0) is True


def test_only_the_last_twenty_calls_count() -> None:
    assert breaker_after(*[False] * 9, *[True] * 20, *[False] * 9).admits(0) is True


def test_open_breaker_lets_one_call_through_after_a_while() -> None:
    breaker = breaker_after(*[False] * 20)

    assert [breaker.admits(now) for now in (14.9, 15, 15.1, 29.9)] == [False, True, False, False]


def test_trial_that_nobody_hears_of_does_not_block_the_next() -> None:
    breaker = breaker_after(*[False] * 20)
    breaker.admits(15)

    assert breaker.admits(30) is True


def test_good_trial_closes_it() -> None:
    breaker = breaker_after(*[False] * 20)
    breaker.admits(15)
    breaker.record(16, well=True)

    assert [breaker.admits(16), breaker.admits(16)] == [True, True]


def test_bad_trial_keeps_it_open() -> None:
    breaker = breaker_after(*[False] * 20)
    breaker.admits(15)
    breaker.record(20, well=False)

    assert [breaker.admits(now) for now in (21, 34.9, 35)] == [False, False, True]

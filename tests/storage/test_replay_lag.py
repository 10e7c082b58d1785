"""Test how the lag of a standby is concluded from positions and the times of their reading."""

from bot.storage.replica.replay_lag import Lag, ReplayLag

FOREVER = float("inf")


def noted(*samples: tuple[float, int]) -> ReplayLag:
    lag = ReplayLag()
    for at, position in samples:
        lag.note_primary(at, position)
    return lag


def test_nothing_is_known_before_the_primary_was_asked() -> None:
    assert ReplayLag().measure(1.0, 5) is None


def test_idle_primary_makes_no_lag() -> None:
    assert noted((0, 100), (1, 100), (60, 100)).measure(60.5, 100) == Lag(0, 0.5)


def test_replay_that_stands_still_lags_more_and_more() -> None:
    lag = noted((0, 100), (1, 200), (2, 300))
    assert lag.measure(2, 100) == Lag(1, 2)
    assert lag.measure(30, 100) == Lag(29, 30)
    assert lag.measure(30, 250) == Lag(28, 29)
    assert lag.measure(30, 300) == Lag(0, 28)


def test_primary_that_is_away_makes_no_lag() -> None:
    """Nothing is written that the standby could lack."""
    assert noted((0, 100)).measure(500, 100) == Lag(0, 500)


def test_standby_that_is_behind_all_that_is_remembered_is_not_complete() -> None:
    assert noted((0, 100), (5, 200)).measure(6, 50) == Lag(6, FOREVER)


def test_restored_primary_begins_anew() -> None:
    assert noted((0, 900), (5, 100)).measure(6, 100) == Lag(0, 1)

"""What this process has logged of each message, for the page of the operation."""

from bot.chat.session import error_id_of
from bot.telemetry.logs import RecentEvents


def log(events: RecentEvents, level: str, event: str, **details: object) -> None:
    given = {"event": event, "level": level, "timestamp": "now", **details}
    assert events(None, level, given) is given


def test_failures_are_the_newest_messages_with_warnings() -> None:
    events = RecentEvents()
    log(events, "info", "answer_cut", turn="a:1")
    log(events, "warning", "not_answered", turn="a:2", reason="503")
    log(events, "error", "of_no_message")
    log(events, "error", "turn_failed", turn="a:3")

    assert [one.turn for one in events.failures(9)] == ["a:3", "a:2"]
    assert [one.turn for one in events.failures(1)] == ["a:3"]


def test_failure_is_found_by_the_id_that_people_are_told() -> None:
    events = RecentEvents()
    log(events, "info", "answer_continued", turn="a:1", reason="cut")
    log(events, "warning", "not_answered", turn="a:1", reason="503")

    found = events.failure(error_id_of("a:1"))

    assert found is not None
    assert [one.event for one in found.steps] == ["answer_continued", "not_answered"]
    assert found.newest_failure.details == {"reason": "503"}
    assert events.failure("ffffff") is None


def test_oldest_events_are_dropped() -> None:
    events = RecentEvents(max_events=2)
    for number in range(5):
        log(events, "warning", "not_answered", turn=f"a:{number}", reason="x" * 9999)

    assert [one.turn for one in events.failures(9)] == ["a:4", "a:3"]
    assert len(events.failures(1)[0].steps[0].details["reason"]) == 2000

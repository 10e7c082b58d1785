"""Test that the cache of sessions is bounded, per conversation and in total."""

from datetime import UTC, datetime

from bot.chat.session import Claim, Session, Turn
from bot.storage.session_windows import SessionWindows, create_window


def turns(*texts: str) -> tuple[Turn, ...]:
    return tuple(Turn("user", text, None, datetime(2026, 11, 21, tzinfo=UTC)) for text in texts)


def claim(conversation: str, epoch: int = 1) -> Claim:
    return Claim(conversation, epoch, "me")


def put_window(windows: SessionWindows, conversation: str, *texts: str) -> None:
    windows.move_window_to(claim(conversation))
    windows.put(claim(conversation), create_window(Session(1, turns(*texts)), 100))


def test_conversation_keeps_its_newest_400_turns() -> None:
    window = create_window(Session(1, turns(*map(str, range(399)))), 400)
    assert window.is_complete
    window = window.with_turns(turns("a", "b"))
    assert [turn.text for turn in (window.turns[0], *window.turns[-2:])] == ["1", "a", "b"]
    assert window.newest_session(401) is None
    assert window.newest_session(400) == Session(1, window.turns)
    assert window.size == create_window(Session(1, window.turns), 400).size


def test_least_recent_conversations_are_evicted_when_texts_exceed_the_cache() -> None:
    windows = SessionWindows(max_chars=3000)
    for name in ("a", "b", "c"):
        put_window(windows, name, "x" * 400)
    windows.move_window_to(claim("a", 2))  # it is used again
    put_window(windows, "d", "x" * 400)
    assert windows.get(claim("a", 2)) is not None
    assert windows.get(claim("b")) is None
    assert windows.get(claim("c")) is not None
    assert windows.get(claim("d")) is not None


def test_text_larger_than_the_cache_is_not_cached() -> None:
    windows = SessionWindows(max_chars=3000)
    put_window(windows, "a", "x" * 4000)
    assert windows.get(claim("a")) is None
    put_window(windows, "b", "x")
    assert windows.get(claim("b")) is not None


def test_session_read_under_an_outdated_claim_is_not_cached() -> None:
    windows = SessionWindows()
    put_window(windows, "a", "x")
    window = windows.take(claim("a"))
    assert window is not None
    windows.move_window_to(claim("a", 2))
    windows.put(claim("a"), window)
    assert windows.get(claim("a")) is None
    assert windows.get(claim("a", 2)) is None

"""Answers end where a stop string begins."""

from hypothesis import given
from hypothesis import strategies as st

from bot.backends.chat_completions.stop_strings import StopStrings

SOME = st.text("ab\n", max_size=12)
STOPS = st.lists(st.text("ab\n", min_size=1, max_size=3), max_size=4)


def shown(pieces: list[str], stops: list[str]) -> str:
    stopping = StopStrings(stops)
    return "".join(stopping.feed(piece) for piece in pieces) + stopping.rest()


@given(st.lists(SOME), STOPS)
def test_it_does_not_matter_how_the_text_comes(pieces: list[str], stops: list[str]) -> None:
    whole = "".join(pieces)

    assert shown(list(whole), stops) == shown(pieces, stops)


@given(st.lists(SOME), STOPS)
def test_no_stop_string_is_ever_shown(pieces: list[str], stops: list[str]) -> None:
    text = shown(pieces, stops)

    assert "".join(pieces).startswith(text)
    assert not any(stop in text for stop in stops)


@given(st.lists(SOME))
def test_without_stop_strings_nothing_is_held(pieces: list[str]) -> None:
    stopping = StopStrings([])

    assert [stopping.feed(piece) for piece in pieces] == pieces


def test_only_what_could_become_a_stop_is_held() -> None:
    stopping = StopStrings(["\nBob:"])

    assert stopping.feed("hello\nBo") == "hello"
    assert stopping.feed("ris") == "\nBoris"

"""An answer ends before the first stop string."""

from hypothesis import given
from hypothesis import strategies as st

from bot.backends.chat_completions.stop_strings import StopStringFilter, collect_stop_strings
from tests.backends.asking import prompt

TEXTS = st.text("ab\n", max_size=12)
STOP_STRINGS = st.lists(st.text("ab\n", min_size=1, max_size=3), max_size=4)


def filter_pieces(pieces: list[str], stop: list[str]) -> str:
    stop_filter = StopStringFilter(stop)
    return "".join(stop_filter.feed(piece) for piece in pieces) + stop_filter.flush()


@given(st.lists(TEXTS), STOP_STRINGS)
def test_filter_output_does_not_depend_on_chunking(pieces: list[str], stop: list[str]) -> None:
    whole = "".join(pieces)

    assert filter_pieces(list(whole), stop) == filter_pieces(pieces, stop)


@given(st.lists(TEXTS), STOP_STRINGS)
def test_filter_never_passes_a_stop_string(pieces: list[str], stop: list[str]) -> None:
    text = filter_pieces(pieces, stop)

    assert "".join(pieces).startswith(text)
    assert not any(each in text for each in stop)


@given(st.lists(TEXTS))
def test_filter_without_stop_strings_holds_nothing_back(pieces: list[str]) -> None:
    stop_filter = StopStringFilter([])

    assert [stop_filter.feed(piece) for piece in pieces] == pieces


def test_filter_holds_back_only_a_possible_stop_string() -> None:
    stop_filter = StopStringFilter(["\nBob:"])

    assert stop_filter.feed("hello\nBo") == "hello"
    assert stop_filter.feed("ris") == "\nBoris"


def test_stop_parameter_is_added_to_the_prompts_stop_strings() -> None:
    assert collect_stop_strings(prompt(stop=("a",), parameters={"stop": ["b"]})) == ("a", "b")
    assert collect_stop_strings(prompt(parameters={"stop": "c"})) == ("c",)

"""Speaker tags are removed from an answer while it streams."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bot.prompting.speakers import EchoFilter

TABLES = json.loads((Path(__file__).parent / "answers.json").read_text("utf-8"))
OTHERS = ("Alice", "Bob#a3f1", "小明")


def filter_stream(own: str | None, pieces: Sequence[str]) -> str:
    echo_filter = EchoFilter(own, OTHERS)
    return "".join([echo_filter.feed(piece) for piece in pieces]) + echo_filter.finish()


@pytest.mark.parametrize("answer", TABLES["own"])
def test_own_speaker_tag_at_the_beginning_is_removed(answer: str) -> None:
    assert filter_stream("Nora", list(answer)) == "hello"


@pytest.mark.parametrize("answer", TABLES["kept"])
def test_answer_without_a_speaker_tag_is_unchanged(answer: str) -> None:
    assert filter_stream("Nora", list(answer)) == answer


def test_markup_after_the_speaker_tag_is_kept() -> None:
    assert filter_stream("Nora", ["Nora: *waves*"]) == "*waves*"
    assert filter_stream("Nora", ["**Nora:** **no**"]) == "**no**"


def test_own_speaker_tag_is_removed_from_every_line() -> None:
    assert filter_stream("Nora", ["one\nNora: two\n\n**Nora:** three"]) == "one\ntwo\n\nthree"


@pytest.mark.parametrize("line", TABLES["others"])
def test_answer_ends_at_another_speakers_tag(line: str) -> None:
    echo_filter = EchoFilter("Nora", OTHERS)
    shown = "".join(echo_filter.feed(piece) for piece in f"I see.\n{line}\nNora: more")
    assert (shown + echo_filter.finish()).rstrip() == "I see."
    assert echo_filter.has_ended


def test_leading_tag_of_another_speaker_is_removed() -> None:
    assert filter_stream("Nora", ["Alice: that is kind.\nBob: no"]).rstrip() == "that is kind."


@given(
    st.lists(
        st.sampled_from(TABLES["pieces"]),
        max_size=14,
    ).map("".join),
    st.integers(1, 5),
)
def test_result_does_not_depend_on_the_chunks(answer: str, size: int) -> None:
    pieces = [answer[at : at + size] for at in range(0, len(answer), size)]
    assert filter_stream("Nora", pieces) == filter_stream("Nora", [answer])


@given(st.lists(st.sampled_from(["Nora: ", "Alice: ", "\n", "hm ", "**Alice:** "]), max_size=12))
def test_no_visible_line_begins_with_a_tag(pieces: list[str]) -> None:
    shown = filter_stream("Nora", pieces)
    assert not [
        line for line in shown.splitlines() if line.lstrip("* ").startswith(("Nora:", "Alice:"))
    ]


def test_without_a_speaker_no_text_is_held_back() -> None:
    assert EchoFilter(None).feed("No") == "No"

"""Test the output filter: filtered texts never show, not even while the answer streams."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bot.replying.filters import OutputFilter, apply_filters
from tests.shared_data import golden

# Few letters, so that texts overlap and removals join into new matches.
texts = st.text("ab<| \n", max_size=40)
words = st.lists(st.text("ab<| ", min_size=1, max_size=4), max_size=4)


def stream(pieces: list[str], filter_chars: list[str]) -> list[str]:
    output = OutputFilter(filter_chars)
    return [*(output.feed(piece) for piece in pieces), output.finish()]


@given(texts, words, st.lists(st.integers(0, 40), max_size=8))
def test_chunking_does_not_change_the_text(text: str, unwanted: list[str], cuts: list[int]) -> None:
    positions = sorted({0, *(min(cut, len(text)) for cut in cuts), len(text)})
    pieces = [text[start:end] for start, end in pairwise(positions)]

    assert "".join(stream(pieces, unwanted)) == apply_filters(text, unwanted)


def test_text_that_may_become_unwanted_is_held_back() -> None:
    assert stream(["Hi <|e", "nd|> you <|", "x|>"], ["<|end|>"]) == ["Hi", "  you", " <|x|>", ""]


def test_text_is_held_back_through_all_filters() -> None:
    # Without "x" the rest is "ab", which the second stage takes away.
    assert stream(["a", "x", "b", "c"], ["x", "ab"]) == ["", "", "", "c", ""]


def test_order_of_the_filters_matters() -> None:
    assert apply_filters("axbc", ["ab", "x"]) == "abc"


@pytest.mark.parametrize(
    "case",
    [case for case in golden("rodel_templates") if case["input"]["op"] == "filter_chars"],
    ids=lambda case: case["id"],
)
def test_filters_match_rodelagent(case: dict[str, Any]) -> None:
    text, unwanted = case["input"]["text"], case["input"]["filter_chars"]

    assert apply_filters(text, unwanted) == case["expected"]
    assert "".join(stream(list(text), unwanted)) == case["expected"]

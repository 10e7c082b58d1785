"""Texts are compared quickly, however long they are."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bot.console.differences import compare_lines, compare_texts, find_edits

_ITEMS = st.lists(st.sampled_from("abcdef"), max_size=12)


def rebuild(before: list[str], after: list[str]) -> list[str]:
    """Rebuild the second sequence from the equal and the added parts."""
    made: list[str] = []
    for tag, begin, end, other, other_end in find_edits(before, after):
        made += before[begin:end] if tag == "equal" else after[other:other_end]
    return made


@given(_ITEMS, _ITEMS)
def test_opcodes_transform_one_sequence_into_the_other(before: list[str], after: list[str]) -> None:
    assert rebuild(before, after) == after


@pytest.mark.timeout(120)
def test_many_repeated_lines_are_compared_quickly() -> None:
    """Plain difflib would take many minutes."""
    before = [line for at in range(5000) for line in ("{", f"a{at}", "},", "")]
    after = [line for at in range(5000) for line in ("{", f"b{at}", "},", "")]

    assert rebuild(before, after) == after


@given(st.text(max_size=60), st.text(max_size=60))
def test_comparison_contains_both_texts(before: str, after: str) -> None:
    pieces = compare_texts(before, after)

    assert "".join(one.text for one in pieces if one.change != "added") == before
    assert "".join(one.text for one in pieces if one.change != "removed") == after


def test_comparison_shows_what_changed() -> None:
    pieces = compare_texts("the old lamp", "the new lamp")

    assert [(one.text, one.change) for one in pieces] == [
        *(("the ", "same"), ("old", "removed"), ("new", "added"), (" lamp", "same"))
    ]


def test_only_the_first_of_many_different_lines_are_shown() -> None:
    before, after = ("\n".join(f"{word}{at}" for at in range(50_000)) for word in ("a", "b"))

    lines, changes = compare_lines(before, after)

    assert changes == 1
    assert len(lines) == 2001
    assert lines[-1].text == "…"


def test_equal_lines_around_changes_are_shown() -> None:
    before = [str(number) for number in range(30)]
    after = [*before[:5], "five", *before[6:9], "nine", *before[10:29]]

    lines, changes = compare_lines("\n".join(before), "\n".join(after))

    assert changes == 3
    assert [(one.change, one.text) for one in lines if one.change != "same"] == [
        *(("removed", "5"), ("added", "five"), ("removed", "9"), ("added", "nine")),
        ("removed", "29"),
    ]
    assert [one.text for one in lines][12:20] == ["10", "11", "12", "…", "26", "27", "28", "29"]

"""Whole words are found in every script."""

import pytest

from bot.prompting.text.words import find_word


@pytest.mark.parametrize(
    ("word", "text", "index"),
    [
        ("ana", "is ana here", 3),
        ("ana", "banana", None),
        ("ana", "banana, ana", 8),
        ("ana", "ana_2 ana2", None),
        ("nova-9", "(nova-9)", 1),
        ("龙", "红龙睡了", 1),
        ("ドラ", "ドラー", 0),
        ("마을", "마을은 어디", 0),
        ("nora", "nora는 어디", 0),
        ("नी", "नीला", None),
        ("", "anything", None),
    ],
)
def test_word_is_found_where_no_letter_continues_it(
    word: str, text: str, index: int | None
) -> None:
    assert find_word(word, text) == index

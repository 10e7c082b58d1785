"""Texts in every script are split into words."""

import json
from pathlib import Path

import pytest

from bot.prompting.text.words import find_word

WORDS = json.loads((Path(__file__).parent / "words.json").read_text("utf-8"))


@pytest.mark.parametrize(("word", "text", "index"), WORDS)
def test_word_does_not_match_inside_a_longer_word(word: str, text: str, index: int | None) -> None:
    assert find_word(word, text) == index

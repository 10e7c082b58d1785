"""Checks that errors about rejected files are translatable."""

import re

from bot.texts.text import Text, error_text, translate

_CHINESE = re.compile("[\u4e00-\u9fff]")
_ENGLISH = re.compile(
    r"\b(the|must|should|cannot|is|are|in|use|write|not|it|its|with|unexpected|again)\b"
)
_VALUES = re.compile(r"`[^`]*`|\"[^\"]*\"|（[^）]*）")
"""Commands, words quoted from the file, and Python's messages about a damaged file."""


def assert_is_chinese(text: str) -> None:
    assert _CHINESE.search(text), text
    assert not _ENGLISH.search(_VALUES.sub("", text)), text


def assert_has_a_translation(error: Exception) -> None:
    told = error_text(error)
    assert isinstance(told, Text), told
    assert_is_chinese(translate(told, "zh"))

"""Test values of bot.chat: texts become storable."""

from hypothesis import given
from hypothesis import strategies as st

from bot.chat.incoming import to_storable_text


def test_surrogate_pairs_are_joined_and_invalid_characters_are_replaced() -> None:
    assert to_storable_text("a\0b \ud83c\udfad \ud83c") == "a\ufffdb 🎭 \ufffd"


@given(st.text(st.characters(codec=None)))
def test_any_text_becomes_storable_and_ordinary_text_is_unchanged(text: str) -> None:
    stored = to_storable_text(text)

    assert "\0" not in stored
    assert stored.encode().decode() == stored
    if not any(sign == "\0" or "\ud800" <= sign <= "\udfff" for sign in text):
        assert stored == text

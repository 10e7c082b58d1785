"""What people and files spell can be stored, and ordinary text stays as it is."""

from hypothesis import given
from hypothesis import strategies as st

from bot.chat.storable import make_storable


def test_halves_of_a_pair_are_joined_and_what_stands_alone_is_replaced() -> None:
    assert make_storable("a\0b \ud83c\udfad \ud83c") == "a\ufffdb 🎭 \ufffd"


@given(st.text(st.characters(codec=None)))
def test_any_text_can_be_stored_and_ordinary_text_stays_as_it_is(text: str) -> None:
    stored = make_storable(text)

    assert "\0" not in stored
    assert stored.encode().decode() == stored
    if not any(sign == "\0" or "\ud800" <= sign <= "\udfff" for sign in text):
        assert stored == text

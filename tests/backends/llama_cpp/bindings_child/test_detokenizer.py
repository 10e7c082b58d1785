"""Tokens become text: whole characters, and nothing after the end."""

from hypothesis import given
from hypothesis import strategies as st

from bot.backends.llama_cpp.bindings_request import Detokenizer

END = 256  # tokens are bytes here, but for this one


def detokenizer(*stop: str) -> Detokenizer:
    return Detokenizer(lambda token: bytes([token]), ends={END}, stop=stop)


def shown(detokenizer: Detokenizer, tokens: list[int]) -> str:
    text = ""
    for token in tokens:
        text += detokenizer.add(token)
        if detokenizer.ended:
            return text
    return text + detokenizer.flush()


@given(st.text())
def test_text_round_trips_through_tokens(text: str) -> None:
    assert shown(detokenizer(), [*text.encode(), END]) == text


def test_character_is_returned_with_its_last_token() -> None:
    emoji = detokenizer()

    assert [emoji.add(token) for token in "🎭".encode()] == ["", "", "", "🎭"]


def test_incomplete_character_at_the_end_is_replaced() -> None:
    assert shown(detokenizer(), [*"a🎭".encode()][:3]) == "a\ufffd"


def test_end_token_has_no_text() -> None:
    ended = detokenizer()

    assert shown(ended, [*b"yes", END, *b"no"]) == "yes"
    assert ended.ended


def test_stop_string_across_tokens_ends_the_text() -> None:
    stopped = detokenizer("\nAnn:")

    assert shown(stopped, [*b"yes\nAnn: no"]) == "yes"
    assert stopped.ended


def test_partial_stop_string_at_the_end_is_returned() -> None:
    assert shown(detokenizer("\nAnn:"), [*b"yes\nAn", END]) == "yes\nAn"

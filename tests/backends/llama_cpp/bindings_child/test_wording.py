"""Tokens become text: whole characters, and nothing after the end."""

from hypothesis import given
from hypothesis import strategies as st

from bot.backends.llama_cpp.bindings_child.wording import Wording

END = 256  # tokens are bytes here, but for this one


def wording(*stop: str) -> Wording:
    return Wording(lambda token: bytes([token]), ends={END}, stop=stop)


def shown(wording: Wording, tokens: list[int]) -> str:
    text = ""
    for token in tokens:
        text += wording.take(token)
        if wording.ended:
            return text
    return text + wording.rest()


@given(st.text())
def test_text_comes_out_as_it_was_cut_into_tokens(text: str) -> None:
    assert shown(wording(), [*text.encode(), END]) == text


def test_a_character_is_shown_when_its_last_token_has_come() -> None:
    emoji = wording()

    assert [emoji.take(token) for token in "🎭".encode()] == ["", "", "", "🎭"]


def test_half_a_character_at_the_end_is_shown_as_such() -> None:
    assert shown(wording(), [*"a🎭".encode()][:3]) == "a\ufffd"


def test_a_token_that_ends_the_answer_has_no_text() -> None:
    ended = wording()

    assert shown(ended, [*b"yes", END, *b"no"]) == "yes"
    assert ended.ended


def test_a_stop_string_ends_the_answer_across_tokens() -> None:
    stopped = wording("\nAnn:")

    assert shown(stopped, [*b"yes\nAnn: no"]) == "yes"
    assert stopped.ended


def test_what_only_began_like_a_stop_string_is_shown() -> None:
    assert shown(wording("\nAnn:"), [*b"yes\nAn", END]) == "yes\nAn"

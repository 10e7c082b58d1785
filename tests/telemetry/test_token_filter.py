"""Tokens in a text that arrives in pieces are masked, as they are in the whole text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bot.telemetry.secret_masker import TokenFilter, mask_pasted_tokens

TOKENS = (
    "sk-proj-FAKE0000000000000000000000000000",
    "xai-FAKE00000000000000000",
    "ghp_FAKE0000000000000000",
    "110000000:AAFAKE0000000000000000000000000000000",
    "MTA0NTY3ODkwMTIzNDU2Nzg5.GaBcDe.FAKE00000000000000000000000000",
    "AIzaFAKE00000000000000000000000000000000",
    "AKIAFAKE000000000000",
    "eyJGQUtFRkFLRUZBS0VGQUtFIn0.eyJzdWIiOiIxIn0.FAKE",
    "postgresql://bot:s3cr3t%40pw@db/chat",
    "-----BEGIN RSA PRIVATE KEY-----\nFAKE FAKE\n-----END RSA PRIVATE KEY-----",
)
WORDS = (
    *("hello", "Nothing", "MDMA", "sk-learning", "https://example.org/a:b", "12:30", "你好", "x"),
    *("-----BEGIN CERTIFICATE-----", "---", "sk", "", "1234567890", "://", "s-s", "nvapi", "eye"),
)


def filtered(pieces: list[str]) -> str:
    one = TokenFilter()
    return "".join([*(one.feed(piece) for piece in pieces), one.finish()])


@pytest.mark.parametrize("token", TOKENS)
def test_token_is_masked_wherever_it_is_cut(token: str) -> None:
    text = f"It is {token}, and more."
    expected = mask_pasted_tokens(text)
    assert "***" in expected
    for cut in range(len(text)):
        assert filtered([text[:cut], text[cut:]]) == expected
    assert filtered(list(text)) == expected


@given(
    st.lists(st.tuples(st.sampled_from(TOKENS + WORDS), st.sampled_from(' \n,"。(;'))).map(
        lambda parts: "".join(f"{word}{end}" for word, end in parts)
    ),
    st.lists(st.integers(1, 30), min_size=1),
)
def test_pieces_are_masked_as_the_whole_text_is(text: str, sizes: list[int]) -> None:
    pieces: list[str] = []
    at = 0
    while at < len(text):
        size = sizes[len(pieces) % len(sizes)]
        pieces.append(text[at : at + size])
        at += size
    assert filtered(pieces) == mask_pasted_tokens(text)


def test_ordinary_words_are_shown_at_once() -> None:
    one = TokenFilter()
    assert [one.feed(piece) for piece in ("Hel", "lo ", "you", " 2", "0 ", "…")] == [
        *("Hel", "lo ", "you", " ", "20 ", "…")
    ]


def test_endless_word_is_not_held_back_for_ever() -> None:
    one = TokenFilter()
    shown = sum(len(one.feed("1" * 1000)) for _ in range(100))
    assert shown > 50_000

"""Tokens are masked in streamed text exactly as in the whole text."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bot.telemetry.secret_masker import SecretTokenFilter, mask_pasted_tokens

_FILE = Path(__file__).with_name("fake_tokens.txt")
TOKENS = tuple(line.replace("\\n", "\n") for line in _FILE.read_text("utf-8").splitlines())
WORDS = (
    *("hello", "Nothing", "MDMA", "sk-learning", "https://example.org/a:b", "12:30", "你好", "x"),
    *("SG", "SKILL_1", "npm_x", "hvs.", "github", "https://x/webhooks/12", "dapifer"),
    *("-----BEGIN CERTIFICATE-----", "---", "sk", "", "1234567890", "://", "s-s", "nvapi", "eye"),
    "/services/T1",
)


def filter_pieces(pieces: list[str]) -> str:
    one = SecretTokenFilter()
    return "".join([*(one.feed(piece) for piece in pieces), one.finish()])


@pytest.mark.parametrize("token", TOKENS)
def test_token_is_masked_wherever_the_stream_splits_it(token: str) -> None:
    text = f"It is {token}, and more."
    expected = mask_pasted_tokens(text)
    assert "***" in expected
    for cut in range(len(text)):
        assert filter_pieces([text[:cut], text[cut:]]) == expected
    assert filter_pieces(list(text)) == expected


@given(
    st.lists(st.tuples(st.sampled_from(TOKENS + WORDS), st.sampled_from(' \n,"。(;'))).map(
        lambda parts: "".join(f"{word}{end}" for word, end in parts)
    ),
    st.lists(st.integers(1, 30), min_size=1),
)
def test_streamed_pieces_are_masked_like_the_whole_text(text: str, sizes: list[int]) -> None:
    pieces: list[str] = []
    at = 0
    while at < len(text):
        size = sizes[len(pieces) % len(sizes)]
        pieces.append(text[at : at + size])
        at += size
    assert filter_pieces(pieces) == mask_pasted_tokens(text)


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("DB_PASSWORD=hunter2hunter2", "DB_PASSWORD=***ter2"),
        ("OPENAI_API_KEY: 'FAKE00000000'", "OPENAI_API_KEY: '***0000'"),
        ('{"password": "correct-horse-1"}', '{"password": "***se-1"}'),
        ("Authorization: Bearer FAKE000000000000", "Authorization: Bearer ***0000"),
        ("aws_secret_access_key = wJalr/K7MDENG/bPx", "aws_secret_access_key = ***/bPx"),
        ("AccountKey=FAKE0000FAKE0000==;x", "AccountKey=***00==;x"),
        ("https://x.example/?a=1&sig=FAKE0000FAKE&b", "https://x.example/?a=1&sig=***FAKE&b"),
        ("sk-\u200bproj-FAKE00000000\u200b00000000", "***0000"),
        ("password: swordfish", "password: swordfish"),  # a word of a story
        ("the secret is out, the key is under the mat", None),
        ("token = tokenizer.next()", None),
        ("a\u200bb, 👩\u200d👧", None),
    ],
)
def test_named_secret_that_a_person_pastes_is_masked(text: str, masked: str | None) -> None:
    assert mask_pasted_tokens(text) == (masked or text)


def test_ordinary_words_are_not_held_back() -> None:
    one = SecretTokenFilter()
    assert [one.feed(piece) for piece in ("Hel", "lo ", "you", " 2", "0 ", "…")] == [
        *("Hel", "lo ", "you", " ", "20 ", "…")
    ]


def test_long_word_without_end_is_not_held_back_forever() -> None:
    one = SecretTokenFilter()
    shown = sum(len(one.feed("1" * 1000)) for _ in range(100))
    assert shown > 50_000

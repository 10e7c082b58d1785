"""Tokens are counted as the library's public function counts them, cached or not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toktok import batch_count

from bot.prompting.text.token_counter import ENCODINGS, EncodingCounter

TEXTS = st.text() | st.text("e\u0301\u0065한\u1112\u1161 <|endoftext|>\ud800👩🏽\u200d🚀\n")


@pytest.mark.parametrize("encoding", sorted(set(ENCODINGS.values())))
@given(texts=st.lists(TEXTS, max_size=4))
def test_count_equals_the_public_function_of_the_library(encoding: str, texts: list[str]) -> None:
    counter = EncodingCounter(encoding)
    readable = [text.encode(errors="replace").decode() for text in texts]
    counts = batch_count(readable, encoding)
    assert counter(texts) == counts
    assert counter(texts) == counts, "from the cache"


def test_special_tokens_count_as_plain_text() -> None:
    assert EncodingCounter("cl100k_base")(["<|endoftext|>"]) == batch_count(["<|endoftext|>"])
    assert EncodingCounter("cl100k_base")(["<|endoftext|>"])[0] > 1

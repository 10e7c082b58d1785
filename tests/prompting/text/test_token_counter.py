"""Token counts match the library's public function, whether cached or not."""

import asyncio
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toktok import _encoding as read_encoding
from toktok import batch_count

from bot.prompting.text.tokens import ENCODINGS, EncodingCounter

TEXTS = st.text() | st.text("e\u0301\u0065한\u1112\u1161 <|endoftext|>\ud800👩🏽\u200d🚀\n")


@pytest.mark.parametrize("encoding", sorted(set(ENCODINGS.values())))
@given(texts=st.lists(TEXTS, max_size=4))
def test_counts_equal_those_of_tiktoken(encoding: str, texts: list[str]) -> None:
    counter = EncodingCounter(encoding)
    readable = [text.encode(errors="replace").decode() for text in texts]
    counts = batch_count(readable, encoding)
    assert counter(texts) == counts
    assert counter(texts) == counts, "from the cache"


async def test_concurrent_chats_load_an_encoding_in_one_thread_at_a_time() -> None:
    reading, most_at_once = 0, 0
    counted = threading.Lock()

    def read(encoding: str) -> Any:
        nonlocal reading, most_at_once
        with counted:
            reading += 1
            most_at_once = max(most_at_once, reading)
        found = read_encoding(encoding)
        with counted:
            reading -= 1
        return found

    counter = EncodingCounter("qwen3.5", read)
    async with asyncio.TaskGroup() as group:
        for _ in range(8):
            group.create_task(counter.load())
    assert most_at_once == 1
    assert counter(["two words"]) == batch_count(["two words"], "qwen3.5")

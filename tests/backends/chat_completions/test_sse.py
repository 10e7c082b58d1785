"""Server-sent events."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bot.backends.chat_completions.streaming import SseParser

FIELDS = ["data: a", "data:b", "data:  c", "data", "data:", "data: 日本 🎉", "", ""]
OTHERS = [": keep-alive", "event: ping", "id: 1", "datax: no"]
LINES = st.lists(st.sampled_from([*FIELDS, *OTHERS]))
ENDS = st.sampled_from(["\n", "\r\n", "\r"])


def all_events(chunks: list[bytes]) -> list[bytes]:
    stream = SseParser()
    return [event for chunk in chunks for event in stream.feed(chunk)] + stream.flush()


def split_at(whole: bytes, offsets: list[int]) -> list[bytes]:
    at = sorted({0, len(whole), *(offset % (len(whole) + 1) for offset in offsets)})
    return [whole[start:end] for start, end in pairwise(at)]


@given(LINES, ENDS, st.lists(st.integers(0, 1000)))
def test_events_do_not_depend_on_chunking(lines: list[str], end: str, offsets: list[int]) -> None:
    whole = end.join(lines).encode()

    assert all_events(split_at(whole, offsets)) == all_events([whole])


@given(st.binary(), st.lists(st.integers(0, 1000)))
def test_arbitrary_bytes_are_accepted(noise: bytes, offsets: list[int]) -> None:
    assert all_events(split_at(noise, offsets)) == all_events([noise])


@given(LINES, st.lists(st.integers(0, 1000)))
def test_all_three_line_endings_are_equivalent(lines: list[str], offsets: list[int]) -> None:
    feeds, crlf, returns = (end.join(lines).encode() for end in ("\n", "\r\n", "\r"))

    assert (
        all_events(split_at(crlf, offsets))
        == all_events([feeds])
        == all_events(split_at(returns, offsets))
    )


@pytest.mark.parametrize(
    ("stream", "events"),
    [
        (b"data: {\ndata:  1}\n\n", [b"{\n 1}"]),
        (b"data:a\n\ndata: b\n\ndata:  c\n\n", [b"a", b"b", b" c"]),
        (b": hi\n\nevent: ping\n\nid: 1\nretry: 2\n\n", []),
        (b"data: [DONE]", [b"[DONE]"]),  # without an empty line at the end
        (b"\xef\xbb\xbfdata: a\n\n", [b"a"]),
    ],
)
def test_data_lines_become_events(stream: bytes, events: list[bytes]) -> None:
    assert all_events([stream]) == events


@pytest.mark.parametrize(
    "chunks",
    [[b"data: " + b"x" * 101], [b"data: ", *[b"x"] * 95], [b"data: 0123456789\n" * 11]],
    ids=["a line", "in small chunks", "short lines"],
)
def test_event_beyond_the_limit_is_rejected(chunks: list[bytes]) -> None:
    stream = SseParser(max_event_bytes=100)
    with pytest.raises(ValueError, match="more than 100 bytes"):
        list(map(stream.feed, chunks))


def test_limit_applies_to_each_event() -> None:
    stream = SseParser(max_event_bytes=100)

    assert sum(len(stream.feed(b"data: 0123456789\n\n")) for _ in range(1000)) == 1000

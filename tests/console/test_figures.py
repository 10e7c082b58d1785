"""Figures add up, and text from people never becomes HTML."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import Markup

from bot.chat.prompt import Usage
from bot.chat.receipt import Timings
from bot.chat.web_channel import WebMessage
from bot.console.answer_pages import build_waterfall
from bot.console.message_view import view_message
from bot.console.prompt_view import make_budget_segments
from tests.support.store import RECEIPT


@given(tokens=st.integers(1, 10**6), limit=st.none() | st.integers(1, 10**6))
def test_budget_segments_add_up(tokens: int, limit: int | None) -> None:
    segments = make_budget_segments(replace(RECEIPT, usage=Usage(tokens), limit=limit))

    assert sum(one.tokens for one in segments if one.section != "free") == tokens
    free = sum(one.tokens for one in segments if one.section == "free")
    assert free == max(0, (limit or 0) - tokens)
    before = [sum(one.tokens for one in segments[:at]) for at in range(len(segments))]
    assert [one.begin for one in segments] == before


def test_waterfall_shows_steps_edits_and_delivery_in_order() -> None:
    steps = build_waterfall(replace(RECEIPT, timings=Timings(1.0, 2.0, 5.0, 0.25)))
    assert [(one.name, one.seconds) for one in steps] == [
        *(("received", 0.0), ("waited", 0.75), ("composed", 0.25), ("prefill", 2.0)),
        ("decode", 3.0),
    ]
    assert [one.begin_seconds for one in steps] == [0, 0, 0.75, 1, 3]
    without_a_word = build_waterfall(replace(RECEIPT, timings=Timings(0.0, None, 2.0)))
    assert [one.seconds for one in without_a_word] == [0, 0, 0, 2, 0]

    timings = Timings(1.0, 2.0, 5.0, 0.25, edits=(4.0, 5.5), received_at=1_000.0)
    *_, edits, delivered = build_waterfall(replace(RECEIPT, timings=timings), 10.0)
    assert (edits.name, edits.seconds, edits.begin_seconds, edits.event_seconds) == (
        "edits",
        1.5,
        4,
        (4, 5.5),
    )
    assert (delivered.name, delivered.seconds) == ("delivered", 4.0)
    assert (delivered.begin_seconds, delivered.end_seconds) == (6, 10)

    shown_whole_before = Timings(1.0, 2.0, 5.0, edits=(4.0, 6.5), received_at=1_000.0)
    last = build_waterfall(replace(RECEIPT, timings=shown_whole_before), 4.0)[-1]
    assert (last.name, last.seconds) == ("delivered", 0.5)


_REST = 'rel="noreferrer noopener" target="_blank"'


def html_of(text: str) -> Markup:
    message = WebMessage("1", None, text, datetime(2026, 1, 5, tzinfo=UTC))
    return view_message(message, {}).html


def test_url_in_an_answer_becomes_a_link_and_cannot_escape_its_attribute() -> None:
    address = "http://127.0.0.1:8710/answers/3"
    html = html_of(f"In the console: {address}.")
    assert html == f'In the console: <a href="{address}" {_REST}>{address}</a>.'

    html = html_of('https://a.example/"onmouseover=alert(1)<script>')
    assert html.count("<") == html.count("</a>") * 2
    assert '"onmouseover' not in html
    assert "<script" not in html


@pytest.mark.parametrize(
    ("text", "links"),
    [
        ("`https://a.example`", 0),
        ("[there](https://a.example)", 1),
        ("[https://a.example](https://a.example)", 1),
        ("**https://a.example/x?y=1&z=2**", 1),
        ("javascript:alert(1) ftp://a.example", 0),
    ],
)
def test_urls_in_code_and_links_do_not_become_links(text: str, links: int) -> None:
    assert html_of(text).count("<a ") == links

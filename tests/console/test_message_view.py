"""Messages as HTML: addresses are links, and every text stays a text."""

from datetime import UTC, datetime

import pytest
from markupsafe import Markup

from bot.chat.web_channel import WebMessage
from bot.console.message_view import view_message

_REST = 'rel="noreferrer noopener" target="_blank"'


def html_of(text: str) -> Markup:
    message = WebMessage("1", None, text, datetime(2026, 1, 5, tzinfo=UTC))
    return view_message(message, {}).html


def test_address_in_an_answer_is_a_link() -> None:
    address = "http://127.0.0.1:8710/answers/3"

    html = html_of(f"In the console: {address}.")

    assert html == f'In the console: <a href="{address}" {_REST}>{address}</a>.'


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
def test_links_stand_in_no_code_and_in_no_other_link(text: str, links: int) -> None:
    assert html_of(text).count("<a ") == links


def test_address_cannot_leave_its_attribute() -> None:
    html = html_of('https://a.example/"onmouseover=alert(1)<script>')

    assert html.count("<") == html.count("</a>") * 2
    assert '"onmouseover' not in html
    assert "<script" not in html

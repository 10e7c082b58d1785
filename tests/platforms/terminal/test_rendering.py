"""Test how answers are rendered in a terminal."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bot.platforms.terminal.rendering import TextRenderer

FOLDER = Path(__file__).parent
TEXT = (FOLDER / "answer_source.txt").read_text("utf-8")
COLORS = re.compile(r"\x1b\[[\d;]*m")


def whole(text: str, columns: int = 60) -> str:
    return COLORS.sub("", TextRenderer(lambda: columns).render_answer(text))


def test_markdown_is_rendered_for_a_terminal() -> None:
    assert whole(TEXT) == (FOLDER / "answer_shown.txt").read_text("utf-8").removesuffix("\n")


@pytest.mark.parametrize("columns", [20, 60, 80])
def test_no_line_is_wider_than_the_terminal(columns: int) -> None:
    text = TEXT.replace("def f(x):", "x")  # code that can be copied is not wrapped
    for line in whole(text, columns).split("\n"):
        assert len(line) + sum(letter > "\u2e80" for letter in line) < columns, line


def test_code_is_wrapped_only_where_it_would_be_cut_off() -> None:
    long = " ".join(["word"] * 30)
    assert long in whole(f"```\n{long}\n```")
    nested = whole(f"- a\n\n  ```\n  {long}\n  ```")
    assert nested.count("word") == 30
    assert max(map(len, nested.split("\n"))) < 60


@given(st.text(alphabet="ab *_`~#>-|[]()\n1.<你，", max_size=60))
def test_any_text_is_rendered_within_its_columns(text: str) -> None:
    prose = text.replace("`", "").replace("~", "").replace("  ", " ")
    assert all(len(line) < 60 for line in whole(prose).split("\n"))

"""Markdown is converted to text with spans, including tables and formulas."""

import tomllib
from pathlib import Path

import pytest

from bot.markup.styled_text import Style, style_markdown
from bot.markup.tables import display_width, format_table
from bot.markup.tex import tex_to_unicode

TABLES = tomllib.loads(Path(__file__).with_name("markdown.toml").read_text("utf-8"))


def shown(source: str) -> tuple[str, list[list[str]]]:
    styled = style_markdown(source)
    spans = [[one.style.value, styled.text[one.start : one.end]] for one in styled.spans]
    return styled.text, spans


@pytest.mark.parametrize(("source", "text", "spans"), TABLES["styled"])
def test_markdown_becomes_text_with_spans(source: str, text: str, spans: list[list[str]]) -> None:
    assert shown(source) == (text, spans)


def test_table_becomes_code_with_aligned_columns() -> None:
    text, [(style, block)] = shown("| 名字 | n |\n|---|--:|\n| 苹果 | 1 |\n| pear | 10 |")
    assert style == Style.CODE_BLOCK.value
    assert block == text == "名字 │  n\n─────┼───\n苹果 │  1\npear │ 10"
    assert {display_width(line) for line in text.split("\n")} == {9}


def test_table_with_long_cells_becomes_a_list() -> None:
    rows = [["Name", "Story"], ["Nora", "s" * 60], ["Bram", "short"]]
    assert format_table(rows, ["left"] * 2) == (
        f"Name: Nora\nStory: {'s' * 60}\n\nName: Bram\nStory: short"
    )


@pytest.mark.parametrize(("tex", "text"), TABLES["formulas"])
def test_formulas_are_readable(tex: str, text: str) -> None:
    assert tex_to_unicode(tex) == text


@pytest.mark.parametrize("tex", ["{" * 5000, "^" * 5000, r"\frac" * 5000, "\\", "_{", "}"])
def test_malformed_formulas_are_converted_without_an_error(tex: str) -> None:
    assert tex_to_unicode(tex)

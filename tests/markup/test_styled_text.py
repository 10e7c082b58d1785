"""Markdown as readers are to see it: texts, spans, tables, formulas."""

import pytest

from bot.markup.maths import set_maths
from bot.markup.styled_text import Style, style_markdown
from bot.markup.tables import display_width, set_table


def shown(source: str) -> tuple[str, list[tuple[str, str]]]:
    styled = style_markdown(source)
    return styled.text, [
        (one.style.value, styled.text[one.start : one.end]) for one in styled.spans
    ]


@pytest.mark.parametrize(
    ("source", "text", "spans"),
    [
        ("plain, 2 < 3", "plain, 2 < 3", []),
        ("# Title\n**b** *i*", "Title\nb i", [("bold", "Title"), ("bold", "b"), ("italic", "i")]),
        ("***both** one*", "both one", [("italic", "both one"), ("bold", "both")]),
        ("**a `b` c**", "a b c", [("bold", "a"), ("code", "b"), ("bold", "c")]),
        ("~~gone~~ ||later||", "gone later", [("strikethrough", "gone"), ("spoiler", "later")]),
        ("||a `b`||", "a b", [("spoiler", "a b")]),
        ("- a\n- b\n  - c\n\n3. x\n4. y", "• a\n• b\n  ◦ c\n\n3. x\n4. y", []),
        ("- [ ] open\n- [x] done", "• ☐ open\n• ☑ done", []),
        ("> q **b**\n> r\n\nafter", "q b\nr\n\nafter", [("quote", "q b\nr"), ("bold", "b")]),
        ("```py\nx = 1\n```\nend", "x = 1\nend", [("code_block", "x = 1")]),
        ("```py\nstill open", "still open", [("code_block", "still open")]),
        ("[e](https://e.org)", "e", [("link", "e")]),
        ("[me](tg://user?id=1)", "me (tg://user?id=1)", []),
        ("[https://a.b](https://c.d)", "https://a.b (https://c.d)", []),
        ("a\n\n---\nb", "a\n\n⸻\nb", []),
        ("half **a bold", "half **a bold", []),
        ("$x^2$ costs $5 and $10", "x² costs $5 and $10", []),
        ("\\(a_1\\)", "a₁", []),
        ("see\n$$\n\\frac{a}{b}\n$$", "see\na/b", [("code_block", "a/b")]),
        ("你**好**吗", "你好吗", [("bold", "好")]),
        ("#", "#", []),
    ],
)
def test_markdown_becomes_text_with_spans(
    source: str, text: str, spans: list[tuple[str, str]]
) -> None:
    assert shown(source) == (text, spans)


def test_table_is_code_with_columns_of_equal_width() -> None:
    text, [(style, block)] = shown("| 名字 | n |\n|---|--:|\n| 苹果 | 1 |\n| pear | 10 |")
    assert style == Style.CODE_BLOCK.value
    assert block == text == "名字 │  n\n─────┼───\n苹果 │  1\npear │ 10"
    assert {display_width(line) for line in text.split("\n")} == {9}


def test_table_with_long_cells_is_a_list() -> None:
    rows = [["Name", "Story"], ["Nora", "s" * 60], ["Bram", "short"]]
    assert set_table(rows, ["left"] * 2) == (
        f"Name: Nora\nStory: {'s' * 60}\n\nName: Bram\nStory: short"
    )


@pytest.mark.parametrize(
    ("tex", "text"),
    [
        (r"x = \frac{-b \pm \sqrt{b^2-4ac}}{2a}", "x = (-b ± √(b²-4ac))/2a"),
        (r"\sum_{i=1}^{n} x_i^2", "∑ᵢ₌₁ⁿ xᵢ²"),
        (r"\forall x \in \mathbb{R}: x \le \infty", "∀ x ∈ ℝ: x ≤ ∞"),
        (r"e^{i\pi} + 1 = 0", "e^(iπ) + 1 = 0"),
        (r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}", "1 2\n3 4"),
        (r"\sqrt[3]{x}", "³√x"),
        (r"\unheard{y}", "unheardy"),
    ],
)
def test_formulas_are_readable(tex: str, text: str) -> None:
    assert set_maths(tex) == text


@pytest.mark.parametrize("tex", ["{" * 5000, "^" * 5000, r"\frac" * 5000, "\\", "_{", "}"])
def test_malformed_formulas_end(tex: str) -> None:
    assert set_maths(tex)

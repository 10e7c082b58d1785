"""Lines of Chinese and mixed text break where readers expect it."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from bot.platforms.terminal.rendering import line_breaks


def lines(text: str, width: int) -> list[str]:
    starts = [0, *line_breaks(text, width), len(text)]
    return [text[begin:end].rstrip() for begin, end in pairwise(starts)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("hello 你好世界", ["hello 你好", "世界"]),
        ("今天天气好，我们走", ["今天天气", "好，我们走"]),
        ("他说“你好吗？”我说", ["他说“你好", "吗？”我说"]),
        ("one two 三四五", ["one two 三", "四五"]),
        ("abcdefghijklmn", ["abcdefghij", "klmn"]),
    ],
)
def test_line_breaks_within_chinese_text(text: str, expected: list[str]) -> None:
    assert lines(text, 10) == expected


@given(st.text(alphabet="ab ，。（）“”你好？!", max_size=80), st.integers(6, 30))
def test_lines_fit_and_lose_nothing(text: str, width: int) -> None:
    starts = [0, *line_breaks(text, width), len(text)]
    assert starts == sorted(starts)
    for line in lines(text, width):
        assert cell_len(line) <= width

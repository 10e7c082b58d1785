"""Answers as a terminal shows them."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from inline_snapshot import snapshot

from bot.platforms.terminal.rendering import TextRenderer

TEXT = """\
[Nora]
# The harbour

*She smiles.* "Hello **there**," she says, and looks out over the wide sea for a long time.
A second line.

1. one, in a line that is longer than sixty columns and has to be wrapped
2. two
   - nested <b>html</b>

```python
def f(x):
    '''doc'''

    return x
```
After [a link](http://x.y) and `code`.

| a | b |
|---|---|
| 1 | 二 |

> hello 你好，世界。今天天气很好，我们去公园散步吧，然后一起吃饭，再去看电影，好不好？

    indented

~~~
not closed
"""
COLORS = re.compile(r"\x1b\[[\d;]*m")


def whole(text: str, columns: int = 60) -> str:
    return COLORS.sub("", TextRenderer(lambda: columns).answer(text))


def test_markdown_is_rendered_for_a_terminal() -> None:
    assert whole(TEXT) == snapshot("""\
Nora
The harbour

She smiles. "Hello there," she says, and looks out over the
wide sea for a long time.
A second line.

 1 one, in a line that is longer than sixty columns and has
   to be wrapped
 2 two
    • nested <b>html</b>

def f(x):
    '''doc'''

    return x

After a link (http://x.y) and code.


 a  b \n\
 ─────
 1  二


▌ hello \n\
▌ 你好，世界。今天天气很好，我们去公园散步吧，然后一起吃
▌ 饭，再去看电影，好不好？

indented

not closed\
""")


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

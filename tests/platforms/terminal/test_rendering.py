"""A message that grows is printed once, whatever its pieces are."""

import re
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from inline_snapshot import snapshot

from bot.platforms.terminal.rendering import GrowingMessage, TextRenderer

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


def plain(parts: Iterable[str]) -> str:
    return COLORS.sub("", "\n".join(parts))


def whole(text: str, columns: int = 60) -> str:
    message = GrowingMessage(TextRenderer(lambda: columns))
    message.update(text)
    return plain(message.take_rest())


def in_pieces(text: str, size: int, columns: int = 60) -> str:
    message = GrowingMessage(TextRenderer(lambda: columns))
    printed: list[str] = []
    for end in range(0, len(text) + size, size):
        assert message.update(text[:end])
        printed += message.take_final()
        message.growing()
    return plain([*printed, *message.take_rest()])


def test_markdown_is_rendered_for_a_terminal() -> None:
    assert whole(TEXT) == snapshot("""\
Nora
The harbour

She smiles. "Hello there," she says, and looks out over the
wide sea for a long time.
A second line.

 1. one, in a line that is longer than sixty columns and
    has to be wrapped
 2. two
     • nested <b>html</b>

```python
def f(x):
    '''doc'''

    return x
```

After a link (http://x.y) and code.

 a  b \n\
 ─────
 1  二

▌ hello \n\
▌ 你好，世界。今天天气很好，我们去公园散步吧，然后一起吃
▌ 饭，再去看电影，好不好？

indented

```
not closed
```\
""")


@pytest.mark.parametrize("size", [1, 2, 3, 7, 50])
def test_growing_text_is_printed_as_the_whole_would_be(size: int) -> None:
    assert in_pieces(TEXT, size) == whole(TEXT)


def test_block_is_final_when_another_one_follows() -> None:
    message = GrowingMessage(TextRenderer(lambda: 60))
    message.update("A *paragraph")
    assert message.take_final() == []
    message.update("A *paragraph* that\nwent on\n\nNext")
    assert message.take_final() == []
    message.update("A *paragraph* that\nwent on\n\nNext\n")
    assert plain(message.take_final()) == "A paragraph that\nwent on"
    assert plain(message.growing()) == "\nNext"


def test_change_of_what_was_printed_is_noticed() -> None:
    message = GrowingMessage(TextRenderer(lambda: 60))
    message.update("one\n\ntwo\n")
    message.take_final()
    assert message.update("one\n\nthree")
    assert not message.update("One\n\nthree")


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


@given(st.text(alphabet="ab *_`~#>-|[]()\n1.<你，", max_size=60), st.integers(1, 9))
def test_any_text_keeps_its_words_in_pieces_of_any_size(text: str, size: int) -> None:
    assert in_pieces(text, size) == whole(text)


def test_only_the_end_of_a_long_paragraph_is_shown_while_it_grows() -> None:
    message = GrowingMessage(TextRenderer(lambda: 60))
    words = [f"word{number}" for number in range(500)]
    message.update(f"[Nora]\n{' '.join(words)}")
    assert plain(message.take_final()) == "Nora"
    assert plain(message.growing(100)).split() == words[-12:]
    assert plain(message.take_rest()).split() == words


def test_end_of_a_long_code_block_is_shown_as_code() -> None:
    message = GrowingMessage(TextRenderer(lambda: 60))
    message.update("```\n" + "".join(f"line{number}\n" for number in range(500)))
    assert message.growing(100)[0] == message.growing(100)[-1]
    assert plain(message.growing(20)) == "```\nline498\nline499\n```"

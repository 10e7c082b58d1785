"""Render Markdown and plain text for a terminal, also of a message that is still growing."""

import io
import re
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import ClassVar

from markdown_it import MarkdownIt
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.markdown import CodeBlock, Heading, ListItem, Markdown, MarkdownElement
from rich.segment import Segment
from rich.style import Style
from rich.syntax import Syntax
from rich.text import Text
from rich.theme import Theme
from typing_extensions import override

_CODE_THEME = "ansi_dark"  # the terminal's own colors
_THEME = Theme(
    {
        "markdown.h1": "bold underline",
        "markdown.h2": "bold underline",
        "markdown.code": "cyan",
        "markdown.link": "underline",
        "markdown.link_url": "dim",
        "markdown.item.bullet": "dim",
        "markdown.item.number": "dim",
        "markdown.block_quote": "italic",
        "markdown.hr": "dim",
    }
)
_LABEL_COLORS = ("cyan", "magenta", "green", "yellow", "blue")
_BLANK_EDGES = re.compile(r"\A(?:(?:\x1b\[[\d;]*m| )*\n)+|(?:\n(?:\x1b\[[\d;]*m| )*)+\Z")
_TRAILING_SPACES = re.compile(r" +((?:\x1b\[0m)?)$", re.MULTILINE)
_SPEAKER_LINE = re.compile(r"\[([^\n]+)\](?:\n|\Z)")
_FENCE_LINE = re.compile(r"\s*(?:```|~~~).*\n")

# HTML is text to be read; tables are not part of CommonMark.
_PARSER = MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"])


class _IndentedCode(CodeBlock):
    """Code without a background. It is wrapped only in lists and quotes, so it can be copied."""

    @override
    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        is_nested = options.max_width < console.width
        syntax = Syntax("", self.lexer_name, theme=self.theme, background_color="default")
        text = syntax.highlight(str(self.text).rstrip())
        text.rstrip()
        text.style = Style.null()
        text.no_wrap, text.overflow = not is_nested, "fold" if is_nested else "ignore"
        yield text


class _FencedCode(_IndentedCode):
    @override
    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        language = "" if self.lexer_name == "text" else self.lexer_name
        yield Text(f"```{language}", "dim")
        yield from super().__rich_console__(console, options)
        yield Text("```", "dim")


class _NumberedItem(ListItem):
    """A list item with a period behind its number."""

    @override
    def render_number(
        self, console: Console, options: ConsoleOptions, number: int, last_number: int
    ) -> RenderResult:
        width = len(str(last_number)) + 3
        style = console.get_style("markdown.item.number", default="none")
        lines = console.render_lines(self.elements, options.update(width=options.max_width - width))
        first = f"{number}. ".rjust(width)
        for index, line in enumerate(lines):
            yield Segment(first if index == 0 else " " * width, style)
            yield from line
            yield Segment.line()


class _LeftHeading(Heading):
    LEVEL_ALIGN: ClassVar = {}


class _ChatMarkdown(Markdown):
    """Markdown as people write it in chats: a line break is a line break."""

    elements: ClassVar[dict[str, type[MarkdownElement]]] = {
        **Markdown.elements,
        "heading_open": _LeftHeading,
        "list_item_open": _NumberedItem,
        "fence": _FencedCode,
        "code_block": _IndentedCode,
    }

    def __init__(self, source: str) -> None:
        super().__init__("", code_theme=_CODE_THEME, hyperlinks=False)
        self.markup = source
        self.parsed = _PARSER.parse(source)
        for token in self.parsed:
            for child in token.children or ():
                if child.type == "softbreak":
                    child.type = "hardbreak"


class TextRenderer:
    """Renders texts without control characters to lines with color codes.

    Args:
        columns: returns the width of the terminal.
    """

    def __init__(self, columns: Callable[[], int]) -> None:
        self._columns = columns
        self._console = Console(
            file=io.StringIO(), force_terminal=True, highlight=False, theme=_THEME, emoji=False
        )

    def markdown(self, source: str) -> str:
        return _BLANK_EDGES.sub("", self._render(_ChatMarkdown(source)))

    def plain(self, text: str, style: str = "") -> str:
        return self._render(Text(text, style))

    def label(self, name: str) -> str:
        """Render the name of a speaker; each name has its own color."""
        color = _LABEL_COLORS[sum(name.encode()) % len(_LABEL_COLORS)]
        return self._render(Text(name, f"bold {color}", overflow="ellipsis", no_wrap=True))

    def _render(self, content: RenderableType) -> str:
        self._console.width = max(self._columns() - 1, 10)  # a full line would wrap in some
        with self._console.capture() as captured:
            self._console.print(content, crop=False, markup=False)
        return _TRAILING_SPACES.sub(r"\1", captured.get()).removesuffix("\n")


class GrowingMessage:
    """A message whose blocks are printed once: each when another one follows it.

    Its first line may name the speaker: "[Nora]".
    """

    def __init__(self, renderer: TextRenderer) -> None:
        self.text = ""
        self._renderer = renderer
        self._printed = 0
        """The number of characters that were printed."""
        self._searched = 0
        """The number of characters in which final blocks were looked for."""

    def update(self, text: str) -> bool:
        """Take the whole text as it is now; return False if what was printed has changed."""
        if text[: self._printed] != self.text[: self._printed]:
            return False
        self.text = text
        return True

    def take_final(self) -> list[str]:
        """Return what can be printed for good: the blocks before the last one."""
        end = self.text.rfind("\n") + 1
        if end == self._searched:
            return []
        self._searched = end
        start = max(self._printed, self._body_start())
        *final, _last = _blocks(self.text[start:end]) or [""]
        return self._take(min(start, end) + sum(map(len, final)))

    def take_rest(self) -> list[str]:
        """Return all that was not printed yet: the message is complete."""
        return self._take(len(self.text))

    def growing(self, max_chars: int = 3000) -> list[str]:
        """Return the lines that may still change; of a long text only its end is rendered."""
        rest = self.text[self._printed :]
        if len(rest) > max_chars:
            fence = _FENCE_LINE.match(rest)
            rest = rest[-max_chars:].partition("\n" if fence else " ")[2]
            rest = f"{fence[0]}{rest}" if fence else rest
        return [line for part in self._render(rest) for line in part.split("\n")]

    def _body_start(self) -> int:
        """Return where the text behind the name of the speaker begins."""
        speaker = _SPEAKER_LINE.match(self.text)
        return speaker.end() if speaker else 0

    def _take(self, end: int) -> list[str]:
        parts = self._render(self.text[self._printed : end])
        self._printed = end
        return parts

    def _render(self, source: str) -> list[str]:
        """Render a part of the text that begins where printing stopped."""
        parts: list[str] = []
        if self._printed == 0 and (speaker := _SPEAKER_LINE.match(source)):
            parts.append(self._renderer.label(speaker[1]))
            source = source[speaker.end() :]
        is_first = self._printed <= self._body_start()
        for rendered in filter(None, map(self._renderer.markdown, _blocks(source))):
            parts += [rendered] if is_first else ["", rendered]
            is_first = False
        return parts


def _blocks(source: str) -> list[str]:
    """Split Markdown into its top-level blocks, each with the blank lines behind it."""
    lines = source.splitlines(keepends=True)
    starts = [one.map[0] for one in _PARSER.parse(source) if one.level == 0 and one.map]
    return ["".join(lines[a:b]) for a, b in pairwise([0, *starts[1:], len(lines)])]

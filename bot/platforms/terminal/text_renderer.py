"""Render Markdown, code and plain text for a terminal: wrapped at words, with its own colours."""

import io
import re
from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar

from markdown_it import MarkdownIt
from markdown_it.token import Token
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.markdown import CodeBlock, Heading, ListItem, Markdown, MarkdownElement, Paragraph
from rich.segment import Segment
from rich.style import Style
from rich.syntax import Syntax
from rich.text import Text
from rich.theme import Theme
from typing_extensions import override

from bot.platforms.terminal.line_breaks import has_wide_text, line_breaks

_CODE_THEME = "ansi_dark"  # the terminal's own colours
_CONTEXT_LINES = 30  # so many lines before the newest ones decide about the colours of those
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

# HTML is text to be read; tables are no part of CommonMark.
_PARSER = MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"])


def parse_markdown(source: str) -> list[Token]:
    """Parse Markdown as it is shown here."""
    return _PARSER.parse(source)


class _PlainCodeBlock(CodeBlock):
    """A code block without a background, so that its copy has no spaces."""

    @override
    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        yield _highlight(str(self.text).rstrip(), self.lexer_name)


class _ChatParagraph(Paragraph):
    """A paragraph whose lines break within Chinese text as well."""

    @override
    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        for line in self.text.split("\n", allow_blank=True):
            yield _wrapped(line, options.max_width)


class _NumberedItem(ListItem):
    """An item whose number has a full stop behind it."""

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
        "paragraph_open": _ChatParagraph,
        "heading_open": _LeftHeading,
        "list_item_open": _NumberedItem,
        "fence": _PlainCodeBlock,
        "code_block": _PlainCodeBlock,
    }

    def __init__(self, source: str) -> None:
        super().__init__("", hyperlinks=False)
        self.markup = source
        self.parsed = parse_markdown(source)
        for token in self.parsed:
            for child in token.children or ():
                if child.type == "softbreak":
                    child.type = "hardbreak"


class TextRenderer:
    """Renders texts, which have no control characters, to lines with colour codes.

    Args:
        columns: returns the width of the terminal.
    """

    def __init__(self, columns: Callable[[], int]) -> None:
        self._columns = columns
        self._console = Console(
            file=io.StringIO(), force_terminal=True, highlight=False, theme=_THEME, emoji=False
        )

    def markdown(self, source: str) -> str:
        """Render Markdown, wrapped at words."""
        return _BLANK_EDGES.sub("", self._render(_ChatMarkdown(source)))

    def plain(self, text: str, style: str = "") -> str:
        """Render a text as it is, wrapped at words."""
        lines = Text(text, style=style).split("\n", allow_blank=True)
        return "\n".join(self._render(_wrapped(line, self._width)) for line in lines)

    def label(self, name: str) -> str:
        """Render the name of a speaker; each name has its own colour."""
        color = _LABEL_COLORS[sum(name.encode()) % len(_LABEL_COLORS)]
        return self._render(Text(name, style=f"bold {color}", overflow="ellipsis", no_wrap=True))

    def code(self, lines: Sequence[str], language: str, newest: int) -> str:
        """Render the newest lines of a code block, which are not wrapped: people copy them."""
        context = lines[-newest - _CONTEXT_LINES :]
        colored = _highlight("\n".join(context), language).split("\n", allow_blank=True)
        return self._render(Text("\n").join(colored[len(context) - newest :]), soft_wrap=True)

    def _render(self, content: RenderableType, *, soft_wrap: bool = False) -> str:
        with self._console.capture() as captured:
            self._console.print(content, width=self._width, soft_wrap=soft_wrap, markup=False)
        return _TRAILING_SPACES.sub(r"\1", captured.get()).removesuffix("\n")

    @property
    def _width(self) -> int:
        """One column stays free: terminals differ in what a full line does."""
        return max(self._columns() - 1, 10)


def _wrapped(line: Text, width: int) -> Text:
    """Return a line of a text with breaks within Chinese text; others are broken by rich."""
    if not has_wide_text(line.plain):
        return line
    return Text("\n").join(line.divide(line_breaks(line.plain, width)))


def _highlight(code: str, language: str) -> Text:
    syntax = Syntax(code, language or "text", theme=_CODE_THEME, background_color="default")
    text = syntax.highlight(code)
    text.style = Style.null()
    if not code.endswith("\n"):
        text.right_crop(len(text) - len(text.plain.rstrip("\n")))
    return text

"""Render answers (Markdown) and plain text for a terminal."""

import io
import re
from collections.abc import Callable, Iterator
from typing import ClassVar

from markdown_it import MarkdownIt
from rich.console import Console, ConsoleOptions, RenderableType
from rich.markdown import CodeBlock, Heading, Markdown, MarkdownElement
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
_BLANK_EDGE_LINES = re.compile(r"\A(?:(?:\x1b\[[\d;]*m| )*\n)+|(?:\n(?:\x1b\[[\d;]*m| )*)+\Z")
_TRAILING_SPACES = re.compile(r" +((?:\x1b\[0m)?)$", re.MULTILINE)
_SPEAKER_LINE = re.compile(r"\[([^\n]+)\](?:\n|\Z)")

# HTML is shown as text; CommonMark has no strikethrough and no tables.
_PARSER = MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"])


class _PlainCodeBlock(CodeBlock):
    """A code block that is easy to copy: it has no background, and wraps only if nested."""

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


class _LeftAlignedHeading(Heading):
    LEVEL_ALIGN: ClassVar = {}


class _ChatMarkdown(Markdown):
    """Markdown as in chats, where every line break is kept."""

    elements: ClassVar[dict[str, type[MarkdownElement]]] = {
        **Markdown.elements,
        "heading_open": _LeftAlignedHeading,
        "fence": _PlainCodeBlock,
        "code_block": _PlainCodeBlock,
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
    """Renders texts as lines with ANSI color codes for a terminal that is `columns()` wide."""

    def __init__(self, get_columns: Callable[[], int]) -> None:
        self._get_columns = get_columns
        self._console = Console(
            file=io.StringIO(), force_terminal=True, highlight=False, theme=_THEME, emoji=False
        )

    def render_answer(self, source: str) -> str:
        """Render a Markdown answer, whose first line may name the speaker, as in "[Nora]"."""
        speaker_match = _SPEAKER_LINE.match(source)
        if speaker_match is None:
            return self._render_markdown(source)
        color = _LABEL_COLORS[sum(speaker_match[1].encode()) % len(_LABEL_COLORS)]
        label = Text(speaker_match[1], f"bold {color}", overflow="ellipsis", no_wrap=True)
        text = self._render_markdown(source[speaker_match.end() :])
        return f"{self._render(label)}\n{text}".rstrip("\n")

    def render_plain(self, text: str, style: str = "") -> str:
        return self._render(Text(text, style))

    def _render_markdown(self, source: str) -> str:
        return _BLANK_EDGE_LINES.sub("", self._render(_ChatMarkdown(source)))

    def _render(self, content: RenderableType) -> str:
        self._console.width = max(self._get_columns() - 1, 10)  # some terminals wrap a full line
        with self._console.capture() as capture:
            self._console.print(content, crop=False, markup=False)
        return _TRAILING_SPACES.sub(r"\1", capture.get()).removesuffix("\n")

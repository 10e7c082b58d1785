"""Render Markdown, code and plain text for a terminal, also of a message that still grows."""

import io
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from markdown_it import MarkdownIt
from markdown_it.token import Token
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.markdown import CodeBlock, Heading, ListItem, Markdown, MarkdownElement, Paragraph
from rich.segment import Segment
from rich.style import Style
from rich.syntax import Syntax
from rich.text import Text
from rich.theme import Theme
from typing_extensions import override

_WIDE = "\u2e80-\u2fff\u3005-\u3007\u3021-\u30ff\u3100-\u9fff\uac00-\ud7af\uf900-\ufaff"
_OPENING = "（「『【《〈“‘("
_CLOSING = "，。！？；：、）」』】》〉”’…—,.!?;:)"
_UNIT = re.compile(
    rf"[{_OPENING}]*(?:[{_WIDE}]|[^\s{_WIDE}{_OPENING}{_CLOSING}]+|(?<!\S)[^\s{_WIDE}])?"
    rf"[{_CLOSING}]*\s*"
)
_HAS_WIDE = re.compile(rf"[{_WIDE}]")


def has_wide_text(text: str) -> bool:
    """Return whether a text has characters that lines may break after."""
    return _HAS_WIDE.search(text) is not None


def line_breaks(text: str, width: int) -> list[int]:
    """Return the offsets at which new lines begin, so that each line fits into so many columns."""
    breaks: list[int] = []
    column = 0
    for unit in _UNIT.finditer(text):
        cells = cell_len(unit[0].rstrip())
        if column + cells > width and column:
            breaks.append(unit.start())
            column = 0
        if cells > width:  # a word that fits into no line
            column = _break_word(unit[0], unit.start(), width, breaks)
        else:
            column += cell_len(unit[0])
    return breaks


def _break_word(word: str, start: int, width: int, breaks: list[int]) -> int:
    column = 0
    for offset, character in enumerate(word):
        cells = cell_len(character)
        if column + cells > width:
            breaks.append(start + offset)
            column = 0
        column += cells
    return column


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


_SPACE = re.compile(r"\s+")
_SPEAKER_LINE = re.compile(r"\[([^\n]+)\](?:\n|\Z)")


@dataclass(slots=True)
class _OpenCodeBlock:
    run: str
    language: str
    margin: int
    lines: list[str] = field(default_factory=list)

    def is_closed_by(self, line: str) -> bool:
        bare = line.strip()
        return len(bare) >= len(self.run) and set(bare) == {self.run[0]}

    def add(self, line: str) -> None:
        spaces = len(line) - len(line.lstrip(" "))
        self.lines.append(line[min(self.margin, spaces) :].expandtabs(4))


class GrowingMessage:
    """One message of the bot; its first line may name the speaker: "[Nora]"."""

    def __init__(self, renderer: TextRenderer) -> None:
        self.text = ""
        self._renderer = renderer
        self._printed = 0  # so many characters of the text
        self._examined = 0  # so far the text was searched for what is final
        self._blocks = 0  # so many blocks were printed
        self._code: _OpenCodeBlock | None = None

    def update(self, text: str) -> bool:
        """Take the whole text as it is now; return False if what was printed is different."""
        if text[: self._printed] != self.text[: self._printed]:
            return False
        self.text = text
        return True

    def take_final(self) -> list[str]:
        """Return what can be printed for good, each part on lines of its own."""
        end = self.text.rfind("\n") + 1
        if end == self._examined:
            return []
        self._examined = end
        return self._take(end, whole=False)

    def take_rest(self) -> list[str]:
        """Return all that was not printed yet: the message is complete."""
        return self._take(len(self.text), whole=True)

    def growing(self, max_chars: int = 3000) -> list[str]:
        """Return the lines of what may still change; of a long text only its end is rendered."""
        copy = GrowingMessage(self._renderer)
        copy.text, copy._printed, copy._blocks = self.text, self._printed, self._blocks
        if len(self.text) - self._printed > max_chars:
            copy._printed = self._start_of_word(len(self.text) - max_chars)
        if self._code is not None:
            code = self._code
            copy._code = _OpenCodeBlock(code.run, code.language, code.margin, list(code.lines))
        return [line for part in copy.take_rest() for line in part.split("\n")]

    def _start_of_word(self, position: int) -> int:
        space = _SPACE.search(self.text, position)
        return space.end() if space else position

    def _take(self, end: int, *, whole: bool) -> list[str]:
        parts: list[str] = []
        if self._printed == 0 and end and (speaker := _SPEAKER_LINE.match(self.text)):
            parts.append(self._renderer.label(speaker[1]))
            self._printed = speaker.end()
        before = -1
        while before < self._printed < end:
            before = self._printed
            source = self.text[before:end]
            if self._code is not None:
                self._take_code(self._code, source, parts)
            else:
                self._take_blocks(source, parts, whole=whole)
        if whole and self._code is not None:
            self._close_code(self._code, parts)
        return parts

    def _take_blocks(self, source: str, parts: list[str], *, whole: bool) -> None:
        """Print blocks up to the first code block, or up to the last block, which may grow."""
        lines = source.splitlines(keepends=True)
        blocks = [one for one in parse_markdown(source) if one.level == 0 and one.map]
        taken = 0
        for number, block in enumerate(blocks):
            begin, after = block.map or (0, 0)
            if block.type == "fence":
                self._open_code(block, lines[begin], parts)
                taken = begin + 1
                break
            if number == len(blocks) - 1 and not whole:
                break
            self._print_block("".join(lines[begin:after]), parts)
            taken = after
        else:
            taken = len(lines)  # only blank lines are left
        self._printed += sum(map(len, lines[:taken]))

    def _print_block(self, source: str, parts: list[str]) -> None:
        rendered = self._renderer.markdown(source)
        if rendered:
            self._separate(parts)
            parts.append(rendered)

    def _separate(self, parts: list[str]) -> None:
        if self._blocks:
            parts.append("")
        self._blocks += 1

    def _open_code(self, block: Token, line: str, parts: list[str]) -> None:
        margin = len(line) - len(line.lstrip(" "))
        self._code = _OpenCodeBlock(block.markup, block.info.partition(" ")[0], margin)
        self._separate(parts)
        parts.append(self._renderer.plain(f"{block.markup}{self._code.language}", "dim"))

    def _take_code(self, code: _OpenCodeBlock, source: str, parts: list[str]) -> None:
        added, closed = 0, False
        for line in source.splitlines(keepends=True):
            self._printed += len(line)
            closed = code.is_closed_by(line)
            if closed:
                break
            code.add(line.rstrip("\n"))
            added += 1
        if added:
            parts.append(self._renderer.code(code.lines, code.language, added))
        if closed:
            self._close_code(code, parts)

    def _close_code(self, code: _OpenCodeBlock, parts: list[str]) -> None:
        parts.append(self._renderer.plain(code.run, "dim"))
        self._code = None

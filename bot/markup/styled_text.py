"""Convert Markdown to plain text with styled spans, for platforms without Markdown.

Spans are nested or disjoint. Code is never inside a spoiler or a link, and contains no other span.
"""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum

from markdown_it.token import Token

from bot.markup.graphemes import is_visible
from bot.markup.parser import parse_markdown
from bot.markup.tables import format_table
from bot.markup.tex import tex_to_unicode
from bot.texts.caches import text_cache
from bot.value_class import value_class

_BULLETS = ("•", "◦", "▪")
_HORIZONTAL_RULE = "⸻"
_TASK_MARKER = re.compile(r"\[(?P<done>[ xX])\] ")
_URL_PATTERN = re.compile(r"https?://[^\s<>\"]+")
_URL_LIKE_TEXT = re.compile(r"\s*(?:https?://|www\.)\S+\s*\Z", re.IGNORECASE)
# A text that contains none of these is plain and need not be parsed.
_POSSIBLE_MARKUP = re.compile(
    r"[*_`~\\|$\[\]<&]|^[ \t]*(?:>|#{1,6}[ \t]|[-+][ \t]|\d{1,9}[.)][ \t]|[-=]{3,}[ \t]*$)",
    re.MULTILINE,
)


class Style(Enum):
    BOLD = "bold"
    ITALIC = "italic"
    STRIKETHROUGH = "strikethrough"
    SPOILER = "spoiler"
    CODE = "code"
    CODE_BLOCK = "code_block"
    QUOTE = "quote"
    LINK = "link"


_EMPHASIS_BY_TOKEN_TYPE = {
    "strong_open": Style.BOLD,
    "em_open": Style.ITALIC,
    "s_open": Style.STRIKETHROUGH,
    "spoiler_open": Style.SPOILER,
}
EMPHASIS_STYLES = frozenset(_EMPHASIS_BY_TOKEN_TYPE.values())
"""Styles that may be nested in one another."""


@value_class
class StyledSpan:
    """A range of a text that has a style; positions count characters."""

    style: Style
    start: int
    end: int
    detail: str = ""
    """The URL of a link, or the language of a code block."""


@value_class
class StyledText:
    """A text without markup, and the styles of its ranges."""

    text: str
    spans: tuple[StyledSpan, ...] = ()
    """Spans by start; among those with the same start, the longest is first."""


@text_cache(128)
def style_markdown(source: str, *, keep_links: bool = True) -> StyledText:
    """Convert Markdown to styled text; without `keep_links`, URLs are written after link texts."""
    if _POSSIBLE_MARKUP.search(source) is None:
        return StyledText(source)
    writer = _TextWriter(source.split("\n"), keep_links=keep_links)
    for token in parse_markdown(source):
        writer.write_block(token)
    return writer.finish() or StyledText(source)


@dataclass(slots=True)
class _OpenSpan:
    style: Style
    start: int
    detail: str = ""


@dataclass(slots=True)
class _OpenList:
    bullet: str | None
    """The bullet of all items, or None for a numbered list."""
    pending_marker: str = ""
    """The bullet or number of the current item, or empty once it is written."""


class _TextWriter:
    def __init__(self, lines: Sequence[str], *, keep_links: bool) -> None:
        self._lines = lines  # of the Markdown source
        self._keeps_links = keep_links
        self._pieces: list[str] = []
        self._text_length = 0
        self._open_spans: list[_OpenSpan] = []
        self._spans: list[StyledSpan] = []
        self._lists: list[_OpenList] = []
        self._rows: list[list[str]] | None = None  # of the current table; None outside a table
        self._alignments: list[str] = []

    def finish(self) -> StyledText | None:
        """Return the text, or None if nothing in it is visible.

        Whitespace at both ends is stripped, but not the indentation of code blocks.
        """
        full_text = "".join(self._pieces)
        if not is_visible(full_text.strip()):
            return None
        code_block_starts = {
            span.start
            for span in self._spans
            if span.style is Style.CODE_BLOCK and full_text[span.start : span.end].strip()
        }
        start = _skip_whitespace(full_text, 0, len(full_text), code_block_starts)
        text = full_text[start:].rstrip()
        end = start + len(text)
        spans = [_trim_span(span, full_text, start, end, code_block_starts) for span in self._spans]
        # Spans are added when they end, so an outer span follows its inner spans.
        visible_spans = [span for span in reversed(spans) if span is not None]
        visible_spans.sort(key=lambda span: (span.start, -span.end))
        return StyledText(text, tuple(visible_spans))

    def write_block(self, token: Token) -> None:
        match token.type:
            case "paragraph_open" | "heading_open" | "fence" | "hr" | "math_block" | "table_open":
                self._start_block(token)
                self._start_content(token)
            case "blockquote_open":
                self._start_block(token, has_text=False)
                self._start_span(Style.QUOTE)
            case "heading_close" | "blockquote_close":
                self._end_span()
            case "inline" if self._rows is not None:
                self._rows[-1].append(_render_cell(token))
            case "inline":
                for index, child in enumerate(token.children or []):
                    self._write_inline_token(child, is_first=index == 0)
            case _ if "list" in token.type:
                self._write_list(token)
            case _ if self._rows is not None:
                self._write_table(token, self._rows)
            case _:
                pass

    def _start_content(self, token: Token) -> None:
        match token.type:
            case "heading_open":
                self._start_span(Style.BOLD)
            case "fence":
                self._write_code(token.content.rstrip("\n"), Style.CODE_BLOCK, token.info)
            case "math_block":
                self._write_code(tex_to_unicode(token.content), Style.CODE_BLOCK)
            case "hr":
                self._write(_HORIZONTAL_RULE)
            case "table_open":
                self._rows, self._alignments = [], []
            case _:
                pass

    def _write_list(self, token: Token) -> None:
        match token.type:
            case "bullet_list_open":
                depth = sum(open_list.bullet is not None for open_list in self._lists)
                self._lists.append(_OpenList(_BULLETS[min(depth, len(_BULLETS) - 1)]))
            case "ordered_list_open":
                self._lists.append(_OpenList(None))
            case "list_item_open":
                current_list = self._lists[-1]
                current_list.pending_marker = current_list.bullet or f"{token.info}{token.markup}"
            case "list_item_close" if self._lists[-1].pending_marker:  # an empty item
                self._start_block(token)
            case "bullet_list_close" | "ordered_list_close":
                self._lists.pop()
            case _:
                pass

    def _write_table(self, token: Token, rows: list[list[str]]) -> None:
        match token.type:
            case "tr_open":
                rows.append([])
            case "th_open":
                css_style = str(token.attrGet("style") or "")  # "text-align:right"
                self._alignments.append(css_style.rpartition(":")[2])
            case "table_close":
                self._rows = None
                self._write_code(format_table(rows, self._alignments), Style.CODE_BLOCK)
            case _:
                pass

    def _start_block(self, token: Token, *, has_text: bool = True) -> None:
        """Start a line (after a blank line if the source has one); write the list item's mark."""
        indentation = "  " * max(0, len(self._lists) - 1)
        if self._text_length and not self._is_at_block_start():
            line = token.map[0] if token.map else 0
            follows_blank = 0 < line <= len(self._lines) and not self._lines[line - 1].strip(" \t>")
            self._write("\n\n" if follows_blank else "\n")
        if not has_text or not self._lists:
            return
        current_list = self._lists[-1]
        if current_list.pending_marker:
            self._write(f"{indentation}{current_list.pending_marker} ")
            current_list.pending_marker = ""
        elif not self._is_at_block_start():
            self._write(f"{indentation}  ")

    def _is_at_block_start(self) -> bool:
        return bool(self._open_spans) and self._open_spans[-1].start == self._text_length

    def _write_inline_token(self, token: Token, *, is_first: bool) -> None:
        match token.type:
            case "text" if is_first and self._lists and (task := _TASK_MARKER.match(token.content)):
                self._write("☐ " if task["done"] == " " else "☑ ")
                self._write(token.content[task.end() :])
            case "softbreak" | "hardbreak":
                self._write("\n" + "  " * len(self._lists))
            case "link_open":
                self._start_span(Style.LINK, str(token.attrGet("href") or ""))
            case "image":
                self._start_span(Style.LINK, str(token.attrGet("src") or ""))
                self._write(token.content or "🖼")
                self._end_link()
            case "link_close":
                self._end_link()
            case "code_inline":
                self._write_code(token.content, Style.CODE)
            case "math":
                self._write(tex_to_unicode(token.content))
            case _ if token.nesting > 0:
                self._start_span(_EMPHASIS_BY_TOKEN_TYPE[token.type])
            case _ if token.nesting < 0:
                self._end_span()
            case _:
                self._write(token.content)

    def _end_link(self) -> None:
        """End the current link; if links are unsupported, write its URL after the text."""
        span = self._open_spans[-1]
        text = "".join(self._pieces)[span.start : self._text_length]
        shows_url = text.strip() in {span.detail, span.detail.removeprefix("mailto:")}
        is_web_link = self._keeps_links and _URL_PATTERN.fullmatch(span.detail) is not None
        is_inside_link = any(outer.style is Style.LINK for outer in self._open_spans[:-1])
        if is_web_link and not shows_url and not is_inside_link and not _URL_LIKE_TEXT.match(text):
            self._end_span()
            return
        self._open_spans.pop()
        if not shows_url and span.detail:
            self._write(f" ({span.detail})" if text.strip() else span.detail)

    def _write(self, text: str) -> None:
        self._pieces.append(text)
        self._text_length += len(text)

    def _start_span(self, style: Style, detail: str = "") -> None:
        self._open_spans.append(_OpenSpan(style, self._text_length, detail))

    def _end_span(self) -> None:
        """End the innermost span; drop the span if an outer one has the same style."""
        span = self._open_spans.pop()
        outer_styles = {outer.style for outer in self._open_spans}
        if span.start < self._text_length and span.style not in outer_styles:
            self._spans.append(StyledSpan(span.style, span.start, self._text_length, span.detail))

    def _write_code(self, text: str, style: Style, detail: str = "") -> None:
        """Write code; split the bold, italic and struck-through spans around it."""
        open_styles = {span.style for span in self._open_spans}
        if not open_styles.isdisjoint({Style.SPOILER, Style.LINK}):  # code splits these spans
            self._write(text)
            return
        emphasis_spans = [span for span in self._open_spans if span.style in EMPHASIS_STYLES]
        outermost_spans = {span.style: span for span in reversed(emphasis_spans)}
        for span in outermost_spans.values():
            if span.start < self._text_length:
                self._spans.append(StyledSpan(span.style, span.start, self._text_length))
        start = self._text_length
        self._write(text)
        self._spans.append(StyledSpan(style, start, self._text_length, detail.strip()))
        for span in emphasis_spans:
            span.start = self._text_length


def _skip_whitespace(text: str, start: int, stop: int, code_block_starts: Collection[int]) -> int:
    while start < stop and text[start].isspace() and start not in code_block_starts:
        start += 1
    return start


def _trim_span(
    span: StyledSpan, text: str, text_start: int, text_end: int, code_block_starts: Collection[int]
) -> StyledSpan | None:
    """Trim a span, except at `code_block_starts`, and make it relative to `text_start`."""
    stop = min(span.end, text_end)
    start = _skip_whitespace(text, max(span.start, text_start), stop, code_block_starts)
    while start < stop and text[stop - 1].isspace():
        stop -= 1
    if start >= stop:
        return None
    return StyledSpan(span.style, start - text_start, stop - text_start, span.detail)


def _render_cell(token: Token) -> str:
    pieces = [
        tex_to_unicode(child.content) if child.type == "math" else child.content
        for child in token.children or []
    ]
    return " ".join("".join(pieces).split())

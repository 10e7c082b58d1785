"""Find where to cut Markdown: code fences, open marks, paragraphs, and sentence ends."""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain

from bot.markup.graphemes import grapheme_starts
from bot.value_class import value_class

# Indentation, quote marks and list markers may precede the fence.
_FENCE_LINE = re.compile(
    r"^(?P<prefix>[ \t]*(?:(?:>|(?:[-*+]|\d{1,9}[.)])[ \t])[ \t]*)*)(?P<run>`{3,}|~{3,})"
    r"(?P<suffix>[^\n]*)",
    re.MULTILINE,
)
_NON_QUOTE_CHAR = re.compile(r"[^\t>]")


@value_class
class Fence:
    """An open code block."""

    chars: str
    """The fence itself: "```" or "~~~~"."""
    opening_fence: str
    """The fence with its language, to reopen the block: "```python"."""
    prefix: str
    """The prefix that keeps a line in the same quote and list item."""

    @property
    def closing_line(self) -> str:
        return self.prefix + self.chars


@value_class
class FenceLine:
    """A line that starts with three or more fence characters."""

    start: int
    fence_start: int
    fence_end: int
    end: int
    """The end of the line, before its line break."""
    prefix: str
    line_rest: str

    @property
    def indentation(self) -> int:
        return len(self.prefix) - len(self.prefix.lstrip())

    def find_opened_fence(self, text: str) -> Fence | None:
        """Return the code block that this line opens, or None if its backticks are inline code."""
        chars = text[self.fence_start : self.fence_end]
        if chars[0] == "`" and "`" in self.line_rest:
            return None  # inline code, according to CommonMark
        return Fence(chars, chars + self.line_rest.rstrip(), _NON_QUOTE_CHAR.sub(" ", self.prefix))

    def closes(self, fence: Fence, text: str) -> bool:
        """Return whether this line closes the code block of `fence`."""
        chars = text[self.fence_start : self.fence_end]
        has_same_depth = self.prefix.count(">") == fence.prefix.count(">")
        unquoted_text = self.prefix.replace(">", "") + self.line_rest
        return chars.startswith(fence.chars) and has_same_depth and not unquoted_text.strip()


def find_fence_lines(text: str, start: int, end: int) -> Iterator[FenceLine]:
    """Yield the lines of `text[start:end]` that may open or close a code block."""
    for one in _FENCE_LINE.finditer(text, start, end):
        yield FenceLine(one.start(), *one.span("run"), one.end(), one["prefix"], one["suffix"])


_MARK_TOKEN = re.compile(r"\\.|`+|\*{1,3}|__|~~|\|\|", re.DOTALL)
_PARAGRAPH_END = re.compile(r"\n[ \t>]*\n")
_TRAILING_MARKS = re.compile(r"[*_~|`]+\Z")
_UNFINISHED_LINK = re.compile(r"!?\[(?P<label>[^\[\]\n]+)\]\([^()\s]*\Z")
_QUOTE_PREFIX = re.compile(r"[ \t]*(?:>[ \t]?)+")


def find_open_marks(text: str) -> tuple[str, ...]:
    """Return the Markdown marks that a text's last paragraph leaves open, in order."""
    paragraph_starts = [match.end() for match in _PARAGRAPH_END.finditer(text)]
    position, open_marks = paragraph_starts[-1] if paragraph_starts else 0, list[str]()
    while match := _MARK_TOKEN.search(text, position):
        position = match.end()
        if match[0].startswith("`"):
            end = _find_inline_code_end(text, match[0], position)
            if end is None:
                return (*open_marks, match[0])
            position = end
        elif not match[0].startswith("\\"):
            _track_mark(match, text, open_marks)
    return tuple(open_marks)


def close_open_markdown(text: str) -> str:
    """Close the code block, marks, or link that a piece of Markdown leaves open."""
    fence = _find_open_fence(text)
    if fence is not None:
        return f"{text}\n{fence.closing_line}"
    link_match = _UNFINISHED_LINK.search(text)
    if link_match is not None:
        text = text[: link_match.start()] + link_match["label"]
    trailing_marks = _TRAILING_MARKS.search(text)
    open_marks = find_open_marks(text)
    if trailing_marks is not None:
        text_before = text[: trailing_marks.start()]
        marks_before = find_open_marks(text_before)
        if len(open_marks) >= len(marks_before):  # an incomplete mark, because it closes nothing
            text, open_marks = text_before.rstrip(), marks_before
    return text + "".join(reversed(open_marks))


def find_quote_prefix(text: str, position: int) -> str:
    """Return the `> ` prefix of the line at a position, to repeat after a cut there."""
    line_start = text.rfind("\n", 0, position) + 1
    match = _QUOTE_PREFIX.match(text, line_start, position)
    return match[0].lstrip() if match else ""


def _track_mark(match: re.Match[str], text: str, open_marks: list[str]) -> None:
    previous_char = text[match.start() - 1 : match.start()]
    next_char = text[match.end() : match.end() + 1]
    marks = ["**", "*"] if match[0] == "***" else [match[0]]
    can_close = bool(previous_char) and not previous_char.isspace()
    if can_close and all(mark in open_marks for mark in marks):
        del open_marks[min(open_marks.index(mark) for mark in marks) :]
        return
    can_open = bool(next_char) and not next_char.isspace()
    is_within_word = previous_char.isalnum() and next_char.isalnum()
    if can_open and not is_within_word:
        open_marks += marks


def _find_inline_code_end(text: str, backticks: str, position: int) -> int | None:
    closing_match = re.compile(rf"(?<!`){backticks}(?!`)").search(text, position)
    return closing_match.end() if closing_match else None


def _find_open_fence(text: str) -> Fence | None:
    fence: Fence | None = None
    for line in find_fence_lines(text, 0, len(text)):
        if fence is None:
            fence = line.find_opened_fence(text)
        elif line.closes(fence, text):
            fence = None
    return fence


_VISIBLE_CHARACTER = re.compile(r"\S")
_UNQUOTED_LINE = re.compile(r"^[ \t]*(?:[^>\s]|\n)", re.MULTILINE)
_WHITESPACE = re.compile(r"\s+")
# The mark must follow two letters, because "e.g. this" and "1. one" do not end a sentence.
_SENTENCE_END = re.compile(r"\w\w[.!?…]+[\"')\]»”’*_]{0,3}$")
_MAX_SENTENCE_END_CHARS = 10
_CJK_SENTENCE_END = re.compile(r"[。！？｡…]+[」』）”’》】]*(?![。！？｡…」』）”’》】])")
_CJK_WORD_END = re.compile(
    r"(?<=[\u3040-\u30ff\u3400-\u9fff，、；：」』）》】])(?=[\u3040-\u30ff\u3400-\u9fff「『（《【])"
)
# Inline code, links and emphasis must not be cut; the first two not even while they are
# unfinished.
_UNBREAKABLE_TEXT = re.compile(
    r"(`+)(?!`).*?(?<!`)\1(?!`)|`+[^`\n]*\Z"
    r"|\[[^\[\]\n]*(?:\]\([^()\s]*(?:\)|\Z)|\]?\Z)"
    r"|(\*\*|__|~~|\|\|)\S.*?\2"
)


@dataclass
class CutWindow:
    """The text that fits into one message, and the positions where it may be cut."""

    text: str
    unit_offsets: Sequence[int]
    """The number of units before each position."""
    position: int
    """The start of the line that contains `start`, before its indentation."""
    start: int
    fence: Fence | None
    """The code block that is open at the start, if any."""
    max_units: int
    max_fence_units: int
    """The length above which a fence line counts as plain text, because no code would fit."""

    def __post_init__(self) -> None:
        self.max_offset = self.unit_offsets[self.start] + self.max_units
        """The maximum offset of the end of the message, including a closing fence."""
        self._reserved_units = count_closing_units(self.fence)
        self._overflow_end = self._find_overflow_end()
        self._fences = [(self.start, self.fence)]
        self._closing_line_ends: dict[int, int] = {}  # ends of lines that close a code block
        self._uncuttable_ranges: list[tuple[int, int]] = []
        """Ranges in which no message may start: after their first position, up to their second."""
        self.block_edges: set[int] = set()
        """The positions where code blocks begin and end."""
        self._scan_fence_lines()
        self.is_full = self._overflow_end is not None
        """Whether the text is too long for one message."""
        self.end = self._window_end
        """The position after the first character that does not fit."""
        middle = bisect_left(
            self.unit_offsets, (self.unit_offsets[self.start] + self.max_offset) // 2
        )
        self.first_cut = max(self.start + 1, middle)
        """The first position to cut at; earlier cuts waste more than half of the message."""

    def fence_at(self, position: int) -> Fence | None:
        """Return the code block open at a position, if any."""
        return next((one for begin, one in reversed(self._fences) if begin <= position), None)

    def find_prose_start(self, position: int) -> int:
        """Return the end of the last code block before a position."""
        begin = max(begin for begin, _ in self._fences if begin <= max(position, self.start))
        return self._closing_line_ends.get(begin, begin)

    def _scan_fence_lines(self) -> None:
        for line in find_fence_lines(self.text, self.position, self._window_end):
            if line.start >= self._window_end:
                break
            self._end_quoted_block(line.start)
            fence = self._fences[-1][1]
            if fence is None:
                self._reserve_closing_units(line)
            if self._overflow_end is not None and self._overflow_end <= line.end:
                if self._may_be_fence(line, fence):
                    self._uncuttable_ranges.append((line.start, self._overflow_end))
                break
            if fence is None:
                self._open_block(line)
            elif line.closes(fence, self.text):
                self._fences.append((line.start + 1, None))
                self._closing_line_ends[line.start + 1] = line.end
                self._uncuttable_ranges.append((line.start, line.end))
                self.block_edges.add(line.end)
        self._end_quoted_block(self._window_end)

    @property
    def _window_end(self) -> int:
        return len(self.text) if self._overflow_end is None else self._overflow_end

    def _find_overflow_end(self) -> int | None:
        """Return the end of the shortest prefix that does not fit, or None if all fits."""
        end_position = bisect_right(self.unit_offsets, self.max_offset - self._reserved_units)
        if end_position == len(self.unit_offsets):
            return None
        visible_match = _VISIBLE_CHARACTER.search(self.text, end_position - 1)
        return visible_match.end() if visible_match else None

    def _reserve_closing_units(self, line: FenceLine) -> None:
        """Reserve units to close the code block that this line possibly opens."""
        prefix_chars = line.fence_start - line.start
        max_length = min(line.fence_end - line.fence_start, self.max_fence_units - prefix_chars)
        for length in range(3, max_length + 1):
            self._reserved_units = max(self._reserved_units, 1 + prefix_chars + length)
            if (
                self.unit_offsets[line.fence_start + length] + self._reserved_units
                > self.max_offset
            ):
                self._overflow_end = line.fence_start + length
                return
        self._overflow_end = self._find_overflow_end()

    def _open_block(self, line: FenceLine) -> None:
        fence = line.find_opened_fence(self.text)
        is_too_long = (
            self.unit_offsets[line.end] - self.unit_offsets[line.start] > self.max_fence_units
        )
        if fence is None or is_too_long:
            return
        if line.start < self.start:
            fence = replace(fence, prefix=fence.prefix.lstrip())
        content = _VISIBLE_CHARACTER.search(self.text, line.end, self._window_end)
        self._fences.append((line.start + 1, fence))
        self._uncuttable_ranges.append((line.start, content.start() if content else line.end))
        self.block_edges.add(line.start + line.indentation)

    def _end_quoted_block(self, end_position: int) -> None:
        """End a quoted code block where its quote ends, if the quote ends before a position."""
        begin, fence = self._fences[-1]
        if fence is None or ">" not in fence.prefix:
            return
        unquoted_match = _UNQUOTED_LINE.search(self.text, begin, end_position)
        if unquoted_match is not None:
            self._fences.append((unquoted_match.start(), None))

    def _may_be_fence(self, line: FenceLine, fence: Fence | None) -> bool:
        """Return whether a line, once it is complete, may open or close a code block."""
        if fence is not None:
            return set(self.text[line.start : self._window_end].strip(" \t>")) <= {fence.chars[0]}
        if (
            self.unit_offsets[self._window_end] - self.unit_offsets[line.start]
            > self.max_fence_units
        ):
            return False
        return self.text[line.fence_start] == "~" or (
            "`" not in self.text[line.fence_end : self._window_end]
        )

    def allows_cut(self, end: int, next_start: int) -> bool:
        """Return whether a message may end at `end` and the next one start at `next_start`."""
        fence = self.fence_at(next_start)
        return (
            self.unit_offsets[end] + count_closing_units(fence) <= self.max_offset
            and not any(first < next_start <= last for first, last in self._uncuttable_ranges)
            and not self._splits_grapheme(next_start)
        )

    def _splits_grapheme(self, position: int) -> bool:
        if not self.start < position < self.end:
            return False
        adjacent_chars = self.text[position - 1 : position + 1]
        if adjacent_chars.isascii():
            return adjacent_chars == "\r\n"
        if adjacent_chars[0].isascii():  # usually a space, which makes earlier text irrelevant
            return len(grapheme_starts(adjacent_chars, 0, 2)) == 1
        return position not in self._grapheme_starts

    @cached_property
    def _grapheme_starts(self) -> Set[int]:
        return grapheme_starts(self.text, self.start, self.end)

    def looks_like_fence(self, position: int) -> bool:
        """Return whether a line starting at this position would look like a fence."""
        line_start = self.text[position : min(position + 3, self.end)]
        return line_start in {"```", "~~~"}

    def splits_fence(self, position: int) -> bool:
        """Return whether a cut at this position would split a sequence of fence characters."""
        next_char = self.text[position]
        return next_char in "`~" and self.text[position - 1] == next_char


_WORD_BREAK, _SENTENCE_BREAK = 0, 1  # ranks of breaks within a line


def count_closing_units(fence: Fence | None) -> int:
    """Return the units needed to close a code block, including the line break."""
    return 1 + len(fence.closing_line) if fence else 0


def choose_cut_point(window: CutWindow) -> tuple[int, int]:
    """Return the best cut: the end of the message, and the start of the next one."""
    gaps = [gap.span() for gap in _WHITESPACE.finditer(window.text, window.first_cut, window.end)]
    word_gaps = []
    last_line_break: tuple[int, int] | None = None
    for end, next_start in reversed(gaps):
        newline = window.text.rfind("\n", end, next_start)
        if newline < 0:
            word_gaps.append((end, next_start))
            continue
        # Code keeps its indentation.
        cut_point = (end, newline + 1) if window.fence_at(newline + 1) else (end, next_start)
        if window.allows_cut(*cut_point):
            if _is_between_paragraphs(window, *cut_point):
                return cut_point
            last_line_break = last_line_break or cut_point
    return last_line_break or _choose_cut_within_line(window, word_gaps)


def _is_between_paragraphs(window: CutWindow, end: int, next_start: int) -> bool:
    if window.fence_at(next_start):
        return False
    has_blank_line = window.text.count("\n", end, next_start) > 1
    return has_blank_line or not window.block_edges.isdisjoint((end, next_start))


def _choose_cut_within_line(window: CutWindow, gaps: Sequence[tuple[int, int]]) -> tuple[int, int]:
    matches = _UNBREAKABLE_TEXT.finditer(window.text, window.start, window.end)
    no_break_spans = [one.span() for one in matches if one.end() > window.first_cut]
    best_break = _find_last_break(window, gaps, no_break_spans)
    for pattern, rank in ((_CJK_SENTENCE_END, _SENTENCE_BREAK), (_CJK_WORD_END, _WORD_BREAK)):
        position = _find_last_match(window, pattern, no_break_spans)
        if position is not None:
            best_break = max(best_break or (rank, 0, 0), (rank, position, position))
    return best_break[1:] if best_break else _cut_anywhere(window, no_break_spans)


def _find_last_break(
    window: CutWindow, gaps: Sequence[tuple[int, int]], no_break_spans: Sequence[tuple[int, int]]
) -> tuple[int, int, int] | None:
    """Return the last gap after a sentence or, if there is none, the last gap after a word."""
    last_word_break: tuple[int, int, int] | None = None
    for end, next_start in gaps:
        if (
            window.looks_like_fence(next_start)
            or _is_unbreakable_at(no_break_spans, next_start)
            or not window.allows_cut(end, next_start)
        ):
            continue
        if _ends_sentence(window, end, next_start):
            return _SENTENCE_BREAK, end, next_start
        last_word_break = last_word_break or (_WORD_BREAK, end, next_start)
    return last_word_break


def _ends_sentence(window: CutWindow, end: int, next_start: int) -> bool:
    begin = max(0, end - _MAX_SENTENCE_END_CHARS)
    return not window.fence_at(next_start) and bool(_SENTENCE_END.search(window.text, begin, end))


def _is_unbreakable_at(no_break_spans: Sequence[tuple[int, int]], position: int) -> bool:
    index = bisect_left(no_break_spans, (position, 0)) - 1
    return index >= 0 and position < no_break_spans[index][1]


def _find_last_match(
    window: CutWindow, pattern: re.Pattern[str], no_break_spans: Sequence[tuple[int, int]]
) -> int | None:
    """Return the end of the last match outside code where a cut is allowed, or None."""
    last_match_end = None
    for match in pattern.finditer(window.text, window.first_cut, window.end):
        position = match.end()
        if (
            position == window.end
            or window.fence_at(position)
            or _is_unbreakable_at(no_break_spans, position)
        ):
            continue
        last_match_end = position if window.allows_cut(position, position) else last_match_end
    return last_match_end


def _cut_anywhere(window: CutWindow, no_break_spans: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """Return a cut between any characters or, as a last resort, within a character."""
    positions = [
        position
        for position in range(window.end - 1, window.first_cut, -1)
        if window.unit_offsets[position] + count_closing_units(window.fence_at(position))
        <= window.max_offset
    ]
    allowed_positions = (at for at in positions if window.allows_cut(at, at))
    preferred_positions = (
        position
        for position in positions
        if window.allows_cut(position, position)
        and not (
            _is_unbreakable_at(no_break_spans, position)
            or window.splits_fence(position)
            or window.looks_like_fence(position)
        )
    )
    position = next(chain(preferred_positions, allowed_positions, positions), window.start + 1)
    return position, position

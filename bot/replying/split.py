"""Split a Markdown text into messages that a platform accepts."""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise

from bot.chat.outgoing import Limits
from bot.markup.graphemes import is_visible
from bot.replying.cut_points import (
    CutWindow,
    Fence,
    FenceLine,
    choose_cut_point,
    closing_units,
    fence_lines,
    open_marks,
    quote_prefix,
)
from bot.value_class import value_class

# A code block first, so that nothing in it is taken for a mark.
_HIDDEN_MARKS = re.compile(
    r"^[ \t]*(?P<run>`{3,}|~{3,})[^\n]*\n(?P<code>(?:.*?\n)??)(?:[ \t]*(?P=run)[ \t]*$|\Z)"
    r"|(?P<line>^[ \t]*(?:>[ \t]?|\#{1,6}[ \t])+)"
    r"|!?\[(?P<label>[^\[\]\n]*)\]\(https?://[^()\s]*\)"
    r"|(?P<mark>`+|\*{1,3}|__|~~|\|\|)(?=\S)(?P<inner>[^\n]*?\S)(?P=mark)(?![*`])",
    re.MULTILINE | re.DOTALL,
)
_SHOWN = ("code", "label", "inner")


def visible_offsets(text: str) -> Sequence[int]:
    """Return the UTF-16 units that readers get before each position, the end included."""
    weights = [2 if letter > "\uffff" else 1 for letter in text]
    for start, end in _hidden_spans(text):
        weights[start:end] = [0] * (end - start)
    return [0, *accumulate(weights)]


def _hidden_spans(text: str) -> Iterator[tuple[int, int]]:
    """Yield the spans of complete marks; what stands within other marks is counted as it is."""
    for found in _HIDDEN_MARKS.finditer(text):
        start, end = found.span()
        shown = next((name for name in _SHOWN if found[name] is not None), None)
        if shown is None:
            yield start, end
        else:
            yield start, found.start(shown)
            yield found.end(shown), end


_ROW = re.compile(r"[ \t]*\|")
_BLANK_LINE = re.compile(r"\n[ \t\r]*\n")
_RULE = re.compile(r"[ \t]*\|[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t\r]*")


def open_table(text: str, before: str) -> str:
    """Return the head of the table that a text ends in, with the rule below it; empty: none.

    `before` is the head of the table that the message before ended in.
    """
    *_, block = _BLANK_LINE.split(text)
    if before and len(block) == len(text):
        return before
    lines = block.split("\n")
    for head, rule in pairwise(lines):
        if head.lstrip().startswith("|") and _RULE.fullmatch(rule):
            return f"{head}\n{rule}\n"
    return ""


def continues_with_row(text: str, end: int, position: int) -> bool:
    """Return whether a new row of a table begins at a position, for a cut that is made at `end`."""
    between = text[end:position]
    is_new_line = "\n" in between and not _BLANK_LINE.search(between)
    return is_new_line and _ROW.match(text, position) is not None


_MARKS = re.compile(r"`+|\*\*|\*|__|~~|\|\|")
_MAX_MARK_UNITS = 8
"""Units of a message that are left for closing marks."""
_FEWEST_UNITS_WITH_MARKS = 200
_PARAGRAPH_BREAK = re.compile(r"\n[ \t>]*\n")
_VISIBLE = re.compile(r"\S")
_UNQUOTED_LINE = re.compile(r"^[ \t]*(?:[^>\s]|\n)", re.MULTILINE)
_BLANK_LINES = re.compile(r"(?:[^\S\n]*\n)*")


@value_class
class PartSpan:
    """One message: a span of the text, and what reopens and closes a code block around it."""

    start: int
    end: int
    opener: str
    """Reopens the code block that the message before had to close."""
    closer: str
    """Closes the code block that the next message continues."""

    def extract(self, text: str) -> str:
        """Return the text of the message."""
        return self.opener + text[self.start : self.end] + self.closer


def split(text: str, limits: Limits) -> list[str]:
    """Split a text into messages: none blank, none longer than the limits allow.

    If the text grows, all messages but the last stay the same. Only white space is lost, and only
    around the cuts. Runs in linear time.
    """
    simple = text.strip()
    if "```" not in simple and "~~~" not in simple and _fits(simple, limits):
        if not is_visible(simple):
            return []
        if limits.render is None or _fits(limits.render(simple), limits):
            return [simple]
        return list(_split_rendered(simple, limits, limits.max_units))
    parts = [span.extract(text) for span in part_spans(text, limits)]
    if limits.render is None:
        return parts
    return [piece for one in parts for piece in _split_rendered(one, limits, limits.max_units)]


def _split_rendered(part: str, limits: Limits, max_units: int) -> Iterator[str]:
    """Yield a part, or smaller ones where readers would get more of it than one message holds."""
    rendered = limits.render(part) if limits.render else part
    smaller = max_units // 2
    if smaller < 1 or _units(rendered, limits) <= limits.max_units:
        yield part
        return
    counted_as_written = replace(limits, max_units=smaller, hides_markup=False)
    for span in part_spans(part, counted_as_written):
        yield from _split_rendered(span.extract(part), limits, smaller)


def part_spans(text: str, limits: Limits) -> Iterator[PartSpan]:
    """Yield the spans of the text that become one message each, in order."""
    offsets = _offsets(text, limits)
    position, fence, reopened, table = 0, None, "", ""
    while True:
        position, fence = _skip_closing_fence(text, position, fence)
        start = _content_start(text, position, fence)
        if start == len(text):
            return
        opener = reopened if fence is None else ""
        if fence is not None and limits.closes_code_blocks:
            opener = f"{fence.margin}{fence.opener}\n"
            if ">" in fence.margin:
                opener += quote_prefix(text, start)
        max_units = limits.max_units - _units(opener, limits)
        scanner, window = _scan(text, offsets, position, start, fence, limits, max_units)
        end, position = choose_cut_point(window) if window else (len(text), len(text))
        fence = scanner.fence_at(position)
        content = text[start:end].rstrip()
        marks, reopened = "", ""
        if window is not None and fence is None and _reopens_marks(limits):
            prose = max(scanner.prose_start(position), start)
            marks, reopened = _find_reopened(text, prose, end, position)
            table = open_table(text[prose:end], table if prose == start else "")
            is_short = _units(table, limits) <= limits.max_units // 4
            if table and is_short and continues_with_row(text, end, position):
                marks, reopened = "", table
        if is_visible(content):
            closer = "".join(reversed(_MARKS.findall(marks)))
            if fence is not None and limits.closes_code_blocks:
                closer = f"\n{fence.closer}"
            yield PartSpan(start, start + len(content), opener, closer)


def _scan(
    text: str,
    offsets: Sequence[int],
    position: int,
    start: int,
    fence: Fence | None,
    limits: Limits,
    max_units: int,
) -> tuple["_FenceScanner", CutWindow | None]:
    """Scan one message, and once more with units for closing marks if it has some."""
    longest_fence = limits.max_units // 4
    scanner = _FenceScanner(text, offsets, position, start, fence, max_units, longest_fence)
    window = scanner.scan_until_full()
    if window is None or not _reopens_marks(limits) or not _MARKS.search(text, start, window.stop):
        return scanner, window
    max_units -= _MAX_MARK_UNITS
    scanner = _FenceScanner(text, offsets, position, start, fence, max_units, longest_fence)
    return scanner, scanner.scan_until_full()


def _reopens_marks(limits: Limits) -> bool:
    return limits.render is not None and limits.max_units >= _FEWEST_UNITS_WITH_MARKS


def _find_reopened(text: str, prose: int, end: int, position: int) -> tuple[str, str]:
    """Return the marks that are open at a cut, and what the next message has to begin with.

    Args:
        text: the whole text.
        prose: from where on the message before the cut has no code block.
        end: where that message ends.
        position: where the next one begins.
    """
    between = text[end:position]
    marks = "" if _PARAGRAPH_BREAK.search(between) else "".join(open_marks(text[prose:end]))
    if len(marks) > _MAX_MARK_UNITS:
        marks = ""
    return marks, marks if "\n" in between else quote_prefix(text, end) + marks


def _skip_closing_fence(text: str, position: int, fence: Fence | None) -> tuple[int, Fence | None]:
    """Skip a closing fence at the start: the message before has closed the block already."""
    if fence is None:
        return position, None
    blank = _BLANK_LINES.match(text, position)
    position = blank.end() if blank else position
    line_end = text.find("\n", position) + 1 or len(text)
    closing = next(fence_lines(text, position, line_end), None)
    if closing is None or not closing.closes(fence, text):
        return position, fence
    return line_end, None


def _content_start(text: str, position: int, fence: Fence | None) -> int:
    visible = _VISIBLE.search(text, position)
    if visible is None:
        return len(text)
    return visible.start() if fence is None else position  # code keeps its indentation


class _FenceScanner:
    """Scans one message from its start and records where code blocks begin and end.

    Units are reserved for closing whatever may turn out to be a code block. The reserve only grows
    while the text grows, so that a prefix that is too long for one message stays too long.
    """

    def __init__(
        self,
        text: str,
        offsets: Sequence[int],
        position: int,
        start: int,
        fence: Fence | None,
        max_units: int,
        max_fence_units: int,
    ) -> None:
        self._text = text
        self._offsets = offsets
        self._position = position  # before `start` by the indentation of its line
        self._start = start
        self._max_offset = offsets[start] + max_units
        # A longer fence line would leave no units for the code, so it counts as plain text.
        self._max_fence_units = max_fence_units
        self._reserve = closing_units(fence)
        self._stop = self._find_stop()
        self._fences = [(start, fence)]
        self._closing_ends: dict[int, int] = {}  # where the line ends that has closed a block
        self._uncuttable: list[tuple[int, int]] = []
        self._edges: set[int] = set()

    def fence_at(self, position: int) -> Fence | None:
        """Return the code block that is open at a position."""
        return next(fence for begin, fence in reversed(self._fences) if begin <= position)

    def prose_start(self, position: int) -> int:
        """Return where the text after the last code block before a position begins."""
        begin = max(begin for begin, _ in self._fences if begin <= max(position, self._start))
        return self._closing_ends.get(begin, begin)

    def scan_until_full(self) -> CutWindow | None:
        """Return what is needed to choose a cut; None if the rest of the text fits."""
        for line in fence_lines(self._text, self._position, self._end):
            if line.start >= self._end:
                break
            self._end_with_quote(line.start)
            fence = self._fences[-1][1]
            if fence is None:
                self._reserve_closing(line)
            if self._stop is not None and self._stop <= line.end:
                if self._may_be_fence(line, fence):
                    self._uncuttable.append((line.start, self._stop))
                break
            if fence is None:
                self._open_block(line)
            elif line.closes(fence, self._text):
                self._fences.append((line.start + 1, None))
                self._closing_ends[line.start + 1] = line.end
                self._uncuttable.append((line.start, line.end))
                self._edges.add(line.end)
        self._end_with_quote(self._end)
        if self._stop is None:
            return None
        half = bisect_left(self._offsets, (self._offsets[self._start] + self._max_offset) // 2)
        return CutWindow(
            self._text,
            self._offsets,
            self._start,
            self._stop,
            self._max_offset,
            max(self._start + 1, half),
            self._fences,
            self._uncuttable,
            self._edges,
        )

    @property
    def _end(self) -> int:
        return len(self._text) if self._stop is None else self._stop

    def _find_stop(self) -> int | None:
        """Return the end of the shortest prefix that does not fit; trailing white space is free."""
        beyond = bisect_right(self._offsets, self._max_offset - self._reserve)
        if beyond == len(self._offsets):
            return None
        visible = _VISIBLE.search(self._text, beyond - 1)
        return visible.end() if visible else None

    def _reserve_closing(self, line: FenceLine) -> None:
        """Reserve units for closing the block that this line may open."""
        margin = line.run_start - line.start
        longest = min(line.run_end - line.run_start, self._max_fence_units - margin)
        for length in range(3, longest + 1):
            self._reserve = max(self._reserve, 1 + margin + length)
            if self._offsets[line.run_start + length] + self._reserve > self._max_offset:
                self._stop = line.run_start + length
                return
        self._stop = self._find_stop()

    def _open_block(self, line: FenceLine) -> None:
        fence = line.opens(self._text)
        too_long = self._offsets[line.end] - self._offsets[line.start] > self._max_fence_units
        if fence is None or too_long:
            return
        if line.start < self._start:
            fence = replace(fence, margin=fence.margin.lstrip())
        content = _VISIBLE.search(self._text, line.end, self._end)
        self._fences.append((line.start + 1, fence))
        self._uncuttable.append((line.start, content.start() if content else line.end))
        self._edges.add(line.start + line.indentation)

    def _end_with_quote(self, before: int) -> None:
        """End a block inside a quote with the quote, if that ends before a position."""
        begin, fence = self._fences[-1]
        if fence is None or ">" not in fence.margin:
            return
        unquoted = _UNQUOTED_LINE.search(self._text, begin, before)
        if unquoted is not None:
            self._fences.append((unquoted.start(), None))

    def _may_be_fence(self, line: FenceLine, fence: Fence | None) -> bool:
        """Return whether a line that is cut off by the end may still open or close a block."""
        if fence is not None:
            return set(self._text[line.start : self._end].strip(" \t>")) <= {fence.run[0]}
        if self._offsets[self._end] - self._offsets[line.start] > self._max_fence_units:
            return False
        return self._text[line.run_start] == "~" or (
            "`" not in self._text[line.run_end : self._end]
        )


def _units(text: str, limits: Limits) -> int:
    return len(text) if limits.unit == "characters" else len(text) + _count_surrogate_pairs(text)


def _fits(text: str, limits: Limits) -> bool:
    # A character takes two units at most, so that most texts need not be counted.
    return 2 * len(text) <= limits.max_units or _units(text, limits) <= limits.max_units


def _count_surrogate_pairs(text: str) -> int:
    """Count the characters that take two UTF-16 units."""
    return 0 if text.isascii() else sum(letter > "\uffff" for letter in text)


def _offsets(text: str, limits: Limits) -> Sequence[int]:
    """Return the units before each position of the text, its end included."""
    if limits.hides_markup and len(text) > limits.max_units:
        return visible_offsets(text)
    if limits.unit == "characters" or not _count_surrogate_pairs(text):
        return range(len(text) + 1)
    return [0, *accumulate(2 if letter > "\uffff" else 1 for letter in text)]

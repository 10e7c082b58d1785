"""Split a long answer into messages that a platform takes, where a reader would pause.

Made for text that still grows: what was cut off once is never cut differently when more arrives.
For that, each cut is decided on the shortest beginning that is too long for one message.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from bot.chat.outgoing import Limits
from bot.replying.splitting.code_fences import Fence, FenceLine, fence_lines
from bot.replying.splitting.cut_points import CutWindow, choose_cut_point, closing_units
from bot.replying.splitting.graphemes import is_visible

_VISIBLE = re.compile(r"\S")
_BLANK_LINES = re.compile(r"(?:[^\S\n]*\n)*")
_CLOSING_LINE = re.compile(r"^[ \t]*(?P<run>`{3,}|~{3,})[ \t\r]*(?:\n|\Z)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class PartSpan:
    """One message: a stretch of the text and what is added so that it stands alone."""

    start: int
    end: int
    opener: str  # opens the code block again that the piece before had to close
    closer: str

    def read(self, text: str) -> str:
        return self.opener + text[self.start : self.end] + self.closer


def split(text: str, limits: Limits) -> list[str]:
    """Give the messages that show this text: none blank, none longer than the limits allow.

    For every text that goes on from `text`, all but the last message stay the same. Only white
    space is lost, and only around the cuts. Takes time in proportion to the text.
    """
    simple = text.strip()
    if "```" not in simple and "~~~" not in simple and _units(simple, limits) <= limits.max_units:
        return [simple] if is_visible(simple) else []
    return [piece.read(text) for piece in part_spans(text, limits)]


def part_spans(text: str, limits: Limits) -> Iterator[PartSpan]:
    """Give the stretches of the text that become one message each, in order."""
    offsets = _offsets(text, limits)
    position, fence = 0, None
    while True:
        position, fence = _behind_closing(text, position, fence)
        start = _first_content(text, position, fence)
        if start == len(text):
            return
        opener = f"{fence.opener}\n" if fence else ""
        room = limits.max_units - _units(opener, limits)
        reading = _FenceScanner(text, offsets, position, start, fence, room, limits.max_units // 4)
        window = reading.until_too_much()
        end, position = choose_cut_point(window) if window else (len(text), len(text))
        fence = reading.fence_at(position)
        content = text[start:end].rstrip()
        if is_visible(content):
            closer = f"\n{fence.closer}" if fence else ""
            yield PartSpan(start, start + len(content), opener, closer)
        fence = replace(fence, margin="") if fence else None  # it is opened at the margin again


def _behind_closing(text: str, position: int, fence: Fence | None) -> tuple[int, Fence | None]:
    """Skip the line that closes a block when nothing of the block is left: it is closed already."""
    if fence is None:
        return position, None
    blank = _BLANK_LINES.match(text, position)
    position = blank.end() if blank else position
    closing = _CLOSING_LINE.match(text, position)
    if closing is None or not closing["run"].startswith(fence.run):
        return position, fence
    return closing.end(), None


def _first_content(text: str, position: int, fence: Fence | None) -> int:
    visible = _VISIBLE.search(text, position)
    if visible is None:
        return len(text)
    return visible.start() if fence is None else position  # code keeps its indentation


class _FenceScanner:
    """Reads on from the start of a piece and notes where code blocks begin and end.

    Room is kept for closing whatever may turn out to be a code block. How much is kept only grows
    while the text grows, so that too much for one piece stays too much.
    """

    def __init__(
        self,
        text: str,
        offsets: Sequence[int],
        position: int,
        start: int,
        fence: Fence | None,
        room: int,
        longest_fence: int,
    ) -> None:
        self._text = text
        self._offsets = offsets
        self._position = position  # before `start`: there the indentation of its line stands
        self._start = start
        self._top = offsets[start] + room
        # A fence line longer than this would leave no room for what it fences: it is plain text.
        self._longest_fence = longest_fence
        self._reserve = closing_units(fence)
        self._stop = self._too_much()
        self._marks = [(start, fence)]
        self._barred: list[tuple[int, int]] = []
        self._edges: set[int] = set()

    def fence_at(self, position: int) -> Fence | None:
        """The code block that is open there."""
        return next(fence for begin, fence in reversed(self._marks) if begin <= position)

    def until_too_much(self) -> CutWindow | None:
        """What is needed to choose a cut; None when all of the text fits."""
        for line in fence_lines(self._text, self._position, self._end):
            if line.start >= self._end:
                break
            fence = self._marks[-1][1]
            if fence is None:
                self._keep_room(line)
            if self._stop is not None and self._stop <= line.end:
                if self._may_count(line, fence):
                    self._barred.append((line.start, self._stop))
                break
            if fence is None:
                self._pass_opening(line)
            elif line.closes(fence, self._text):
                self._marks.append((line.start + 1, None))
                self._barred.append((line.start, line.end))
                self._edges.add(line.end)
        if self._stop is None:
            return None
        half = bisect_left(self._offsets, (self._offsets[self._start] + self._top) // 2)
        return CutWindow(
            self._text,
            self._offsets,
            self._start,
            self._stop,
            self._top,
            max(self._start + 1, half),
            self._marks,
            self._barred,
            self._edges,
        )

    @property
    def _end(self) -> int:
        return len(self._text) if self._stop is None else self._stop

    def _too_much(self) -> int | None:
        """The end of the shortest stretch without room; white space at its end does not count."""
        beyond = bisect_right(self._offsets, self._top - self._reserve)
        if beyond == len(self._offsets):
            return None
        visible = _VISIBLE.search(self._text, beyond - 1)
        return visible.end() if visible else None

    def _keep_room(self, line: FenceLine) -> None:
        """Keep room for closing the block that this line may open."""
        margin = line.run_start - line.start
        longest = min(line.run_end - line.run_start, self._longest_fence - margin)
        for length in range(3, longest + 1):
            self._reserve = max(self._reserve, 1 + margin + length)
            if self._offsets[line.run_start + length] + self._reserve > self._top:
                self._stop = line.run_start + length
                return
        self._stop = self._too_much()

    def _pass_opening(self, line: FenceLine) -> None:
        fence = line.opens(self._text)
        too_long = self._offsets[line.end] - self._offsets[line.start] > self._longest_fence
        if fence is None or too_long:
            return
        if line.start < self._start:
            fence = replace(fence, margin="")
        content = _VISIBLE.search(self._text, line.end, self._end)
        self._marks.append((line.start + 1, fence))
        self._barred.append((line.start, content.start() if content else line.end))
        self._edges.add(line.start + line.indentation)

    def _may_count(self, line: FenceLine, fence: Fence | None) -> bool:
        """Whether a line that is known up to our end only may still open or close a block."""
        if fence is not None:
            return set(self._text[line.start : self._end].strip()) <= {fence.run[0]}
        if self._offsets[self._end] - self._offsets[line.start] > self._longest_fence:
            return False
        return self._text[line.run_start] == "~" or (
            "`" not in self._text[line.run_end : self._end]
        )


def _units(text: str, limits: Limits) -> int:
    return len(text) if limits.unit == "characters" else len(text) + _astral(text)


def _astral(text: str) -> int:
    """How many letters take two UTF-16 units."""
    return 0 if text.isascii() else sum(letter > "\uffff" for letter in text)


def _offsets(text: str, limits: Limits) -> Sequence[int]:
    """The units that stand before each position of the text, its end included."""
    if limits.unit == "characters" or not _astral(text):
        return range(len(text) + 1)
    return [0, *accumulate(2 if letter > "\uffff" else 1 for letter in text)]

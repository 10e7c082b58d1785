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
from bot.replying.cutting import Window, choose_cut, closing_units
from bot.replying.fences import Fence, FenceLine, fence_lines
from bot.replying.graphemes import is_visible

_VISIBLE = re.compile(r"\S")
_BLANK_LINES = re.compile(r"(?:[^\S\n]*\n)*")
_CLOSING_LINE = re.compile(r"^[ \t]*(?P<run>`{3,}|~{3,})[ \t\r]*(?:\n|\Z)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Piece:
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
    return [piece.read(text) for piece in pieces_of(text, limits)]


def pieces_of(text: str, limits: Limits) -> Iterator[Piece]:
    """Give the stretches of the text that become one message each, in order."""
    reader = _Reader(text, limits)
    position, fence = 0, None
    while True:
        start, fence = reader.resume(position, fence)
        if start == len(text):
            return
        opener = f"{fence.opener}\n" if fence else ""
        end, position, fence = reader.advance(position, start, fence)
        content = text[start:end].rstrip()
        if is_visible(content):
            closer = f"\n{fence.closer}" if fence else ""
            yield Piece(start, start + len(content), opener, closer)
        fence = replace(fence, margin="") if fence else None  # it is opened at the margin again


class _Reader:
    """Walks through a text and knows which code block is open."""

    def __init__(self, text: str, limits: Limits) -> None:
        self._text = text
        self._limits = limits
        self._offsets = _offsets(text, limits)
        # A fence line longer than this would leave no room for what it fences: it is plain text.
        self._longest_fence = limits.max_units // 4

    def resume(self, position: int, fence: Fence | None) -> tuple[int, Fence | None]:
        """Where the next piece begins: behind white space, and behind a fence closed already."""
        if fence is not None:
            blank = _BLANK_LINES.match(self._text, position)
            position = blank.end() if blank else position
            closing = _CLOSING_LINE.match(self._text, position)
            if closing is None or not closing["run"].startswith(fence.run):
                rest = _VISIBLE.search(self._text, position)
                return (position if rest else len(self._text)), fence
            position = closing.end()
        content = _VISIBLE.search(self._text, position)
        return (content.start() if content else len(self._text)), None

    def advance(
        self, position: int, start: int, fence: Fence | None
    ) -> tuple[int, int, Fence | None]:
        """Where the piece from `start` ends, where the text goes on, the block that is open there.

        Room is kept for closing whatever may turn out to be a code block. How much is kept only
        grows while the text grows, so that too much for one piece stays too much.
        """
        overhead = _units(fence.opener, self._limits) + 1 if fence else 0
        top = self._offsets[start] + self._limits.max_units - overhead
        reserve = closing_units(fence)
        stop = self._overflow(top - reserve)
        marks, barred, edges = [(start, fence)], list[tuple[int, int]](), set[int]()
        # From `position`, for a line's indentation stands before `start`.
        for line in fence_lines(self._text, position, stop or len(self._text)):
            if stop is not None and line.start >= stop:
                break
            if fence is None:
                stop, reserve = self._keep_room(line, top, stop, reserve)
            if stop is not None and stop <= line.end:  # what this line is, is not known yet
                if self._may_be_fence(line, stop, fence):
                    barred.append((line.start, stop))
                break
            becomes = self._read_fence(line, fence)
            if becomes is fence:
                continue
            if becomes is None:
                barred.append((line.start, line.end))
                edges.add(line.end)
            else:
                content = _VISIBLE.search(self._text, line.end, stop or len(self._text))
                barred.append((line.start, content.start() if content else line.end))
                edges.update((line.start, line.start + _indentation(line)))
                if line.start < start:
                    becomes = replace(becomes, margin="")
            fence = becomes
            marks.append((line.start + 1, fence))
        if stop is None:
            return len(self._text), len(self._text), fence
        half = max(start + 1, bisect_left(self._offsets, (self._offsets[start] + top) // 2))
        window = Window(self._text, self._offsets, start, stop, top, half, marks, barred, edges)
        end, resume = choose_cut(window)
        return end, resume, window.fence_at(resume)

    def _overflow(self, top: int) -> int | None:
        """The end of the shortest stretch that goes beyond `top`; white space does not count."""
        beyond = bisect_right(self._offsets, top)
        if beyond == len(self._offsets):
            return None
        visible = _VISIBLE.search(self._text, beyond - 1)
        return visible.end() if visible else None

    def _keep_room(
        self, line: FenceLine, top: int, stop: int | None, reserve: int
    ) -> tuple[int | None, int]:
        """Keep room for closing the block that this line may open."""
        margin = line.run_start - line.start
        longest = min(line.run_end - line.run_start, self._longest_fence - margin)
        for length in range(3, longest + 1):
            needed = max(reserve, 1 + margin + length)
            if self._offsets[line.run_start + length] + needed > top:
                return line.run_start + length, needed
        if longest < 3 or 1 + margin + longest <= reserve:
            return stop, reserve
        reserve = 1 + margin + longest
        return self._overflow(top - reserve), reserve

    def _read_fence(self, line: FenceLine, fence: Fence | None) -> Fence | None:
        """The block that is open behind this line."""
        if fence is not None:
            return None if line.closes(fence, self._text) else fence
        too_long = self._offsets[line.end] - self._offsets[line.start] > self._longest_fence
        return None if too_long else line.opens(self._text)

    def _may_be_fence(self, line: FenceLine, stop: int, fence: Fence | None) -> bool:
        """Whether the line, seen up to `stop` only, may still become one that counts."""
        if fence is not None:
            seen = self._text[line.start : stop]
            return set(seen.strip()) <= {fence.run[0]}
        if self._offsets[stop] - self._offsets[line.start] > self._longest_fence:
            return False
        info = self._text[line.run_end : stop]
        return self._text[line.run_start] == "~" or "`" not in info


def _indentation(line: FenceLine) -> int:
    return len(line.margin) - len(line.margin.lstrip())


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

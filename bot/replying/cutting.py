"""Choose where to cut a text that is too long for one message: best where a reader would pause."""

import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import chain

from bot.replying.fences import Fence
from bot.replying.graphemes import is_inside

_GAP = re.compile(r"\s+")
# "e.g. this" and "1. one" end no sentence: two letters must stand before the mark.
_SENTENCE_END = re.compile(r"\w\w[.!?…]+[\"')\]»”’*_]{0,3}$")
_LONGEST_SENTENCE_END = 10
_CJK_SENTENCE_END = re.compile(r"[。！？｡…]+[」』）”’》】]*(?![。！？｡…」』）”’》】])")
_CJK_WORD_END = re.compile(
    r"(?<=[\u3040-\u30ff\u3400-\u9fff，、；：」』）》】])(?=[\u3040-\u30ff\u3400-\u9fff「『（《【])"
)
# What loses its meaning when it is torn: inline code, links, emphasis; the first two count when
# they are not finished yet, too.
_WHOLE = re.compile(
    r"(`+)(?!`).*?(?<!`)\1(?!`)|`+[^`\n]*\Z"
    r"|\[[^\[\]\n]*(?:\]\([^()\s]*(?:\)|\Z)|\]?\Z)"
    r"|(\*\*|__|~~|\|\|)\S.*?\2"
)


@dataclass(slots=True)
class Window:
    """What may be looked at to choose a cut: nothing behind `stop` may matter."""

    text: str
    offsets: Sequence[int]  # the units before each position
    start: int
    stop: int  # behind the first letter too many
    top: int  # the offset that a piece must not exceed, its closing fence included
    half: int  # a cut before this position would waste more than half of the room
    marks: Sequence[tuple[int, Fence | None]]  # from a position on, the code block that is open
    barred: Sequence[tuple[int, int]]  # never cut behind the first up to the second position
    edges: set[int] = field(default_factory=set)  # where code blocks begin and where they end

    def fence_at(self, position: int) -> Fence | None:
        """The code block that is open there."""
        return next(fence for begin, fence in reversed(self.marks) if begin <= position)

    def admits(self, end: int, resume: int) -> bool:
        """Whether the piece may end at `end`, and the next one begin at `resume`."""
        fence = self.fence_at(resume)
        return (
            self.offsets[end] + closing_units(fence) <= self.top
            and not any(first < resume <= last for first, last in self.barred)
            and not is_inside(self.text, resume, self.start)
        )

    def shows_fence(self, position: int) -> bool:
        """Whether a line that began here would be taken for a fence."""
        run = self.text[position : min(position + 3, self.stop)]
        return run in {"```", "~~~"}

    def splits_run(self, position: int) -> bool:
        letter = self.text[position]
        return letter in "`~" and self.text[position - 1] == letter


class _Pause(IntEnum):
    """How long a reader would pause."""

    WORD = 0
    SENTENCE = 1
    LINE = 2
    PARAGRAPH = 3


def closing_units(fence: Fence | None) -> int:
    """The room that closing a code block needs, its line break included."""
    return 1 + len(fence.closer) if fence else 0


def choose_cut(window: Window) -> tuple[int, int]:
    """Give where the piece ends and where the text goes on; white space between them is lost."""
    lines: list[tuple[_Pause, int, int]] = []
    words: list[tuple[int, int]] = []
    for gap in _GAP.finditer(window.text, window.half, window.stop):
        end, resume = gap.span()
        newline = window.text.rfind("\n", end, resume)
        if newline < 0:
            words.append((end, resume))
            continue
        if window.fence_at(newline + 1):
            resume = newline + 1  # code keeps its indentation
        if window.admits(end, resume):
            lines.append((_line_pause(window, end, resume), end, resume))
    if lines:
        return max(lines)[1:]
    return _cut_line(window, words)


def _line_pause(window: Window, end: int, resume: int) -> _Pause:
    if window.fence_at(resume):
        return _Pause.LINE
    if window.text.count("\n", end, resume) > 1 or not window.edges.isdisjoint((end, resume)):
        return _Pause.PARAGRAPH
    return _Pause.LINE


def _cut_line(window: Window, gaps: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """Cut within a line: behind a sentence, behind a word, anywhere."""
    whole = _whole_spans(window)
    places = [
        (_sentence_pause(window, *gap), *gap)
        for gap in gaps
        if not window.shows_fence(gap[1]) and not _tears(whole, gap[1]) and window.admits(*gap)
    ]
    for pattern, pause in ((_CJK_SENTENCE_END, _Pause.SENTENCE), (_CJK_WORD_END, _Pause.WORD)):
        place = _last_match(window, pattern, whole)
        if place is not None:
            places.append((pause, place, place))
    return max(places)[1:] if places else _cut_anywhere(window, whole)


def _sentence_pause(window: Window, end: int, resume: int) -> _Pause:
    if window.fence_at(resume):
        return _Pause.WORD
    ending = _SENTENCE_END.search(window.text, max(0, end - _LONGEST_SENTENCE_END), end)
    return _Pause.SENTENCE if ending else _Pause.WORD


def _whole_spans(window: Window) -> list[tuple[int, int]]:
    matches = _WHOLE.finditer(window.text, window.start, window.stop)
    return [span for span in (match.span() for match in matches) if span[1] > window.half]


def _tears(whole: Sequence[tuple[int, int]], position: int) -> bool:
    nearest = bisect_left(whole, (position, 0)) - 1
    return nearest >= 0 and position < whole[nearest][1]


def _last_match(
    window: Window, pattern: re.Pattern[str], whole: Sequence[tuple[int, int]]
) -> int | None:
    """The last place without white space behind what the pattern finds; None inside of code."""
    last = None
    for match in pattern.finditer(window.text, window.half, window.stop):
        place = match.end()
        if place < window.stop and not window.fence_at(place) and not _tears(whole, place):
            last = place if window.admits(place, place) else last
    return last


def _cut_anywhere(window: Window, whole: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """Cut a text without pauses: between characters, as a last resort within one."""
    fitting = [
        place
        for place in range(window.stop - 1, window.half, -1)
        if window.offsets[place] + closing_units(window.fence_at(place)) <= window.top
    ]
    between = (place for place in fitting if window.admits(place, place))
    harmless = (
        place
        for place in fitting
        if window.admits(place, place)
        and not (_tears(whole, place) or window.splits_run(place) or window.shows_fence(place))
    )
    place = next(chain(harmless, between, fitting), window.start + 1)
    return place, place

"""Choose where to cut a text that is too long for one message: best where a reader would pause."""

import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import chain

from bot.replying.splitting.code_fences import Fence
from bot.replying.splitting.graphemes import is_inside

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
class CutWindow:
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
        for begin, fence in reversed(self.marks):
            if begin <= position:
                return fence
        return None

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
        """Whether a cut here would make one run of fence characters two."""
        letter = self.text[position]
        return letter in "`~" and self.text[position - 1] == letter


class _BreakStrength(IntEnum):
    """How long a reader would pause within a line."""

    WORD = 0
    SENTENCE = 1


def closing_units(fence: Fence | None) -> int:
    """The room that closing a code block needs, its line break included."""
    return 1 + len(fence.closer) if fence else 0


def choose_cut_point(window: CutWindow) -> tuple[int, int]:
    """Give where the piece ends and where the text goes on; white space between them is lost."""
    gaps = [gap.span() for gap in _GAP.finditer(window.text, window.half, window.stop)]
    words = []
    last_line: tuple[int, int] | None = None
    for end, resume in reversed(gaps):
        newline = window.text.rfind("\n", end, resume)
        if newline < 0:
            words.append((end, resume))
            continue
        # Code keeps its indentation.
        cut = (end, newline + 1) if window.fence_at(newline + 1) else (end, resume)
        if window.admits(*cut):
            if _is_between_paragraphs(window, *cut):
                return cut
            last_line = last_line or cut
    return last_line or _cut_line(window, words)


def _is_between_paragraphs(window: CutWindow, end: int, resume: int) -> bool:
    if window.fence_at(resume):
        return False
    blank_line = window.text.count("\n", end, resume) > 1
    return blank_line or not window.edges.isdisjoint((end, resume))


def _cut_line(window: CutWindow, gaps: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """Cut within a line: behind a sentence, behind a word, anywhere; `gaps` come last first."""
    whole = _whole_spans(window)
    best = _last_gap(window, gaps, whole)
    for pattern, pause in (
        (_CJK_SENTENCE_END, _BreakStrength.SENTENCE),
        (_CJK_WORD_END, _BreakStrength.WORD),
    ):
        place = _last_match(window, pattern, whole)
        if place is not None:
            best = max(best or (pause, 0, 0), (pause, place, place))
    return best[1:] if best else _cut_anywhere(window, whole)


def _last_gap(
    window: CutWindow, gaps: Sequence[tuple[int, int]], whole: Sequence[tuple[int, int]]
) -> tuple[_BreakStrength, int, int] | None:
    """The last gap behind a sentence or, without any, behind a word."""
    last: tuple[_BreakStrength, int, int] | None = None
    for end, resume in gaps:
        if window.shows_fence(resume) or _tears(whole, resume) or not window.admits(end, resume):
            continue
        if _ends_sentence(window, end, resume):
            return _BreakStrength.SENTENCE, end, resume
        last = last or (_BreakStrength.WORD, end, resume)
    return last


def _ends_sentence(window: CutWindow, end: int, resume: int) -> bool:
    begin = max(0, end - _LONGEST_SENTENCE_END)
    return not window.fence_at(resume) and bool(_SENTENCE_END.search(window.text, begin, end))


def _whole_spans(window: CutWindow) -> list[tuple[int, int]]:
    """What should not be torn, as far as a cut could do so."""
    matches = _WHOLE.finditer(window.text, window.start, window.stop)
    return [span for span in (match.span() for match in matches) if span[1] > window.half]


def _tears(whole: Sequence[tuple[int, int]], position: int) -> bool:
    nearest = bisect_left(whole, (position, 0)) - 1
    return nearest >= 0 and position < whole[nearest][1]


def _last_match(
    window: CutWindow, pattern: re.Pattern[str], whole: Sequence[tuple[int, int]]
) -> int | None:
    """The last place without white space behind what the pattern finds; None inside of code."""
    last = None
    for match in pattern.finditer(window.text, window.half, window.stop):
        place = match.end()
        if place < window.stop and not window.fence_at(place) and not _tears(whole, place):
            last = place if window.admits(place, place) else last
    return last


def _cut_anywhere(window: CutWindow, whole: Sequence[tuple[int, int]]) -> tuple[int, int]:
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

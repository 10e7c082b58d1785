"""Notice that an answer repeats itself without end, while it streams.

Models that loop write the same words over and over, until a limit or a time-out ends them. Only an
exact repetition counts, and only a long one: lists, tables, code and refrains repeat as well, but
never the same text that often in a row.
"""

import re
from collections import Counter

_MAX_TAIL_CHARS = 8000
_CHARS_BETWEEN_CHECKS = 48
_PROBE_CHARS = 24
_MAX_CANDIDATES = 8
_FENCE = "```"

# How often a text has to be repeated, by its length; each takes at least 400 characters in all.
_FEWEST_REPEATS = 6
_REPEATS_BY_LENGTH = ((120, _FEWEST_REPEATS), (40, 12), (1, 16))
_MIN_CHARS = 400
_FACTOR_IN_CODE = 5
_MIN_CHARS_WITHOUT_LETTERS = 6000  # rulers, dots, matrices of zeros
_SENTENCE_ENDS = (". ", "! ", "? ", "。", "！", "？", "\n")


_LOOP_CHARS = 1500
_FEWEST_SENTENCES = 5
_SENTENCE = re.compile(r"[\n.!?。！？]+")
_DIGITS = re.compile(r"\d+")


def ends_in_loop(text: str) -> bool:
    """Whether the end of an answer says the same again and again, numbers aside.

    Only for answers that end at their limit: a list or a refrain may do so as well.
    """
    tail = _DIGITS.sub("", text[-_LOOP_CHARS:].casefold())
    sentences = [one.strip() for one in _SENTENCE.split(tail)][1:]
    counts = Counter(one for one in sentences if one)
    if sum(counts.values()) < _FEWEST_SENTENCES:
        return False
    return len(counts) <= sum(counts.values()) // 2


class RepetitionDetector:
    """Takes the pieces of an answer, and tells when their end is one text over and over.

    The cost of a piece is a few microseconds.
    """

    def __init__(self) -> None:
        self.found = False
        """The answer has run away."""
        self._pending: list[str] = []
        self._pending_chars = 0
        self._tail = ""
        self._fences = 0
        self._chars = 0
        self._begin = 0  # of the repetition, in the whole answer
        self._unit_chars = 0

    def feed(self, text: str) -> None:
        """Append the next piece."""
        self._pending.append(text)
        self._pending_chars += len(text)
        if self._pending_chars >= _CHARS_BETWEEN_CHECKS and not self.found:
            self._check()

    def keep_once(self, text: str) -> str:
        """Return the whole answer so far, with the repeated text once and ended at a boundary."""
        if not self.found:
            return text
        begin = self._begin
        kept = text[: begin + self._unit_chars]
        if kept.rstrip().endswith((".", "!", "?", "。", "！", "？")):
            return kept
        ends = (kept.rfind(mark, begin) + len(mark) for mark in _SENTENCE_ENDS if mark in kept)
        sentence = max((end for end in ends if end > begin), default=0)
        word = kept.rfind(" ", begin) + 1
        return kept[: sentence or (word if word > begin else len(kept))].rstrip()

    def _check(self) -> None:
        added = "".join(self._pending)
        self._fences += (self._tail[-len(_FENCE) + 1 :] + added).count(_FENCE)
        self._tail = (self._tail + added)[-_MAX_TAIL_CHARS:]
        self._chars += len(added)
        self._pending.clear()
        self._pending_chars = 0
        tail = self._tail
        if len(tail) < _MIN_CHARS:
            return
        probe, end = tail[-_PROBE_CHARS:], len(tail) - 1
        for _ in range(_MAX_CANDIDATES):
            at = tail.rfind(probe, 0, end)
            if at < 0:
                return
            unit = tail[at + _PROBE_CHARS :]
            if self._is_repeated(unit):
                self._measure(unit)
                return
            end = at + _PROBE_CHARS - 1

    def _is_repeated(self, unit: str) -> bool:
        """Whether the answer ends in this text, as often as no ordinary text has it."""
        in_code = self._fences % 2 == 1
        if any(char.isalpha() for char in unit):
            repeats = next(often for length, often in _REPEATS_BY_LENGTH if len(unit) >= length)
            needed = max(_MIN_CHARS, repeats * len(unit)) * (_FACTOR_IN_CODE if in_code else 1)
        else:
            needed = max(_MIN_CHARS_WITHOUT_LETTERS, _FEWEST_REPEATS * len(unit))
        if needed > len(self._tail):
            return False
        repeated = unit * (needed // len(unit) + 1)
        return self._tail[-needed:] == repeated[-needed:]

    def _measure(self, unit: str) -> None:
        """Find where the repetition begins."""
        tail, size = self._tail, len(unit)
        begin = len(tail)
        while begin >= size and tail[begin - size : begin] == unit:
            begin -= size
        self._begin = self._chars - len(tail) + begin
        self._unit_chars = size
        self.found = True

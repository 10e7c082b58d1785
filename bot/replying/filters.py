"""Filter streamed text: remove unwanted strings, repeated beginnings, and endless repetition."""

import re
from collections import Counter
from collections.abc import Iterable
from itertools import takewhile

# The characters that .NET's String.Trim() removes, as in RodelAgent (docs/sources.md#rodel):
# Python's whitespace without the separators U+001C to U+001F.
_WHITE_SPACE = (
    "\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000"
)


def apply_filters(text: str, filter_chars: Iterable[str]) -> str:
    """Remove each unwanted text, one after another, then leading and trailing whitespace."""
    for unwanted in filter_chars:
        text = text.replace(unwanted, "")
    return text.strip(_WHITE_SPACE)


class OutputFilter:
    """Applies `apply_filters` to a stream, and returns only text that will not be removed later.

    The joined results of `feed` and `finish` equal `apply_filters` of the joined input. Text that
    may become an unwanted text is held back, and so is whitespace that may be trailing.
    """

    def __init__(self, filter_chars: Iterable[str]) -> None:
        self._removers = [_Remover(unwanted) for unwanted in filter_chars]
        self._has_text = False
        self._white_space = ""

    def feed(self, text: str) -> str:
        """Add the next text of the answer, and return the text that can be shown."""
        for remover in self._removers:
            text = remover.feed(text)
        return self._trim(text)

    def finish(self) -> str:
        """End the answer, and return the rest of the text that was held back."""
        text = ""
        for remover in self._removers:
            text = remover.feed(text) + remover.finish()
        return self._trim(text)

    def _trim(self, text: str) -> str:
        if not self._has_text:
            text = text.lstrip(_WHITE_SPACE)
            self._has_text = bool(text)
        text = self._white_space + text
        visible = text.rstrip(_WHITE_SPACE)
        self._white_space = text[len(visible) :]
        return visible


class _Remover:
    """Removes an unwanted text from a stream, like `str.replace(unwanted, "")`."""

    def __init__(self, unwanted_text: str) -> None:
        self._unwanted = unwanted_text
        self._held_back = ""  # the longest suffix that is a prefix of `unwanted`

    def feed(self, text: str) -> str:
        *clean, rest = (self._held_back + text).split(self._unwanted)
        held = next(
            length
            for length in range(min(len(self._unwanted) - 1, len(rest)), -1, -1)
            if rest.endswith(self._unwanted[:length])
        )
        self._held_back = rest[len(rest) - held :]
        return "".join(clean) + rest[: len(rest) - held]

    def finish(self) -> str:
        text, self._held_back = self._held_back, ""
        return text


class RepeatedStartFilter:
    """Removes the already shown beginning from the continuation of a cut-off answer.

    Some services return the complete text, others only the rest. Whitespace at the cut was not sent
    to the model, which may therefore generate it again.
    """

    def __init__(self, beginning: str) -> None:
        self._begun = beginning.rstrip()
        self._trailing_whitespace = beginning[len(self._begun) :]
        self._held = ""
        self._is_at_cut = True

    def feed(self, text: str) -> str:
        """Return the part of a chunk that is new."""
        if not self._is_at_cut:
            return text
        self._held += text
        if len(self._held) < len(self._begun) and self._begun.startswith(self._held):
            return ""  # it may be a repeated beginning
        rest = self._held.removeprefix(self._begun)
        if not rest.strip() and self._trailing_whitespace.startswith(rest):
            return ""
        self._is_at_cut = False
        pairs = zip(rest, self._trailing_whitespace, strict=False)
        return rest[sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs)) :]

    def finish(self) -> str:
        """Return the rest of the text that was held back."""
        is_repeated = not self._is_at_cut or self._held.startswith(self._begun)
        return "" if is_repeated else self._held


_MAX_TAIL_CHARS = 8000
_CHARS_BETWEEN_CHECKS = 48
_PROBE_CHARS = 24
_MAX_UNIT_CANDIDATES = 8
_CODE_FENCE = "```"

# The number of repetitions that count as endless, by minimum length of the repeated text.
_MIN_REPEATS = 6
_REPEATS_BY_LENGTH = ((120, _MIN_REPEATS), (40, 12), (1, 16))
_MIN_LOOP_CHARS = 400
_FACTOR_IN_CODE = 5
_MIN_CHARS_WITHOUT_LETTERS = 6000  # rulers, dots, matrices of zeros
_SENTENCE_ENDS = (". ", "! ", "? ", "。", "！", "？", "\n")


_MAX_LOOP_CHARS = 1500
_MIN_SENTENCES_IN_LOOP = 5
_SENTENCE = re.compile(r"[\n.!?。！？]+")
_DIGITS = re.compile(r"\d+")


def ends_in_loop(text: str) -> bool:
    """Return whether a truncated answer ends in repeated sentences, which may differ in digits."""
    tail = _DIGITS.sub("", text[-_MAX_LOOP_CHARS:].casefold())
    sentences = [one.strip() for one in _SENTENCE.split(tail)][1:]
    counts = Counter(one for one in sentences if one)
    if sum(counts.values()) < _MIN_SENTENCES_IN_LOOP:
        return False
    return len(counts) <= sum(counts.values()) // 2


class RepetitionDetector:
    """Detects an answer that repeats the same text endlessly, in microseconds per chunk."""

    def __init__(self) -> None:
        self.found = False
        """Whether the answer repeats itself endlessly."""
        self._pending: list[str] = []
        self._pending_chars = 0
        self._tail = ""
        self._fences = 0
        self._chars = 0
        self._repetition_start = 0  # position of the repetition in the answer
        self._unit_chars = 0

    def feed(self, text: str) -> None:
        """Add the next chunk of the answer."""
        self._pending.append(text)
        self._pending_chars += len(text)
        if self._pending_chars >= _CHARS_BETWEEN_CHECKS and not self.found:
            self._detect_repetition()

    def remove_repetition(self, text: str) -> str:
        """Return the answer with the repeated text only once, cut at a sentence or word."""
        if not self.found:
            return text
        begin = self._repetition_start
        kept = text[: begin + self._unit_chars]
        if kept.rstrip().endswith((".", "!", "?", "。", "！", "？")):
            return kept
        ends = (kept.rfind(mark, begin) + len(mark) for mark in _SENTENCE_ENDS if mark in kept)
        sentence = max((end for end in ends if end > begin), default=0)
        word = kept.rfind(" ", begin) + 1
        return kept[: sentence or (word if word > begin else len(kept))].rstrip()

    def _detect_repetition(self) -> None:
        added = "".join(self._pending)
        self._fences += (self._tail[-len(_CODE_FENCE) + 1 :] + added).count(_CODE_FENCE)
        self._tail = (self._tail + added)[-_MAX_TAIL_CHARS:]
        self._chars += len(added)
        self._pending.clear()
        self._pending_chars = 0
        tail = self._tail
        if len(tail) < _MIN_LOOP_CHARS:
            return
        probe, end = tail[-_PROBE_CHARS:], len(tail) - 1
        for _ in range(_MAX_UNIT_CANDIDATES):
            at = tail.rfind(probe, 0, end)
            if at < 0:
                return
            unit = tail[at + _PROBE_CHARS :]
            if self._is_repeated(unit):
                self.found, self._unit_chars = True, len(unit)
                begin = len(tail)
                while unit == tail[max(0, begin - len(unit)) : begin]:
                    begin -= len(unit)
                self._repetition_start = self._chars - len(tail) + begin
                return
            end = at + _PROBE_CHARS - 1

    def _is_repeated(self, unit: str) -> bool:
        """Return whether the answer ends with enough repetitions of `unit` to be a loop."""
        in_code = self._fences % 2 == 1
        if any(char.isalpha() for char in unit):
            repeats = next(often for length, often in _REPEATS_BY_LENGTH if len(unit) >= length)
            needed = max(_MIN_LOOP_CHARS, repeats * len(unit)) * (_FACTOR_IN_CODE if in_code else 1)
        else:
            needed = max(_MIN_CHARS_WITHOUT_LETTERS, _MIN_REPEATS * len(unit))
        if needed > len(self._tail):
            return False
        repeated = unit * (needed // len(unit) + 1)
        return self._tail[-needed:] == repeated[-needed:]

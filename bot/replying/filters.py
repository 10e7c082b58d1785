"""Stream filters: unwanted texts, repeated beginnings, endless repetition."""

import re
from collections import Counter
from collections.abc import Iterable
from itertools import takewhile

# What .NET's String.Trim() removes, as RodelAgent does (docs/sources.md#rodel): Python's white
# space but the separators U+001C to U+001F.
_WHITE_SPACE = (
    "\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000"
)


def apply_filters(text: str, filter_chars: Iterable[str]) -> str:
    """Remove each unwanted text in turn, then trim; a removal may create a later match."""
    for unwanted in filter_chars:
        text = text.replace(unwanted, "")
    return text.strip(_WHITE_SPACE)


class OutputFilter:
    """Applies the filters to a stream without ever retracting text.

    All results of `feed` and `finish`, joined, equal `apply_filters` of everything fed. Text that
    may become an unwanted text is held back, and so is whitespace that may be the end.
    """

    def __init__(self, filter_chars: Iterable[str]) -> None:
        self._removers = [_Remover(unwanted) for unwanted in filter_chars]
        self._has_text = False
        self._white_space = ""

    def feed(self, text: str) -> str:
        """Add text of the answer; return the text that can be shown."""
        for remover in self._removers:
            text = remover.feed(text)
        return self._trim(text)

    def finish(self) -> str:
        """Return the text held back at the end of the answer."""
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
    """`str.replace(unwanted, "")` for a stream."""

    def __init__(self, unwanted: str) -> None:
        self._unwanted = unwanted
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


class RepeatedBeginning:
    """Removes from a continuation the beginning that was already shown.

    Some services return the whole text, others only the rest. Whitespace at the cut was not sent to
    the model, so the model may repeat it.
    """

    def __init__(self, begun: str) -> None:
        self._begun = begun.rstrip()
        self._gap = begun[len(self._begun) :]
        self._held = ""
        self._is_at_cut = True

    def feed(self, text: str) -> str:
        """Return the text that a piece adds to the answer."""
        if not self._is_at_cut:
            return text
        self._held += text
        if len(self._held) < len(self._begun) and self._begun.startswith(self._held):
            return ""  # it may repeat the beginning
        rest = self._held.removeprefix(self._begun)
        if not rest.strip() and self._gap.startswith(rest):
            return ""
        self._is_at_cut = False
        pairs = zip(rest, self._gap, strict=False)
        return rest[sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs)) :]

    def finish(self) -> str:
        """Return the text held back at the end."""
        is_repeated = not self._is_at_cut or self._held.startswith(self._begun)
        return "" if is_repeated else self._held


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
    """Whether the end of a truncated answer repeats itself, ignoring numbers."""
    tail = _DIGITS.sub("", text[-_LOOP_CHARS:].casefold())
    sentences = [one.strip() for one in _SENTENCE.split(tail)][1:]
    counts = Counter(one for one in sentences if one)
    if sum(counts.values()) < _FEWEST_SENTENCES:
        return False
    return len(counts) <= sum(counts.values()) // 2


class RepetitionDetector:
    """Detects an answer that repeats one text endlessly, in a few microseconds per piece."""

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
        """Add the next piece."""
        self._pending.append(text)
        self._pending_chars += len(text)
        if self._pending_chars >= _CHARS_BETWEEN_CHECKS and not self.found:
            self._check()

    def keep_once(self, text: str) -> str:
        """Return the answer with the repeated text once, ending at a boundary."""
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
                self.found, self._unit_chars = True, len(unit)
                begin = len(tail)
                while unit == tail[max(0, begin - len(unit)) : begin]:
                    begin -= len(unit)
                self._begin = self._chars - len(tail) + begin
                return
            end = at + _PROBE_CHARS - 1

    def _is_repeated(self, unit: str) -> bool:
        """Whether the answer ends in more repetitions of this text than ordinary texts have."""
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

"""Filter streamed text: remove unwanted strings, repeated beginnings, and endless repetition."""

import re
from collections import Counter
from collections.abc import Iterable
from itertools import takewhile

# The characters that .NET's String.Trim() removes, as in RodelAgent (docs/sources.md#rodel):
# Python's whitespace without the separators U+001C to U+001F.
_WHITESPACE = (
    "\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000"
)


def apply_filters(text: str, unwanted_texts: Iterable[str]) -> str:
    """Remove each unwanted text, one after another, then leading and trailing whitespace."""
    for unwanted_text in unwanted_texts:
        text = text.replace(unwanted_text, "")
    return text.strip(_WHITESPACE)


class OutputFilter:
    """Applies `apply_filters` to a stream, and returns only text that will not be removed later.

    The joined results of `feed` and `finish` equal `apply_filters` of the joined input. It holds
    back possible beginnings of unwanted texts, and whitespace that may be at the end.
    """

    def __init__(self, unwanted_texts: Iterable[str]) -> None:
        self._removers = [_TextRemover(unwanted_text) for unwanted_text in unwanted_texts]
        self._has_text = False
        self._held_whitespace = ""

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
            text = text.lstrip(_WHITESPACE)
            self._has_text = bool(text)
        text = self._held_whitespace + text
        visible_text = text.rstrip(_WHITESPACE)
        self._held_whitespace = text[len(visible_text) :]
        return visible_text


class _TextRemover:
    """Removes an unwanted text from a stream, like `str.replace(unwanted, "")`."""

    def __init__(self, unwanted_text: str) -> None:
        self._unwanted_text = unwanted_text
        self._held_text = ""  # the longest suffix that may begin the unwanted text

    def feed(self, text: str) -> str:
        *clean_parts, unfinished_text = (self._held_text + text).split(self._unwanted_text)
        held_back_chars = next(
            length
            for length in range(min(len(self._unwanted_text) - 1, len(unfinished_text)), -1, -1)
            if unfinished_text.endswith(self._unwanted_text[:length])
        )
        self._held_text = unfinished_text[len(unfinished_text) - held_back_chars :]
        return "".join(clean_parts) + unfinished_text[: len(unfinished_text) - held_back_chars]

    def finish(self) -> str:
        text, self._held_text = self._held_text, ""
        return text


class RepeatedStartFilter:
    """Removes the beginning of a cut-off answer from its continuation.

    Some services return the complete text, others only the rest. Whitespace at the cut was not sent
    to the model, which may therefore generate it again.
    """

    def __init__(self, text_to_continue: str) -> None:
        self._prefix = text_to_continue.rstrip()
        self._trailing_whitespace = text_to_continue[len(self._prefix) :]
        self._held_text = ""
        self._is_comparing_start = True

    def feed(self, text: str) -> str:
        """Add a chunk, and return the text that was not shown before."""
        if not self._is_comparing_start:
            return text
        self._held_text += text
        if len(self._held_text) < len(self._prefix) and self._prefix.startswith(self._held_text):
            return ""  # it may be a repeated beginning
        new_text = self._held_text.removeprefix(self._prefix)
        if not new_text.strip() and self._trailing_whitespace.startswith(new_text):
            return ""
        self._is_comparing_start = False
        pairs = zip(new_text, self._trailing_whitespace, strict=False)
        return new_text[sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs)) :]

    def finish(self) -> str:
        """Return the rest of the text that was held back."""
        is_repeated = not self._is_comparing_start or self._held_text.startswith(self._prefix)
        return "" if is_repeated else self._held_text


_MAX_TAIL_CHARS = 8000
_CHARS_BETWEEN_CHECKS = 48
_LOOP_PROBE_CHARS = 24
_MAX_REPEATED_UNIT_CANDIDATES = 8
_CODE_FENCE = "```"

# The number of repetitions that count as endless, by minimum length of the repeated text.
_MIN_REPEATS = 6
_REPEATS_BY_LENGTH = ((120, _MIN_REPEATS), (40, 12), (1, 16))
_MIN_LOOP_CHARS = 400
_CODE_LOOP_FACTOR = 5  # a loop in a code block must be this many times as long
_MIN_CHARS_WITHOUT_LETTERS = 6000  # rulers, dots, matrices of zeros
_SENTENCE_ENDS = (". ", "! ", "? ", "。", "！", "？", "\n")


_CHECKED_TAIL_CHARS = 1500
_MIN_SENTENCES_IN_LOOP = 5
_SENTENCE_BREAK = re.compile(r"[\n.!?。！？]+")
_DIGITS = re.compile(r"\d+")


def ends_in_loop(text: str) -> bool:
    """Return whether a cut-off answer ends in repeated sentences, which may differ in digits."""
    normalized_tail = _DIGITS.sub("", text[-_CHECKED_TAIL_CHARS:].casefold())
    sentences = [one.strip() for one in _SENTENCE_BREAK.split(normalized_tail)][1:]
    sentence_counts = Counter(one for one in sentences if one)
    if sum(sentence_counts.values()) < _MIN_SENTENCES_IN_LOOP:
        return False
    return len(sentence_counts) <= sum(sentence_counts.values()) // 2


class RepetitionDetector:
    """Detects endless repetition in an answer; takes microseconds per chunk."""

    def __init__(self) -> None:
        self.has_repetition = False
        self._pending_chunks: list[str] = []
        self._pending_char_count = 0
        self._tail = ""
        self._fence_count = 0
        self._char_count = 0
        self._repetition_start = 0  # position of the repetition in the answer
        self._repeated_unit_chars = 0

    def feed(self, text: str) -> None:
        self._pending_chunks.append(text)
        self._pending_char_count += len(text)
        if self._pending_char_count >= _CHARS_BETWEEN_CHECKS and not self.has_repetition:
            self._detect_repetition()

    def remove_repetition(self, text: str) -> str:
        """Return the answer with the repeated text only once, cut at a sentence or word."""
        if not self.has_repetition:
            return text
        repetition_start = self._repetition_start
        shortened_text = text[: repetition_start + self._repeated_unit_chars]
        if shortened_text.rstrip().endswith((".", "!", "?", "。", "！", "？")):
            return shortened_text
        marks = [mark for mark in _SENTENCE_ENDS if mark in shortened_text]
        sentence_ends = (shortened_text.rfind(mark, repetition_start) + len(mark) for mark in marks)
        sentence_end = max((end for end in sentence_ends if end > repetition_start), default=0)
        word_end = shortened_text.rfind(" ", repetition_start) + 1
        end = sentence_end or (word_end if word_end > repetition_start else len(shortened_text))
        return shortened_text[:end].rstrip()

    def _detect_repetition(self) -> None:
        new_text = "".join(self._pending_chunks)
        self._fence_count += (self._tail[-len(_CODE_FENCE) + 1 :] + new_text).count(_CODE_FENCE)
        self._tail = (self._tail + new_text)[-_MAX_TAIL_CHARS:]
        self._char_count += len(new_text)
        self._pending_chunks.clear()
        self._pending_char_count = 0
        tail = self._tail
        if len(tail) < _MIN_LOOP_CHARS:
            return
        probe, end = tail[-_LOOP_PROBE_CHARS:], len(tail) - 1
        for _ in range(_MAX_REPEATED_UNIT_CANDIDATES):
            position = tail.rfind(probe, 0, end)
            if position < 0:
                return
            repeated_unit = tail[position + _LOOP_PROBE_CHARS :]
            if self._is_repeated(repeated_unit):
                self.has_repetition, self._repeated_unit_chars = True, len(repeated_unit)
                begin = len(tail)
                while repeated_unit == tail[max(0, begin - len(repeated_unit)) : begin]:
                    begin -= len(repeated_unit)
                self._repetition_start = self._char_count - len(tail) + begin
                return
            end = position + _LOOP_PROBE_CHARS - 1

    def _is_repeated(self, text: str) -> bool:
        """Return whether the answer ends with enough repetitions of `text` to be a loop."""
        is_in_code = self._fence_count % 2 == 1
        if any(char.isalpha() for char in text):
            min_repeats = next(count for length, count in _REPEATS_BY_LENGTH if len(text) >= length)
            code_factor = _CODE_LOOP_FACTOR if is_in_code else 1
            min_loop_chars = max(_MIN_LOOP_CHARS, min_repeats * len(text)) * code_factor
        else:
            min_loop_chars = max(_MIN_CHARS_WITHOUT_LETTERS, _MIN_REPEATS * len(text))
        if min_loop_chars > len(self._tail):
            return False
        loop = text * (min_loop_chars // len(text) + 1)
        return self._tail[-min_loop_chars:] == loop[-min_loop_chars:]

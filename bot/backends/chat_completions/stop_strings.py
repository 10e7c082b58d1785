"""Collect a prompt's stop strings, and end the answer at the first one.

Services accept at most four stop strings, and some ignore them, so answers are searched here, too.
"""

import re
from collections.abc import Collection, Sequence
from functools import lru_cache

from bot.chat.prompt import Prompt

STRING_TEMPLATE_PARAMETERS = frozenset(
    {"system_template", "user_template", "assistant_template", "end_template"}
)
"""RodelAgent's string templates, which are stored as parameters but not sent to a model."""


def collect_stop_strings(prompt: Prompt) -> tuple[str, ...]:
    match prompt.parameters.get("stop"):
        case str() as word:
            return (*prompt.stop, word)
        case list() | tuple() as words:
            return (*prompt.stop, *map(str, words))
        case _:
            return prompt.stop


class StopStringFilter:
    """Passes text through up to the first stop string; holds back the possible start of one."""

    def __init__(self, stop: Sequence[str]) -> None:
        self.has_matched = False
        self._stop = [each for each in stop if each]
        self._first_char = _compile_char_pattern(frozenset([each[0] for each in self._stop]))
        self._held_text = ""

    def feed(self, text: str) -> str:
        if self.has_matched or not self._stop:
            return "" if self.has_matched else text
        text = self._held_text + text
        if self._first_char.search(text) is None:
            return text  # the usual case
        matches = [(at + len(stop), at) for stop in self._stop if (at := text.find(stop)) >= 0]
        if matches:
            self.has_matched = True
            self._held_text = ""
            _, begin = min(matches)  # the stop string that ends first
            return text[:begin]
        held_length = max(partial_match_length(text, stop) for stop in self._stop)
        self._held_text = text[len(text) - held_length :]
        return text[: len(text) - held_length]

    def flush(self) -> str:
        text, self._held_text = self._held_text, ""
        return text


@lru_cache(maxsize=64)
def _compile_char_pattern(chars: Collection[str]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, sorted(chars))))


def partial_match_length(text: str, stop: str) -> int:
    """Return the length of the longest suffix of `text` that is a proper prefix of `stop`."""
    possible_lengths = range(min(len(text), len(stop) - 1), 0, -1)
    return next((size for size in possible_lengths if text.endswith(stop[:size])), 0)

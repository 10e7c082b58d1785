"""Collect a prompt's stop strings, and end the answer at the first one.

Services accept at most four stop strings, and some ignore them, so answers are also searched here.
"""

import re
from collections.abc import Collection, Sequence
from functools import lru_cache

from bot.chat.prompt import Prompt

UNSENT_TEMPLATE_PARAMETERS = frozenset(
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

    def __init__(self, stop_strings: Sequence[str]) -> None:
        self.has_found_stop_string = False
        self._stop_strings = [text for text in stop_strings if text]
        first_chars = frozenset([text[0] for text in self._stop_strings])
        self._first_char_pattern = _compile_char_pattern(first_chars)
        self._buffer = ""

    def feed(self, text: str) -> str:
        if self.has_found_stop_string or not self._stop_strings:
            return "" if self.has_found_stop_string else text
        text = self._buffer + text
        if self._first_char_pattern.search(text) is None:
            return text  # the usual case
        matches = [
            (position + len(stop_string), position)
            for stop_string in self._stop_strings
            if (position := text.find(stop_string)) >= 0
        ]
        if matches:
            self.has_found_stop_string = True
            self._buffer = ""
            _, start = min(matches)  # the stop string that ends first
            return text[:start]
        held_back_length = max(
            partial_match_length(text, stop_string) for stop_string in self._stop_strings
        )
        self._buffer = text[len(text) - held_back_length :]
        return text[: len(text) - held_back_length]

    def flush(self) -> str:
        text, self._buffer = self._buffer, ""
        return text


@lru_cache(maxsize=64)
def _compile_char_pattern(chars: Collection[str]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, sorted(chars))))


def partial_match_length(text: str, stop_string: str) -> int:
    """Return the length of `text`'s longest suffix that is a proper prefix of `stop_string`."""
    possible_lengths = range(min(len(text), len(stop_string) - 1), 0, -1)
    return next((length for length in possible_lengths if text.endswith(stop_string[:length])), 0)

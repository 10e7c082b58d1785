"""Collect a prompt's stop strings, and end the answer where one of them begins.

Services accept at most four, and some ignore them, so every answer is searched here too.
"""

import re
from collections.abc import Collection, Sequence
from functools import lru_cache

from bot.chat.prompt import Prompt

STRING_TEMPLATE_PARAMETERS = frozenset(
    {"system_template", "user_template", "assistant_template", "end_template"}
)
"""RodelAgent keeps its string templates among the sampling parameters; no model knows them."""


def stop_strings_of(prompt: Prompt) -> tuple[str, ...]:
    match prompt.parameters.get("stop"):
        case str() as word:
            return (*prompt.stop, word)
        case list() | tuple() as words:
            return (*prompt.stop, *map(str, words))
        case _:
            return prompt.stop


class StopStringFilter:
    """Passes text on up to the first stop string; holds back text that may begin one."""

    def __init__(self, stop: Sequence[str]) -> None:
        self.hit = False
        self._stop = [each for each in stop if each]
        self._first_char = _pattern_of_any(frozenset([each[0] for each in self._stop]))
        self._held = ""

    def feed(self, text: str) -> str:
        if self.hit or not self._stop:
            return "" if self.hit else text
        text = self._held + text
        if self._first_char.search(text) is None:
            return text  # nearly every piece of every answer
        matches = [(at + len(stop), at) for stop in self._stop if (at := text.find(stop)) >= 0]
        if matches:
            self.hit = True
            self._held = ""
            _, begin = min(matches)  # the one that is complete first
            return text[:begin]
        held = max(overlap(text, stop) for stop in self._stop)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]

    def flush(self) -> str:
        held, self._held = self._held, ""
        return held


@lru_cache(maxsize=64)
def _pattern_of_any(chars: Collection[str]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, sorted(chars))))


def overlap(text: str, stop: str) -> int:
    """Return the length of the longest suffix of `text` that is a proper prefix of `stop`."""
    sizes = range(min(len(text), len(stop) - 1), 0, -1)
    return next((size for size in sizes if text.endswith(stop[:size])), 0)

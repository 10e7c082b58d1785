"""End an answer where a stop string begins, also when it comes in pieces.

Services take four stop strings at most and some ignore them; a group has one per speaker.
"""

from collections.abc import Sequence


class StopStrings:
    """Feed it text, get what may be shown; what could become a stop string is held back."""

    def __init__(self, stops: Sequence[str]) -> None:
        self.hit = False
        self._stops = [stop for stop in stops if stop]
        self._held = ""

    def feed(self, text: str) -> str:
        """Take more of the answer; after `hit` nothing more is shown."""
        if self.hit or not self._stops:
            return "" if self.hit else text
        text = self._held + text
        found = [(at + len(stop), at) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            self.hit = True
            self._held = ""
            _, begin = min(found)  # the one that is complete first
            return text[:begin]
        held = max(_overlap(text, stop) for stop in self._stops)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]

    def rest(self) -> str:
        """Give back what was held, at the end of the answer."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """How many characters at the end of `text` are the beginning of `stop`."""
    sizes = range(min(len(text), len(stop) - 1), 0, -1)
    return next((size for size in sizes if text.endswith(stop[:size])), 0)

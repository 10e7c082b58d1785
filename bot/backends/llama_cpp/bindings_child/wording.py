"""Tokens become text: whole characters only, until a token or a text ends the answer."""

import codecs
from collections.abc import Callable, Container, Sequence

from bot.backends.chat_completions.stop_strings import StopStringFilter


class Wording:
    """The text of one answer."""

    def __init__(
        self, spelled: Callable[[int], bytes], *, ends: Container[int], stop: Sequence[str]
    ) -> None:
        self.ended = False
        self._spelled = spelled
        self._ends = ends
        self._stops = StopStringFilter(stop)
        # A token may be a part of a character: three of them make an emoji.
        self._characters = codecs.getincrementaldecoder("utf-8")("replace")

    def take(self, token: int) -> str:
        """Give what can be shown after one more token; nothing more comes when it has `ended`."""
        if token in self._ends:
            self.ended = True
            return self.rest()
        text = self._stops.feed(self._characters.decode(self._spelled(token)))
        self.ended = self._stops.hit
        return text

    def rest(self) -> str:
        """Give what was held back, when no more tokens come."""
        return self._stops.feed(self._characters.decode(b"", final=True)) + self._stops.flush()

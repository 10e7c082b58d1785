"""Turn tokens into text: whole characters only, until an end token or a stop string."""

import codecs
from collections.abc import Callable, Container, Sequence

from bot.backends.chat_completions.stop_strings import StopStringFilter


class Detokenizer:
    """Decode the tokens of one generation."""

    def __init__(
        self, token_bytes: Callable[[int], bytes], *, ends: Container[int], stop: Sequence[str]
    ) -> None:
        self.ended = False
        self._token_bytes = token_bytes
        self._ends = ends
        self._stops = StopStringFilter(stop)
        # A token may be a part of a character: an emoji takes up to three tokens.
        self._characters = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, token: int) -> str:
        """Add a token and return the text that is final; nothing follows once it has `ended`."""
        if token in self._ends:
            self.ended = True
            return self.flush()
        text = self._stops.feed(self._characters.decode(self._token_bytes(token)))
        self.ended = self._stops.hit
        return text

    def flush(self) -> str:
        """Return what was held back, after the last token."""
        return self._stops.feed(self._characters.decode(b"", final=True)) + self._stops.flush()

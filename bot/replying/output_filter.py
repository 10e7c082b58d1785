"""Remove the texts that a preset filters from an answer, also while it streams."""

from collections.abc import Iterable

# What .NET's String.Trim() removes, as RodelAgent does (docs/sources.md#rodel): Python's white
# space but the separators U+001C to U+001F.
_WHITE_SPACE = (
    "\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000"
)


def apply_filters(text: str, filter_chars: Iterable[str]) -> str:
    """Remove each text in turn, then trim; what one removal joins, a later one may match."""
    for unwanted in filter_chars:
        text = text.replace(unwanted, "")
    return text.strip(_WHITE_SPACE)


class OutputFilter:
    """Does the same for a stream; no text that it returned has to be taken back.

    What `feed` and `finish` return, joined, is `apply_filters` of all that was fed. A text that may
    still grow into an unwanted one is held back, and so is white space that may be the end.
    """

    def __init__(self, filter_chars: Iterable[str]) -> None:
        self._removers = [_Remover(unwanted) for unwanted in filter_chars]
        self._has_text = False
        self._white_space = ""

    def feed(self, text: str) -> str:
        """Append text of the answer; return what can be shown."""
        for remover in self._removers:
            text = remover.feed(text)
        return self._trim(text)

    def finish(self) -> str:
        """Return what was held back, at the end of the answer."""
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
    """`str.replace(unwanted, "")` over a stream."""

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

"""Remove the texts that a preset filters out of an answer, also while the answer is streaming."""

from collections.abc import Iterable

# What .NET's String.Trim() takes away, RodelAgent's rule: Python's white space but the separators
# U+001C to U+001F.
_WHITE_SPACE = (
    "\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000"
)


def filtered(text: str, filter_chars: Iterable[str]) -> str:
    """Remove each text in turn, then trim: what one removal joins, a later one may match."""
    for unwanted in filter_chars:
        text = text.replace(unwanted, "")
    return text.strip(_WHITE_SPACE)


class OutputFilter:
    """The same for an answer that comes in pieces: what was let through never has to be taken back.

    All that `feed` and `finish` return, joined, is `filtered` of all that was fed. A text that may
    still grow into an unwanted one waits, and so does white space that may turn out to be the end.
    """

    def __init__(self, filter_chars: Iterable[str]) -> None:
        self._removers = [_Remover(unwanted) for unwanted in filter_chars]
        self._begun = False
        self._white_space = ""

    def feed(self, text: str) -> str:
        """Take more of the answer; gives what may be shown."""
        for remover in self._removers:
            text = remover.feed(text)
        return self._trimmed(text)

    def finish(self) -> str:
        """Give what waited, at the end of the answer."""
        text = ""
        for remover in self._removers:
            text = remover.feed(text) + remover.finish()
        return self._trimmed(text)

    def _trimmed(self, text: str) -> str:
        if not self._begun:
            text = text.lstrip(_WHITE_SPACE)
            self._begun = bool(text)
        text = self._white_space + text
        visible = text.rstrip(_WHITE_SPACE)
        self._white_space = text[len(visible) :]
        return visible


class _Remover:
    """`str.replace(unwanted, "")` over a stream."""

    def __init__(self, unwanted: str) -> None:
        self._unwanted = unwanted
        self._waiting = ""  # the longest end of the text that begins the unwanted one

    def feed(self, text: str) -> str:
        *clean, rest = (self._waiting + text).split(self._unwanted)
        waits = next(
            length
            for length in range(min(len(self._unwanted) - 1, len(rest)), -1, -1)
            if rest.endswith(self._unwanted[:length])
        )
        self._waiting = rest[len(rest) - waits :]
        return "".join(clean) + rest[: len(rest) - waits]

    def finish(self) -> str:
        text, self._waiting = self._waiting, ""
        return text

"""Remove speaker tags from an answer while it streams, and stop at another speaker's tag."""

import re
import unicodedata
from collections.abc import Iterable

from bot.prompting.speakers import MAX_TAG_CHARS, strip_name_suffix
from bot.prompting.text.confusables import COLON, is_invisible
from bot.texts.caches import text_cache

_LINE_END = re.compile(r"[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]")
_OPENING = "*_~`\"'“”„«‘「『【[(<＊"  # models write **Nora:** or 「Nora」：
_CLOSING = str.maketrans("“„«‘「『【[(<", "””»’」』】])>")
_DELIMITERS = frozenset(_OPENING + _OPENING.translate(_CLOSING))
_WITHOUT_DELIMITERS = str.maketrans(dict.fromkeys(_DELIMITERS))


class EchoFilter:
    """Filters a streamed answer; only beginnings of lines are ever held back.

    The character's own tag is removed from the beginning of each line, also repeated ones. The
    answer ends at a line that begins with another speaker's tag; if nothing was shown yet, that tag
    is removed, too. The result does not depend on how the text was split.
    """

    def __init__(self, own: str | None, others: Iterable[str] = ()) -> None:
        self.stopped = False
        """Whether another speaker's tag has ended the answer."""
        self._own = frozenset() if own is None else frozenset([_plain_label(own)])
        self._known = (self._own | set(map(_plain_label, others))) - {""}
        self._held = ""
        self._at_line_start = True
        self._has_text = False

    def feed(self, text: str) -> str:
        """Take the next piece of the answer and return what may be shown."""
        if not self._own:
            return text
        is_inside_line = self._has_text and not (self._at_line_start or self._held or self.stopped)
        if is_inside_line and _LINE_END.search(text) is None:
            return text  # nearly every piece of every answer
        self._held += text
        return self._release(ended=False)

    def finish(self) -> str:
        """Return what was held back, at the end of the answer."""
        return self._release(ended=True)

    def _release(self, *, ended: bool) -> str:
        shown = []
        while self._held and not self.stopped:
            size = self._tag_chars(ended=ended) if self._at_line_start else 0
            if size is None:
                break
            if size:
                self._remove_tag(size)
            else:
                shown.append(self._take_line())
        return "".join(shown)

    def _remove_tag(self, size: int) -> None:
        tag, self._held = self._held[:size], self._held[size:]
        own = _plain(COLON.split(tag, maxsplit=1)[0]) in self._own
        self.stopped = self._has_text and not own

    def _take_line(self) -> str:
        """Return the known part of the line; blank lines before the first word are dropped."""
        end = _LINE_END.search(self._held)
        size = len(self._held) if end is None else end.end()
        line, self._held = self._held[:size], self._held[size:]
        self._at_line_start = end is not None
        self._has_text = self._has_text or bool(line.strip())
        return line if self._has_text else ""

    def _tag_chars(self, *, ended: bool) -> int | None:
        """Return the length of the tag that begins the line: 0 for none, None if more is needed."""
        end = _LINE_END.search(self._held)
        line = self._held if end is None else self._held[: end.start()]
        indent = len(line) - len(line.lstrip())
        limit = indent + MAX_TAG_CHARS
        colon = COLON.search(line, 0, limit)
        is_complete = ended or end is not None
        if colon is None:
            needs_more = not is_complete and len(line) < limit and self._may_become_a_tag(line)
            return None if needs_more else 0
        if _plain(line[: colon.start()]) not in self._known:
            return 0
        after, closing = line[colon.end() :], _closing(line[: colon.start()])
        text = after.removeprefix(closing).lstrip()
        if not is_complete and (not text or closing.startswith(after)):
            return None
        return len(line) - len(text)

    def _may_become_a_tag(self, line: str) -> bool:
        prefix = _plain(line)
        return any(label.startswith(prefix) for label in self._known)


def _closing(before: str) -> str:
    """Return the delimiter to expect after the colon for one before the name: `**Nora:**`."""
    name = before.strip()
    opening = name[: len(name) - len(name.lstrip(_OPENING))]
    closing = opening[::-1].translate(_CLOSING)
    return "" if name.endswith(closing) else closing


def _plain(text: str) -> str:
    """Return a name for comparison: without delimiters, case, id suffix, invisible characters.

    Models invent suffixes, `Nora#12:`, and add stage directions, `Nora (smiles):`. The name is
    decomposed, so that a prefix of it is also a prefix of the result.
    """
    name = strip_name_suffix(text)
    if name.isascii() and name.isprintable():  # nearly always, and in a fraction of the time
        return " ".join(name.translate(_WITHOUT_DELIMITERS).lower().split())
    decomposed = unicodedata.normalize("NFKD", name).casefold()
    kept = (
        char
        for char in decomposed
        if char.isspace() or not (char in _DELIMITERS or is_invisible(char))
    )
    return " ".join("".join(kept).split())


_plain_label = text_cache(1024)(_plain)  # of each answer, for the same few speakers

"""Keep speakers' tags out of an answer while it streams: a character speaks for itself only."""

import re
import unicodedata
from collections.abc import Iterable

from bot.prompting.speakers.tag_detection import MAX_TAG_CHARS, strip_name_suffix
from bot.prompting.text.confusables import COLON, is_invisible

_LINE_END = re.compile(r"[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]")
_OPENING = "*_~`\"'“”„«‘「『【[(<＊"  # what models put around a name: **Nora:** or 「Nora」：
_CLOSING = str.maketrans("“„«‘「『【[(<", "””»’」』】])>")
_FRAMES = frozenset(_OPENING + _OPENING.translate(_CLOSING))


class EchoFilter:
    """Feed it the answer as it streams in; only beginnings of lines are ever held back.

    The own tag goes wherever a line begins with it, also when it is repeated. Where a line begins
    with the tag of somebody else the answer ends, because what follows is not the character's to
    say; only if nothing was said yet, that tag goes like an own one, or nothing would be left.
    All that `feed` and `finish` return, joined, does not depend on how the text came in pieces.
    """

    def __init__(self, own: str | None, others: Iterable[str] = ()) -> None:
        self.stopped = False  # somebody else began to speak: nothing more is let through
        self._own = frozenset() if own is None else frozenset([_plain(own)])
        self._known = (self._own | {_plain(label) for label in others}) - {""}
        self._held = ""
        self._at_line_start = True
        self._spoken = False

    def feed(self, text: str) -> str:
        """Take more of the answer; gives what may be shown."""
        if not self._own:
            return text
        self._held += text
        return self._released(ended=False)

    def finish(self) -> str:
        """Give what was held back, at the end of the answer."""
        return self._released(ended=True)

    def _released(self, *, ended: bool) -> str:
        shown = []
        while self._held and not self.stopped:
            size = self._tag_chars(ended=ended) if self._at_line_start else 0
            if size is None:
                break
            if size:
                self._take_off(size)
            else:
                shown.append(self._take_line())
        return "".join(shown)

    def _take_off(self, size: int) -> None:
        tag, self._held = self._held[:size], self._held[size:]
        own = _plain(COLON.split(tag, maxsplit=1)[0]) in self._own
        self.stopped = self._spoken and not own

    def _take_line(self) -> str:
        """Take the line, or what is there of it; a blank one before the first word is dropped."""
        end = _LINE_END.search(self._held)
        size = len(self._held) if end is None else end.end()
        line, self._held = self._held[:size], self._held[size:]
        self._at_line_start = end is not None
        self._spoken = self._spoken or bool(line.strip())
        return line if self._spoken else ""

    def _tag_chars(self, *, ended: bool) -> int | None:
        """How long the tag is that the held line begins with: 0 for none, None while it is open."""
        end = _LINE_END.search(self._held)
        line = self._held if end is None else self._held[: end.start()]
        begins = len(line) - len(line.lstrip())
        latest = begins + MAX_TAG_CHARS
        colon = COLON.search(line, 0, latest)
        whole = ended or end is not None
        if colon is None:
            waits = not whole and len(line) < latest and self._may_become_a_tag(line)
            return None if waits else 0
        if _plain(line[: colon.start()]) not in self._known:
            return 0
        after, closing = line[colon.end() :], _closing(line[: colon.start()])
        text = after.removeprefix(closing).lstrip()
        if not whole and (not text or closing.startswith(after)):
            return None
        return len(line) - len(text)

    def _may_become_a_tag(self, line: str) -> bool:
        begun = _plain(line)
        return any(label.startswith(begun) for label in self._known)


def _closing(before: str) -> str:
    """What closes behind the colon the frame that was opened in front of the name: `**Nora:**`."""
    name = before.strip()
    opened = name[: len(name) - len(name.lstrip(_OPENING))]
    closing = opened[::-1].translate(_CLOSING)
    return "" if name.endswith(closing) else closing


def _plain(text: str) -> str:
    """A name as it is compared: no frames, no case, no mark, nothing that nobody sees.

    Models invent marks, `Nora#12:`, and add how somebody speaks, `Nora (smiles):`. The name is
    decomposed, so that its beginning is also the beginning of its plain form.
    """
    decomposed = unicodedata.normalize("NFKD", strip_name_suffix(text)).casefold()
    kept = (
        sign for sign in decomposed if sign.isspace() or not (sign in _FRAMES or is_invisible(sign))
    )
    return " ".join("".join(kept).split())

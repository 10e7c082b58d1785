"""Fill `{{char}}`, `{{user}}`, `{{roll:2d6}}` into a card's text: one pass, and no template at all.

Only what stands in the text itself is ever read as a macro: what a macro gives (a name, a line that
somebody wrote) goes out as it is, so nobody can smuggle one in. What is unknown stays as it stands.
"""

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone

_MAX_DEPTH = 8
_MAX_DICE, _MAX_SIDES = 100, 1_000_000
_ROLL = re.compile(r"(\d{0,4})d(\d{1,7})([+-]\d{1,7})?|(\d{1,7})", re.IGNORECASE)
_LEGACY = re.compile(r"<(user|bot|char)>", re.IGNORECASE)  # how the oldest cards write them
_TRIM = "\x00trim\x00"  # a mark that no text holds: all NULs are taken out first
_BRACES = re.compile(r"\{\{|\}\}")
_TIME_ZONE = re.compile(r"time_utc([+-]\d{1,2})", re.IGNORECASE)
_NAMES = {
    "char": "char",
    "bot": "char",
    "charifnotgroup": "char",
    "user": "user",
    "group": "group",
    "original": "original",
    "persona": "persona",
    "input": "newest",
    "lastmessage": "last",
    "lastusermessage": "newest",
    "lastcharmessage": "last_answer",
    "charversion": "version",
    "char_version": "version",
    "model": "model",
}


@dataclass(frozen=True, slots=True)
class Macros:
    """What macros stand for in one prompt. `at` is the moment that `{{time}}` tells."""

    char: str
    user: str
    at: datetime
    rng: random.Random = field(default_factory=random.Random)
    group: str = ""  # everybody's names
    original: str = ""  # the text that the card's own takes the place of
    persona: str = ""
    newest: str = ""
    last: str = ""
    last_answer: str = ""
    version: str = ""
    model: str = ""

    def expand(self, text: str) -> str:
        """Fill in what is known, once; what it gives is never read again."""
        if "{{" not in text and "<" not in text:
            return text
        return without_trims(self._expand(text.replace("\x00", ""), 0), _TRIM)

    def _expand(self, text: str, depth: int) -> str:
        parts: list[str] = []
        place = 0
        for start, end in _pairs(text):
            inner = text[start + 2 : end - 2]
            parts.append(self._legacy(text[place:start]))
            found = self._macro(inner, depth) if depth < _MAX_DEPTH else None
            parts.append("{{" + inner + "}}" if found is None else found)
            place = end
        return "".join([*parts, self._legacy(text[place:])])

    def _legacy(self, text: str) -> str:
        return _LEGACY.sub(
            lambda found: self.user if found[1].lower() == "user" else self.char, text
        )

    def _macro(self, inner: str, depth: int) -> str | None:
        """Give what stands for it; None if it is no macro of ours."""
        if inner.lstrip().startswith("//"):
            return ""
        name, _, argument = inner.partition(":")
        name = name.strip().lower()
        if name in _NAMES and not argument:
            return str(getattr(self, _NAMES[name]))
        if (moment := self._moment(name)) is not None and not argument:
            return moment
        match name:
            case "random" | "pick":
                return self._chosen(argument, depth)
            case "roll":
                return self._rolled(argument)
            case "reverse":
                return self._expand(argument, depth + 1)[::-1]
            case "newline":
                return "\n"
            case "trim":
                return _TRIM
            case "noop" | "comment" | "hidden_key":
                return ""
            case _:
                return self._spaced(name)

    def _spaced(self, name: str) -> str | None:
        """`{{roll 1d20}}`: the older way to write an argument."""
        head, _, argument = name.partition(" ")
        return self._rolled(argument) if head == "roll" else None

    def _chosen(self, argument: str, depth: int) -> str:
        """Choose one of `a,b,c` or, if a comma belongs to them, `:a::b::c`."""
        options = _split(argument.removeprefix(":"), "::")
        if len(options) == 1 and not argument.startswith(":"):
            options = [option.strip() for option in _split(argument, ",")]
        return self._expand(self.rng.choice(options), depth + 1)

    def _rolled(self, argument: str) -> str:
        """Roll `20`, `d20` or `3d6+2`; what is no rng gives nothing."""
        found = _ROLL.fullmatch(argument.strip().strip(":"))
        if found is None:
            return ""
        count = int(found[1] or 1) if found[4] is None else 1
        sides = int(found[4] or found[2])
        if not (1 <= count <= _MAX_DICE and 1 <= sides <= _MAX_SIDES):
            return ""
        rolls = (self.rng.randint(1, sides) for _ in range(count))
        return str(sum(rolls) + int(found[3] or 0))

    def _moment(self, name: str) -> str | None:
        at = self.at
        if zone := _TIME_ZONE.fullmatch(name):
            at = at.astimezone(timezone(timedelta(hours=max(-14, min(14, int(zone[1]))))))
            name = "time"
        tell: dict[str, Callable[[], str]] = {
            "time": lambda: at.strftime("%I:%M %p").lstrip("0"),
            "date": lambda: f"{at:%B} {at.day}, {at.year}",
            "weekday": lambda: at.strftime("%A"),
            "isotime": lambda: at.strftime("%H:%M"),
            "isodate": lambda: at.strftime("%Y-%m-%d"),
        }
        return tell[name]() if name in tell else None


def without_trims(text: str, mark: str, breaks: str = "\n") -> str:
    """Take out the marks with the line breaks around them; a pattern for it is quadratic."""
    first, *rest = text.split(mark)
    if not rest:
        return text
    *between, last = rest
    inner = [part.strip(breaks) for part in between]
    return "".join([first.rstrip(breaks), *inner, last.lstrip(breaks)])


def _pairs(text: str) -> list[tuple[int, int]]:
    """Where each outermost pair of braces begins, and the place behind its end, in order."""
    pairs: list[tuple[int, int]] = []
    opened: list[int] = []
    for brace in _BRACES.finditer(text):
        if brace[0] == "{{":
            opened.append(brace.start())
        elif opened:
            start = opened.pop()
            while pairs and pairs[-1][0] > start:
                pairs.pop()
            pairs.append((start, brace.end()))
    return pairs


def _split(text: str, separator: str) -> Sequence[str]:
    """Split outside of braces: `{{char}},b` has two parts, `{{random:a,b}}` has one."""
    parts, begun, place = [], 0, 0
    for start, end in [*_pairs(text), (len(text), len(text))]:
        while (found := text.find(separator, place, start)) >= 0:
            parts.append(text[begun:found])
            place = begun = found + len(separator)
        place = end
    return [*parts, text[begun:]]

"""Expand the macros of a card's text, such as `{{char}}`, `{{user}}`, `{{roll:2d6}}`, in one pass.

Only macros of the text itself are expanded: the values (a name, a line that a person wrote) are
inserted unchanged, so nobody can inject a macro. Unknown macros stay as they are. See
docs/sources.md#sillytavern.
"""

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone

from bot.frozen_dataclass import frozen_dataclass

_MAX_DEPTH = 8
_MAX_DICE, _MAX_SIDES = 100, 1_000_000
_MAX_MACROS = 100_000  # a prompt with them takes seconds
_CHARS_PER_MACRO = 20  # the argument of {{random}} is read once more in each level
_MAX_INSERTED_CHARS = 4_000_000  # far more than any model reads
_ROLL = re.compile(r"(\d{0,4})d(\d{1,7})([+-]\d{1,7})?|(\d{1,7})", re.IGNORECASE)
_LEGACY = re.compile(r"<(user|bot|char)>", re.IGNORECASE)  # the form of the oldest cards
_TRIM = "\x00trim\x00"  # no text contains it: NULs are removed first
_BRACES = re.compile(r"\{\{|\}\}")
_TIME_ZONE = re.compile(r"time_utc([+-]\d{1,2})", re.IGNORECASE)
_FIELDS = {
    "char": "char",
    "bot": "char",
    "charifnotgroup": "char",
    "user": "user",
    "group": "group",
    "original": "original",
    "persona": "persona",
    "input": "last_user_message",
    "lastmessage": "last_message",
    "lastusermessage": "last_user_message",
    "lastcharmessage": "last_char_message",
    "charversion": "version",
    "char_version": "version",
    "model": "model",
}


@dataclass(slots=True)
class MacroBudget:
    """What the macros of one prompt may still do; the others stay as they are."""

    macros: int = _MAX_MACROS
    chars: int = _MAX_INSERTED_CHARS
    """Of inserted values: a text of 10 MB could insert a message of 4,000 a million times."""

    def is_spent(self) -> bool:
        return self.macros <= 0 or self.chars <= 0


@frozen_dataclass
class Macros:
    """The values of the macros in one prompt."""

    char: str
    user: str
    now: datetime
    """The time that `{{time}}` and `{{date}}` show."""
    rng: random.Random = field(default_factory=random.Random)
    group: str = ""
    """The names of all speakers."""
    original: str = ""
    """The default instructions that the card replaces."""
    persona: str = ""
    last_user_message: str = ""
    last_message: str = ""
    last_char_message: str = ""
    version: str = ""
    model: str = ""
    budget: MacroBudget = field(default_factory=MacroBudget, compare=False)
    """Shared by all texts of the prompt, and by the copies of this value."""

    def expand(self, text: str) -> str:
        """Expand the known macros once; values are not expanded again."""
        if "{{" not in text and "<" not in text:
            return text
        return remove_trim_marks(self._expand(text.replace("\x00", ""), 0), _TRIM)

    def _expand(self, text: str, depth: int) -> str:
        parts: list[str] = []
        position = 0
        for start, end in _pairs(text):
            inner = text[start + 2 : end - 2]
            parts.append(self._expand_legacy(text[position:start]))
            found = self._value_within_budget(inner, depth) if depth < _MAX_DEPTH else None
            parts.append("{{" + inner + "}}" if found is None else found)
            position = end
        return "".join([*parts, self._expand_legacy(text[position:])])

    def _expand_legacy(self, text: str) -> str:
        return _LEGACY.sub(
            lambda found: self.user if found[1].lower() == "user" else self.char, text
        )

    def _value_within_budget(self, inner: str, depth: int) -> str | None:
        if self.budget.is_spent():
            return None
        self.budget.macros -= 1 + len(inner) // _CHARS_PER_MACRO
        found = self._value(inner, depth)
        self.budget.chars -= len(found or "")
        return found

    def _value(self, inner: str, depth: int) -> str | None:
        """Return the value of a macro; None if it is unknown."""
        if inner.lstrip().startswith("//"):
            return ""
        name, _, argument = inner.partition(":")
        name = name.strip().lower()
        if name in _FIELDS and not argument:
            return str(getattr(self, _FIELDS[name]))
        if (time := self._time_value(name)) is not None and not argument:
            return time
        match name:
            case "random" | "pick":
                return self._choose(argument, depth)
            case "roll":
                return self._roll(argument)
            case "reverse":
                return self._expand(argument, depth + 1)[::-1]
            case "newline":
                return "\n"
            case "trim":
                return _TRIM
            case "noop" | "comment" | "hidden_key":
                return ""
            case _:
                return self._with_space(name)

    def _with_space(self, name: str) -> str | None:
        """Expand `{{roll 1d20}}`, the older form of an argument."""
        head, _, argument = name.partition(" ")
        return self._roll(argument) if head == "roll" else None

    def _choose(self, argument: str, depth: int) -> str:
        """Choose one of `a,b,c`, or of `:a::b::c` if the options contain commas."""
        options = _split(argument.removeprefix(":"), "::")
        if len(options) == 1 and not argument.startswith(":"):
            options = [option.strip() for option in _split(argument, ",")]
        return self._expand(self.rng.choice(options), depth + 1)

    def _roll(self, argument: str) -> str:
        """Roll `20`, `d20` or `3d6+2`; anything else gives an empty text."""
        found = _ROLL.fullmatch(argument.strip().strip(":"))
        if found is None:
            return ""
        count = int(found[1] or 1) if found[4] is None else 1
        sides = int(found[4] or found[2])
        if not (1 <= count <= _MAX_DICE and 1 <= sides <= _MAX_SIDES):
            return ""
        self.budget.macros -= count // 10  # they take as long
        rolls = (self.rng.randint(1, sides) for _ in range(count))
        return str(sum(rolls) + int(found[3] or 0))

    def _time_value(self, name: str) -> str | None:
        at = self.now
        if zone := _TIME_ZONE.fullmatch(name):
            at = at.astimezone(timezone(timedelta(hours=max(-14, min(14, int(zone[1]))))))
            name = "time"
        formats: dict[str, Callable[[], str]] = {
            "time": lambda: at.strftime("%I:%M %p").lstrip("0"),
            "date": lambda: f"{at:%B} {at.day}, {at.year}",
            "weekday": lambda: at.strftime("%A"),
            "isotime": lambda: at.strftime("%H:%M"),
            "isodate": lambda: at.strftime("%Y-%m-%d"),
        }
        return formats[name]() if name in formats else None


def remove_trim_marks(text: str, mark: str, breaks: str = "\n") -> str:
    """Remove the marks with the line breaks around them; a regex would be quadratic."""
    first, *rest = text.split(mark)
    if not rest:
        return text
    *between, last = rest
    inner = [part.strip(breaks) for part in between]
    return "".join([first.rstrip(breaks), *inner, last.lstrip(breaks)])


def _pairs(text: str) -> list[tuple[int, int]]:
    """Return start and end of each outermost pair of double braces, in order."""
    pairs: list[tuple[int, int]] = []
    open_starts: list[int] = []
    for brace in _BRACES.finditer(text):
        if brace[0] == "{{":
            open_starts.append(brace.start())
        elif open_starts:
            start = open_starts.pop()
            while pairs and pairs[-1][0] > start:
                pairs.pop()
            pairs.append((start, brace.end()))
    return pairs


def _split(text: str, separator: str) -> Sequence[str]:
    """Split at separators outside of braces: `{{char}},b` has two parts, `{{random:a,b}}` one."""
    parts, begin, position = [], 0, 0
    for start, end in [*_pairs(text), (len(text), len(text))]:
        while (found := text.find(separator, position, start)) >= 0:
            parts.append(text[begin:found])
            position = begin = found + len(separator)
        position = end
    return [*parts, text[begin:]]

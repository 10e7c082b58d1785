"""Times as the library Moment.js writes them, which SillyTavern's macros use."""

import re
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Final

_TOKEN = re.compile(
    r"\[([^\[\]]*)\]|LTS|LT|L{1,4}|YYYY|YY|MMMM|MMM|MM|Mo|M|Q|DDDD|DDD|Do|DD|D|dddd|ddd|dd|d|E|WW|W"
    r"|HH|H|hh|h|mm|m|ss|s|SSS|A|a|ZZ|Z|X|x"
)
_LONG_FORMS = {
    "LT": "h:mm A",
    "LTS": "h:mm:ss A",
    "L": "MM/DD/YYYY",
    "LL": "MMMM D, YYYY",
    "LLL": "MMMM D, YYYY h:mm A",
    "LLLL": "dddd, MMMM D, YYYY h:mm A",
}
_FORMS: Final[Mapping[str, Callable[[datetime], str]]] = {
    "YYYY": lambda at: f"{at.year:04}",
    "YY": lambda at: f"{at.year % 100:02}",
    "Q": lambda at: str((at.month + 2) // 3),
    "MMMM": lambda at: f"{at:%B}",
    "MMM": lambda at: f"{at:%b}",
    "MM": lambda at: f"{at:%m}",
    "Mo": lambda at: _ordinal(at.month),
    "M": lambda at: str(at.month),
    "DDDD": lambda at: f"{at:%j}",
    "DDD": lambda at: str(at.timetuple().tm_yday),
    "Do": lambda at: _ordinal(at.day),
    "DD": lambda at: f"{at:%d}",
    "D": lambda at: str(at.day),
    "dddd": lambda at: f"{at:%A}",
    "ddd": lambda at: f"{at:%a}",
    "dd": lambda at: f"{at:%a}"[:2],
    "d": lambda at: str(at.isoweekday() % 7),
    "E": lambda at: str(at.isoweekday()),
    "WW": lambda at: f"{at:%V}",
    "W": lambda at: str(at.isocalendar().week),
    "HH": lambda at: f"{at:%H}",
    "H": lambda at: str(at.hour),
    "hh": lambda at: f"{at:%I}",
    "h": lambda at: str(at.hour % 12 or 12),
    "mm": lambda at: f"{at:%M}",
    "m": lambda at: str(at.minute),
    "ss": lambda at: f"{at:%S}",
    "s": lambda at: str(at.second),
    "SSS": lambda at: f"{at.microsecond // 1000:03}",
    "A": lambda at: f"{at:%p}",
    "a": lambda at: f"{at:%p}".lower(),
    "ZZ": lambda at: f"{at:%z}",
    "Z": lambda at: re.sub(r"(\d\d)$", r":\1", f"{at:%z}"),
    "X": lambda at: str(int(at.timestamp())),
    "x": lambda at: str(int(at.timestamp() * 1000)),
}
_STEPS: Final = (
    (45, 60, "minute"), (45, 60, "hour"), (22, 24, "day"), (26, 30.4368, "month"), (11, 12, "year"),
)  # fmt: skip
"""From how many of a unit on the next one is used, how many make one of it, and its name."""


def format_moment(at: datetime, pattern: str) -> str:
    """Return a time in a format such as `YYYY-MM-DD HH:mm`; `[text]` is written as it is."""

    def written(token: re.Match[str]) -> str:
        if token[1] is not None:
            return token[1]
        name = token[0]
        return format_moment(at, _LONG_FORMS[name]) if name in _LONG_FORMS else _FORMS[name](at)

    return _TOKEN.sub(written, pattern)


def parse_moment(text: str, now: datetime) -> datetime | None:
    """Return the time of an ISO date, in the zone of `now` if it names none; None if it is none."""
    try:
        at = datetime.fromisoformat(text.strip())
    except ValueError:
        return None
    return at if at.tzinfo else at.replace(tzinfo=now.tzinfo)


def describe_duration(duration: timedelta, *, relative: bool = False) -> str:
    """Return a duration in words: "5 minutes"; relative, "in 5 minutes" or "5 minutes ago"."""
    amount, words = abs(duration.total_seconds()), "a few seconds"
    for limit, length, name in _STEPS:
        if round(amount) < limit:
            break
        amount /= length
        number = max(1, round(amount))
        article = "an" if name == "hour" else "a"
        words = f"{article} {name}" if number == 1 else f"{number} {name}s"
    if not relative:
        return words
    return f"in {words}" if duration > timedelta() else f"{words} ago"


def _ordinal(number: int) -> str:
    ending = "th" if 10 < number % 100 < 14 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"

"""Expand macros in cards, such as `{{user}}`, `{{random}}`, and `{{time}}`."""

import random
import re
import tomllib
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from functools import lru_cache
from pathlib import Path
from typing import Final, TypeAlias

from bot.value_class import value_class

_EXPRESSION = re.compile(
    r"\s*([.$])\s*([A-Za-z](?:[\w-]*\w)?)\s*"
    r"(?:(\+\+|--|\+=|-=|\|\|=|\?\?=|\|\||\?\?|==|!=|>=|<=|>|<|=)(.*))?",
    re.DOTALL,
)
_NUMBER = re.compile(r"\s*(?:[+-]?(?:\d{1,40}\.?\d{0,40}|\.\d{1,40})(?:[eE][+-]?\d{1,2})?)?\s*")
_MAX_NUMBER_CHARS = 200  # a variable may be a megabyte long and compared a thousand times
_FALSE_WORDS = frozenset({"", "0", "false", "off"})


VariableExpression: TypeAlias = tuple[str, str, str]
"""A variable's key, an operator, and the operand, as in `.name += 2`."""


def parse_expression(text: str) -> VariableExpression | None:
    """Parse an expression with a local `.name` or global `$name`; return None for other macros."""
    found = _EXPRESSION.fullmatch(text) if text.lstrip()[:1] in {".", "$"} else None
    if found is None:
        return None
    return _variable_key(found[2], is_global=found[1] == "$"), found[3] or "", found[4] or ""


class Variables:
    """The variables of one prompt; they are not stored, as people could not see or reset them."""

    def __init__(self) -> None:
        self._values: dict[str, str] = {}

    def call(self, macro: str, arguments: Sequence[str]) -> str:
        """Run a macro such as `setvar` or `getglobalvar`, and return its value."""
        verb = macro.replace("global", "").removesuffix("var")
        key = _variable_key(arguments[0] if arguments else "", is_global="global" in macro)
        value = "::".join(arguments[1:])
        match verb:
            case "set":
                self._values[key] = value
            case "add":
                self._add_to_variable(key, value)
            case "inc" | "dec":
                return self._add_to_variable(key, "1" if verb == "inc" else "-1")
            case "has" | "varexists":
                return str(key in self._values).lower()
            case "delete" | "flush":
                self._values.pop(key, None)
            case _:
                return self._values.get(key, "")
        return ""

    def evaluate(self, expression: VariableExpression, expand: Callable[[str], str]) -> str:
        """Run an expression and return its value; expand the operand only if needed."""
        key, operator, operand = expression
        value = self._values.get(key, "")
        is_false = len(value) <= _MAX_NUMBER_CHARS and value.strip().lower() in _FALSE_WORDS
        match operator:
            case "":
                return value
            case "=":
                self._values[key] = expand(operand)
                return ""
            case "++" | "--":
                return self._add_to_variable(key, "1" if operator == "++" else "-1")
            case "+=" | "-=":
                added = expand(operand)
                if operator == "+=":
                    self._add_to_variable(key, added)
                elif (number := _parse_number(added)) is not None:
                    self._add_to_variable(key, _format_number(-number))
                return ""
            case "||" | "??" | "||=" | "??=":
                if not (is_false if operator[0] == "|" else key not in self._values):
                    return value
                value = expand(operand)
                if operator.endswith("="):
                    self._values[key] = value
                return value
            case _:
                return str(_compare(value, operator, expand(operand))).lower()

    def _add_to_variable(self, key: str, value: str) -> str:
        old = self._values.get(key, "")
        left, right = _parse_number(old), _parse_number(value)
        is_text = left is None or right is None
        self._values[key] = old + value if is_text else _format_number((left or 0) + (right or 0))
        return self._values[key]


def _variable_key(name: str, *, is_global: bool) -> str:
    return ("$" if is_global else ".") + name.strip()


def _parse_number(text: str) -> float | None:
    """Parse a number, or return None; an empty text is 0, as in JavaScript."""
    is_number = len(text) <= _MAX_NUMBER_CHARS and _NUMBER.fullmatch(text)
    return float(text.strip() or 0) if is_number else None


def _format_number(number: float) -> str:
    return f"{number:.15g}"


def _compare(left: str, operator: str, right: str) -> bool:
    if operator in {"==", "!="}:
        return (left == right) == (operator == "==")
    first, second = _parse_number(left), _parse_number(right)
    if first is None or second is None:
        return False
    return (
        (first < second and "<" in operator)
        or (first > second and ">" in operator)
        or (first == second and "=" in operator)
    )


_MACRO_TABLES = tomllib.loads((Path(__file__).parent / "macros.toml").read_text("utf-8"))
_MOMENT_FORMATS: Mapping[str, str] = _MACRO_TABLES["moment"]
_MOMENT_TOKEN = re.compile(
    r"\[([^\[\]]*)\]|" + "|".join(sorted(_MOMENT_FORMATS, key=len, reverse=True))
)
_DURATION_UNITS: Final = (
    (45, 60, "minute"), (45, 60, "hour"), (22, 24, "day"), (26, 30.4368, "month"), (11, 12, "year"),
)  # fmt: skip
"""(minimum, length, name) of each unit; both numbers count the next smaller unit."""


def format_moment(at: datetime, pattern: str) -> str:
    """Format a time by a pattern such as `YYYY-MM-DD HH:mm`; `[text]` is kept verbatim."""

    def written(token: re.Match[str]) -> str:
        if token[1] is not None:
            return token[1]
        text = at.strftime(_MOMENT_FORMATS[token[0]])
        match token[0]:
            case "Do":
                return _ordinal(at.day)
            case "a":
                return text.lower()
            case name:
                return str(int(text)) if len(name) == 1 and text.isdecimal() else text

    return _MOMENT_TOKEN.sub(written, pattern)


def parse_moment(text: str, now: datetime) -> datetime | None:
    """Parse an ISO date, by default in the time zone of `now`; return None if it is invalid."""
    try:
        at = datetime.fromisoformat(text.strip())
    except ValueError:
        return None
    return at if at.tzinfo else at.replace(tzinfo=now.tzinfo)


def describe_duration(duration: timedelta, *, relative: bool = False) -> str:
    """Describe a duration, as "5 minutes" or, if `relative`, "in 5 minutes" or "5 minutes ago"."""
    amount, words = abs(duration.total_seconds()), "a few seconds"
    for limit, length, name in _DURATION_UNITS:
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


_MAX_DEPTH = 24
_MAX_DICE, _MAX_SIDES = 100, 1_000_000
_MAX_REPEATS = 100  # n in {{newline::n}}
_MAX_MACROS = 100_000  # expanding them takes seconds
_CHARS_PER_MACRO = 20  # each level of nesting reads the arguments again
_MAX_INSERTED_CHARS = 4_000_000  # far more than any model can read
_MAX_CACHED_CHARS = 20_000
_DICE_ROLL = re.compile(r"(\d{0,4})d(\d{1,7})([+-]\d{1,7})?|(\d{1,7})", re.IGNORECASE)
_LEGACY_MACRO = re.compile(r"<(user|bot|char|charifnotgroup|group)>", re.IGNORECASE)
_TRIM_MARK = "\x00trim\x00"  # texts contain no NUL, which is removed first
_DOUBLE_BRACES = re.compile(r"\{\{(?!\{)|\}\}")  # of three braces, the outermost is plain text
_MACRO_CALL = re.compile(r"\s*([!?~>#/\s]*)([A-Za-z][\w-]*)(?=$|[\s:])")
_TIME_ZONE = re.compile(r"\s*(?:time_|time\s*:+\s*)utc([+-]\d{1,2})\s*", re.IGNORECASE)

_ALIASES: Mapping[str, str] = _MACRO_TABLES["aliases"]
_CONSTANTS: Mapping[str, str] = _MACRO_TABLES["constants"]
_TIME_FORMATS: Mapping[str, str] = _MACRO_TABLES["times"]
_VARIABLE_MACROS = frozenset(
    f"{verb}{scope}var" for scope in ("", "global") for verb in ("set", "add", "inc", "dec", "get",
    "has", "delete", "flush")
) | {"varexists", "globalvarexists"}  # fmt: skip
_KNOWN_MACROS = frozenset(
    {"char", "user", *_MACRO_TABLES["fields"], *_MACRO_TABLES["functions"]}
).union(_CONSTANTS, _TIME_FORMATS, _VARIABLE_MACROS)
_BLOCK_MACROS = frozenset({"if", "trim", "//", "reverse"}) | {
    name for name in _VARIABLE_MACROS if name.startswith(("set", "add"))
}
"""Macros whose last argument may be the text up to a closing tag."""


@dataclass(slots=True)
class MacroBudget:
    """Limits the work of a prompt's macros; once it is used up, macros are not expanded."""

    macros: int = _MAX_MACROS
    chars: int = _MAX_INSERTED_CHARS
    """Characters that may be inserted; a 10 MB text could insert a message a million times."""

    def is_spent(self) -> bool:
        return self.macros <= 0 or self.chars <= 0


@value_class
class Macros:
    char: str
    user: str
    now: datetime
    """The time for `{{time}}` and `{{date}}`."""
    rng: random.Random = field(default_factory=random.Random)
    random_for: Callable[[str], random.Random] = random.Random
    """Returns the random generator for a `{{pick}}`, the same in all prompts of a session."""
    fields: Mapping[str, str] = field(default_factory=dict)
    greetings: Sequence[str] = ()
    outlets: Mapping[str, str] = field(default_factory=dict)
    idle: timedelta | None = None
    """The time between the newest message and the one before it."""
    variables: Variables = field(default_factory=Variables, compare=False)
    budget: MacroBudget = field(default_factory=MacroBudget, compare=False)
    """The work left for macros, shared by all texts of a prompt and copies of this object."""

    def expand(self, text: str) -> str:
        """Expand known macros, without expanding their values again."""
        if "{{" not in text and "<" not in text:
            return text
        return _remove_trim_marks(self._expand(text.replace("\x00", ""), 0))

    def _expand(self, text: str, depth: int) -> str:
        if "{{" not in text:
            return self._expand_legacy(text)
        document = _Document(text) if len(text) > _MAX_CACHED_CHARS else _read_document(text)
        return self._expand_calls(document, 0, depth)

    def _expand_calls(self, document: "_Document", first: int, depth: int, end: int = -1) -> str:
        """Expand a text from macro call `first` up to macro call `end` (-1: to the text's end)."""
        text, calls = document.text, document.calls
        end = len(calls) if end < 0 else end
        position = calls[first - 1].end if first else 0
        stop = calls[end].start if end < len(calls) else len(text)
        parts: list[str] = []
        index = first
        while index < end:
            call = calls[index]
            parts.append(self._expand_legacy(text[position : call.start]))
            closing = document.closing.get(index)
            found = None
            if depth < _MAX_DEPTH and not self.budget.is_spent():
                self.budget.macros -= 1 + (call.end - call.start) // _CHARS_PER_MACRO
                found = self._macro_value(document, index, closing, depth)
                self.budget.chars -= len(found or "")
            if found is None:
                closing = None
                inner = text[call.start + 2 : call.end - 2]
                found = "{{" + (self._expand(inner, depth + 1) if depth < _MAX_DEPTH else inner)
                found += "}}"
            parts.append(found)
            index = index + 1 if closing is None else closing + 1
            position = calls[index - 1].end
        return "".join([*parts, self._expand_legacy(text[position:stop])])

    def _expand_legacy(self, text: str) -> str:
        if "<" not in text:
            return text
        group = self.fields.get("group", self.char)
        names = {"user": self.user, "group": group, "charifnotgroup": group}
        return _LEGACY_MACRO.sub(lambda found: names.get(found[1].lower(), self.char), text)

    def _macro_value(
        self, document: "_Document", index: int, closing: int | None, depth: int
    ) -> str | None:
        call = document.calls[index]
        if call.name == "//":
            return ""
        if call.is_closing:
            return None
        if zone := _TIME_ZONE.fullmatch(call.inner):
            offset = timedelta(hours=max(-14, min(14, int(zone[1]))))
            return format_moment(self.now.astimezone(timezone(offset)), _TIME_FORMATS["time"])
        if call.name == "if":
            return self._choose_branch(document, index, closing, depth)
        if expression := parse_expression(call.inner):
            return self.variables.evaluate(
                expression, lambda text: self._expand(text, depth + 1).strip()
            )
        if call.name in {"random", "pick"}:
            return self._choose_option(call, depth)
        if not _is_known(call.name):
            return None
        arguments = [self._expand(one, depth + 1).strip() for one in call.arguments]
        if closing is not None:
            scoped = self._expand_calls(document, index + 1, depth + 1, closing)
            arguments.append(scoped if "#" in call.flags else scoped.strip())
        return self._call_macro(call.name, arguments)

    def _call_macro(self, name: str, arguments: Sequence[str]) -> str:
        if name in _VARIABLE_MACROS:
            return self.variables.call(name, arguments)
        argument = arguments[0] if arguments else ""
        match name:
            case "roll":
                return self._roll_dice(argument)
            case "reverse":
                return argument[::-1]
            case "newline" | "space":
                count = min(_parse_count(argument, 1), _MAX_REPEATS)
                return ("\n" if name == "newline" else " ") * count
            case "trim":
                return argument if arguments else _TRIM_MARK
            case "datetimeformat":
                return format_moment(self.now, argument)
            case "timediff":
                first, second = (parse_moment(one, self.now) for one in (*arguments, "", "")[:2])
                return describe_duration(first - second, relative=True) if first and second else ""
            case "greeting":
                return "".join(self.greetings[(number := _parse_count(argument, 0)) : number + 1])
            case _:
                return self._plain_value(name, argument)

    def _plain_value(self, name: str, argument: str) -> str:
        if name in _TIME_FORMATS:
            return format_moment(self.now, _TIME_FORMATS[name])
        match name:
            case "char":
                return self.char
            case "user":
                return self.user
            case "outlet":
                return self.outlets.get(argument, "")
            case "idleduration":
                return "just now" if self.idle is None else describe_duration(self.idle)
            case _:
                return _CONSTANTS[name] if name in _CONSTANTS else self.fields.get(name, "")

    def _choose_branch(
        self, document: "_Document", index: int, closing: int | None, depth: int
    ) -> str | None:
        """Expand a branch of `{{if condition}}...{{else}}...{{/if}}` or `{{if a::b}}`.

        Return None if the macro is incomplete.
        """
        call = document.calls[index]
        condition, *rest = call.arguments or [""]
        if closing is None and not rest:
            return None
        is_inverted = condition.lstrip().startswith("!") or "!" in call.flags
        is_true = self._is_true(condition.strip().removeprefix("!"), depth) != is_inverted
        if closing is None:
            return self._expand("::".join(rest), depth + 1).strip() if is_true else ""
        middle = document.find_else(index, closing)
        if is_true:
            found = self._expand_calls(document, index + 1, depth + 1, middle or closing)
        else:
            found = self._expand_calls(document, middle + 1, depth + 1, closing) if middle else ""
        return found if "#" in call.flags else found.strip()

    def _is_true(self, condition: str, depth: int) -> bool:
        # A value is never parsed as a macro, because a person may have written it.
        if parse_expression(condition) or _is_known(_canonical_name(condition.strip())):
            condition = "{{" + condition + "}}"
        return self._expand(condition, depth + 1).strip().lower() not in _FALSE_WORDS

    def _choose_option(self, call: "_Call", depth: int) -> str:
        """Choose a random item of `a,b,c`, or of `a::b::c` if items contain commas."""
        options = call.arguments
        if len(options) == 1:
            options = _split_outside_braces(options[0], "::")
        if len(options) == 1:
            listed = _split_outside_braces(options[0].replace("\\,", "\x00"), ",")
            options = [one.strip().replace("\x00", ",") for one in listed]
        rng = self.rng if call.name == "random" else self.random_for(f"{call.start} {call.inner}")
        return self._expand(rng.choice(options or [""]), depth + 1)

    def _roll_dice(self, argument: str) -> str:
        """Roll `20`, `d20`, or `3d6+2`, and return the sum; return "" for anything else."""
        found = _DICE_ROLL.fullmatch(argument.strip().strip(":"))
        if found is None:
            return ""
        count = int(found[1] or 1) if found[4] is None else 1
        sides = int(found[4] or found[2])
        if not (1 <= count <= _MAX_DICE and 1 <= sides <= _MAX_SIDES):
            return ""
        self.budget.macros -= count // 10  # ten rolls cost as much as a macro
        rolls = (self.rng.randint(1, sides) for _ in range(count))
        return str(sum(rolls) + int(found[3] or 0))


_STORY_BLOCK = re.compile(r"\{\{\s*#(if|unless)\s([^{}]*)\}\}")
_STORY_REPLACEMENTS = (
    (re.compile(r"\{\{\s*![^{}]*\}\}"), ""),  # a comment
    (re.compile(r"\{\{\s*/unless\s*\}\}"), "{{/if}}"),
    (re.compile(r"\{\{\s*system\s*\}\}"), "{{systemPrompt}}"),
)


def convert_story_string(source: str) -> str:
    """Convert SillyTavern's `story_string`, a Handlebars layout of the system message, to macros.

    In a story string, `{{system}}` is a field, and a condition on an unknown name is false. Blocks
    other than `#if` and `#unless` are not changed. See docs/sources.md#sillytavern.
    """

    def block(match: re.Match[str]) -> str:
        name = _canonical_name(match[2].strip())
        name = "systemprompt" if name == "system" else name if _is_known(name) else ""
        return "{{#if " + ("!" if match[1] == "unless" else "") + name + "}}"

    for pattern, replacement in _STORY_REPLACEMENTS:
        source = pattern.sub(replacement, source)
    return _STORY_BLOCK.sub(block, source)


def unknown_macros(texts: Iterable[str]) -> Sequence[str]:
    """Return the names of unsupported macros in some texts, without duplicates."""
    found: dict[str, None] = {}
    for _ in range(_MAX_DEPTH):
        calls = [call for text in texts if "{{" in text for call in _Document(text).calls]
        texts = [call.inner for call in calls]
        for call in calls:
            is_known = _is_known(call.name) or call.name == "//" or _TIME_ZONE.fullmatch(call.inner)
            if not is_known and parse_expression(call.inner) is None:
                written = _MACRO_CALL.match(call.inner)
                name = written[2] if written else " ".join(call.inner.split())
                found.setdefault(name[:40])
    return list(found)


def _remove_trim_marks(text: str) -> str:
    """Remove trim marks and the line breaks around them; a regex would take quadratic time."""
    first, *rest = text.split(_TRIM_MARK)
    if not rest:
        return text
    *between, last = rest
    inner = [part.strip("\n") for part in between]
    return "".join([first.rstrip("\n"), *inner, last.lstrip("\n")])


@value_class
class _Call:
    start: int
    end: int
    inner: str
    name: str = ""
    """The canonical name in lower case; "" if the text has no name."""
    flags: str = ""
    arguments: Sequence[str] = ()

    @property
    def is_closing(self) -> bool:
        return "/" in self.flags


class _Document:
    """A text's outermost macro calls, and the closing tag of each opening one."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.calls = [_parse_call(text, start, end) for start, end in _brace_pairs(text)]
        self.closing: dict[int, int] = {}
        opened: dict[str, list[int]] = defaultdict(list)
        for index, call in enumerate(self.calls):
            if call.is_closing and opened[call.name]:
                self.closing[opened[call.name].pop()] = index
            elif call.name in _BLOCK_MACROS and len(call.arguments) < _block_argument_number(
                call.name
            ):
                opened[call.name].append(index)

    def find_else(self, index: int, closing: int) -> int | None:
        """Return the index of the `{{else}}` of an `{{if}}`, or None."""
        at = index + 1
        while at < closing:
            if self.calls[at].name == "else":
                return at
            at = self.closing.get(at, at) + 1
        return None


@lru_cache(maxsize=1024)
def _read_document(text: str) -> _Document:
    """Parse a text and cache the result, because a preset's texts are expanded in every prompt."""
    return _Document(text)


def _parse_count(argument: str, default: int) -> int:
    return int(argument) if argument.isdecimal() and len(argument) < 4 else default


def _block_argument_number(name: str) -> int:
    """Return the number (from 1) of the argument that may be a block with a closing tag."""
    return 2 if name == "if" or name in _VARIABLE_MACROS else 1


def _parse_call(text: str, start: int, end: int) -> _Call:
    inner = text[start + 2 : end - 2]
    comment = inner.lstrip()
    if comment.startswith("//"):
        flags = "/" if comment.startswith("///") and not comment[3:].strip() else ""
        return _Call(start, end, inner, "//", flags, () if comment == "//" else (comment,))
    found = _MACRO_CALL.match(inner)
    if found is None:
        return _Call(start, end, inner)
    rest = inner[found.end() :]
    stripped = rest.lstrip()
    arguments: Sequence[str] = ()
    if stripped.startswith("::"):
        arguments = _split_outside_braces(stripped[2:], "::")
    elif stripped.startswith(":"):
        arguments = (stripped[1:],)
    elif stripped:
        arguments = _split_outside_braces(stripped, "::")
    return _Call(start, end, inner, _canonical_name(found[2]), found[1], arguments)


def _is_known(name: str) -> bool:
    """Return whether a macro is supported, including `instruct` macros, which are always empty."""
    return name in _KNOWN_MACROS or name.startswith("instruct")


def _canonical_name(name: str) -> str:
    lowered = name.lower()
    return _ALIASES.get(lowered, lowered)


def _brace_pairs(text: str) -> list[tuple[int, int]]:
    """Return the start and end of each outermost pair of double braces, in order."""
    pairs: list[tuple[int, int]] = []
    open_starts: list[int] = []
    for brace in _DOUBLE_BRACES.finditer(text):
        if brace[0] == "{{":
            open_starts.append(brace.start())
        elif open_starts:
            start = open_starts.pop()
            while pairs and pairs[-1][0] > start:
                pairs.pop()
            pairs.append((start, brace.end()))
    return pairs


def _split_outside_braces(text: str, separator: str) -> Sequence[str]:
    """Split at separators outside braces: `{{char}},b` into two parts, `{{pick:a,b}}` into one."""
    parts, begin, position = [], 0, 0
    for start, end in [*_brace_pairs(text), (len(text), len(text))]:
        while (found := text.find(separator, position, start)) >= 0:
            parts.append(text[begin:found])
            position = begin = found + len(separator)
        position = end
    return [*parts, text[begin:]]

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

_VARIABLE_EXPRESSION = re.compile(
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
    """Parse an expression on a local `.name` or global `$name`; return None for other macros."""
    match = _VARIABLE_EXPRESSION.fullmatch(text) if text.lstrip()[:1] in {".", "$"} else None
    if match is None:
        return None
    return _make_variable_key(match[2], is_global=match[1] == "$"), match[3] or "", match[4] or ""


class Variables:
    """One prompt's variables, which are not stored because people could not see or reset them."""

    def __init__(self) -> None:
        self._values: dict[str, str] = {}

    def call(self, macro: str, arguments: Sequence[str]) -> str:
        """Run a macro such as `setvar` or `getglobalvar`, and return its value."""
        operation = macro.replace("global", "").removesuffix("var")
        key = _make_variable_key(arguments[0] if arguments else "", is_global="global" in macro)
        value = "::".join(arguments[1:])
        match operation:
            case "set":
                self._values[key] = value
            case "add":
                self._add_to_variable(key, value)
            case "inc" | "dec":
                return self._add_to_variable(key, "1" if operation == "inc" else "-1")
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
        is_false_value = len(value) <= _MAX_NUMBER_CHARS and value.strip().lower() in _FALSE_WORDS
        match operator:
            case "":
                return value
            case "=":
                self._values[key] = expand(operand)
                return ""
            case "++" | "--":
                return self._add_to_variable(key, "1" if operator == "++" else "-1")
            case "+=" | "-=":
                addend = expand(operand)
                if operator == "+=":
                    self._add_to_variable(key, addend)
                elif (number := _parse_number(addend)) is not None:
                    self._add_to_variable(key, _format_number(-number))
                return ""
            case "||" | "??" | "||=" | "??=":
                if not (is_false_value if operator[0] == "|" else key not in self._values):
                    return value
                value = expand(operand)
                if operator.endswith("="):
                    self._values[key] = value
                return value
            case _:
                return str(_compare(value, operator, expand(operand))).lower()

    def _add_to_variable(self, key: str, value: str) -> str:
        text = self._values.get(key, "")
        left, right = _parse_number(text), _parse_number(value)
        is_text = left is None or right is None
        self._values[key] = text + value if is_text else _format_number((left or 0) + (right or 0))
        return self._values[key]


def _make_variable_key(name: str, *, is_global: bool) -> str:
    return ("$" if is_global else ".") + name.strip()


def _parse_number(text: str) -> float | None:
    """Parse a number; return 0 for an empty text, as in JavaScript, and None for other texts."""
    number_match = len(text) <= _MAX_NUMBER_CHARS and _NUMBER.fullmatch(text)
    return float(text.strip() or 0) if number_match else None


def _format_number(number: float) -> str:
    return f"{number:.15g}"


def _compare(left: str, operator: str, right: str) -> bool:
    if operator in {"==", "!="}:
        return (left == right) == (operator == "==")
    left_number, right_number = _parse_number(left), _parse_number(right)
    if left_number is None or right_number is None:
        return False
    return (
        (left_number < right_number and "<" in operator)
        or (left_number > right_number and ">" in operator)
        or (left_number == right_number and "=" in operator)
    )


_MACRO_TABLES = tomllib.loads((Path(__file__).parent / "macros.toml").read_text("utf-8"))
_MOMENT_FORMATS: Mapping[str, str] = _MACRO_TABLES["moment"]
_MOMENT_TOKEN = re.compile(
    r"\[([^\[\]]*)\]|" + "|".join(sorted(_MOMENT_FORMATS, key=len, reverse=True))
)
_DURATION_UNITS: Final = (
    (45, 60, "minute"), (45, 60, "hour"), (22, 24, "day"), (26, 30.4368, "month"), (11, 12, "year"),
)  # fmt: skip
"""(minimum, length, name) of each unit; minimum and length are in the next smaller unit."""


def format_moment(time: datetime, moment_format: str) -> str:
    """Format a time by a pattern such as `YYYY-MM-DD HH:mm`; `[text]` is kept verbatim."""

    def format_token(token: re.Match[str]) -> str:
        if token[1] is not None:
            return token[1]
        text = time.strftime(_MOMENT_FORMATS[token[0]])
        match token[0]:
            case "Do":
                return _format_ordinal(time.day)
            case "a":
                return text.lower()
            case name:
                return str(int(text)) if len(name) == 1 and text.isdecimal() else text

    return _MOMENT_TOKEN.sub(format_token, moment_format)


def parse_moment(text: str, now: datetime) -> datetime | None:
    """Parse an ISO date, by default in the time zone of `now`; return None if it is invalid."""
    try:
        parsed_time = datetime.fromisoformat(text.strip())
    except ValueError:
        return None
    return parsed_time if parsed_time.tzinfo else parsed_time.replace(tzinfo=now.tzinfo)


def describe_duration(duration: timedelta, *, is_relative: bool = False) -> str:
    """Describe a duration, as "5 minutes" or, if relative, "in 5 minutes" or "5 minutes ago"."""
    unit_count, duration_text = abs(duration.total_seconds()), "a few seconds"
    for minimum, length, name in _DURATION_UNITS:
        if round(unit_count) < minimum:
            break
        unit_count /= length
        number = max(1, round(unit_count))
        article = "an" if name == "hour" else "a"
        duration_text = f"{article} {name}" if number == 1 else f"{number} {name}s"
    if not is_relative:
        return duration_text
    return f"in {duration_text}" if duration > timedelta() else f"{duration_text} ago"


def _format_ordinal(number: int) -> str:
    suffix = "th" if 10 < number % 100 < 14 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{suffix}"


_MAX_NESTING = 24
_MAX_DICE, _MAX_SIDES = 100, 1_000_000
_MAX_REPEATS = 100  # n in {{newline::n}}
_MAX_MACROS = 100_000  # expanding them takes seconds
_CHARS_COSTING_A_MACRO = 20  # each level of nesting reads the arguments again
_MAX_INSERTED_CHARS = 4_000_000  # far more than any model can read
_MAX_CACHED_CHARS = 20_000
_DICE_ROLL = re.compile(r"(\d{0,4})d(\d{1,7})([+-]\d{1,7})?|(\d{1,7})", re.IGNORECASE)
_LEGACY_MACRO = re.compile(r"<(user|bot|char|charifnotgroup|group)>", re.IGNORECASE)
_TRIM_MARK = "\x00trim\x00"  # cannot be in a text, because NUL is removed first
_DOUBLE_BRACES = re.compile(r"\{\{(?!\{)|\}\}")  # in `{{{`, the first brace is plain text
_MACRO_CALL = re.compile(r"\s*([!?~>#/\s]*)([A-Za-z][\w-]*)(?=$|[\s:])")
_TIME_ZONE = re.compile(r"\s*(?:time_|time\s*:+\s*)utc([+-]\d{1,2})\s*", re.IGNORECASE)

_MACRO_ALIASES: Mapping[str, str] = _MACRO_TABLES["aliases"]
_FIXED_VALUES: Mapping[str, str] = _MACRO_TABLES["constants"]
_TIME_MACROS: Mapping[str, str] = _MACRO_TABLES["times"]
_VARIABLE_MACROS = frozenset(
    f"{verb}{scope}var" for scope in ("", "global") for verb in ("set", "add", "inc", "dec", "get",
    "has", "delete", "flush")
) | {"varexists", "globalvarexists"}  # fmt: skip
_KNOWN_MACROS = frozenset(
    {"char", "user", *_MACRO_TABLES["fields"], *_MACRO_TABLES["functions"]}
).union(_FIXED_VALUES, _TIME_MACROS, _VARIABLE_MACROS)
_BLOCK_MACROS = frozenset({"if", "trim", "//", "reverse"}) | {
    name for name in _VARIABLE_MACROS if name.startswith(("set", "add"))
}
"""Macros whose last argument may be the text up to a closing tag."""


@dataclass(slots=True)
class MacroBudget:
    """Limits for a prompt's macros; once one is reached, the other macros are not expanded."""

    macros_left: int = _MAX_MACROS
    chars_left: int = _MAX_INSERTED_CHARS
    """Characters that may be inserted; a 10 MB text could insert a message a million times."""

    def is_spent(self) -> bool:
        return self.macros_left <= 0 or self.chars_left <= 0


@value_class
class Macros:
    char: str
    user: str
    now: datetime
    """The time for `{{time}}` and `{{date}}`."""
    rng: random.Random = field(default_factory=random.Random)
    make_pick_generator: Callable[[str], random.Random] = random.Random
    """Returns the random generator for a `{{pick}}`, which is the same in the whole session."""
    fields: Mapping[str, str] = field(default_factory=dict)
    greetings: Sequence[str] = ()
    outlets: Mapping[str, str] = field(default_factory=dict)
    idle_time: timedelta | None = None
    """The time between the newest message and the one before it."""
    variables: Variables = field(default_factory=Variables, compare=False)
    budget: MacroBudget = field(default_factory=MacroBudget, compare=False)
    """The remaining budget, shared by all texts of a prompt and all copies of this object."""

    def expand(self, text: str) -> str:
        """Expand known macros, but not macros inside the inserted values."""
        if "{{" not in text and "<" not in text:
            return text
        return _remove_trim_marks(self._expand(text.replace("\x00", ""), 0))

    def _expand(self, text: str, depth: int) -> str:
        if "{{" not in text:
            return self._expand_legacy_macros(text)
        parsed_text = _ParsedText(text) if len(text) > _MAX_CACHED_CHARS else _parse_text(text)
        return self._expand_calls(parsed_text, 0, depth)

    def _expand_calls(
        self, parsed_text: "_ParsedText", first_index: int, depth: int, end_index: int = -1
    ) -> str:
        """Expand the text from one macro call to before another (-1: to the text's end)."""
        text, calls = parsed_text.text, parsed_text.calls
        end_index = len(calls) if end_index < 0 else end_index
        text_position = calls[first_index - 1].end if first_index else 0
        text_end = calls[end_index].start if end_index < len(calls) else len(text)
        parts: list[str] = []
        index = first_index
        while index < end_index:
            call = calls[index]
            parts.append(self._expand_legacy_macros(text[text_position : call.start]))
            closing_index = parsed_text.closing_indexes.get(index)
            value = None
            if depth < _MAX_NESTING and not self.budget.is_spent():
                self.budget.macros_left -= 1 + (call.end - call.start) // _CHARS_COSTING_A_MACRO
                value = self._evaluate_call(parsed_text, index, closing_index, depth)
                self.budget.chars_left -= len(value or "")
            if value is None:
                closing_index = None
                body = text[call.start + 2 : call.end - 2]
                value = "{{" + (self._expand(body, depth + 1) if depth < _MAX_NESTING else body)
                value += "}}"
            parts.append(value)
            index = index + 1 if closing_index is None else closing_index + 1
            text_position = calls[index - 1].end
        return "".join([*parts, self._expand_legacy_macros(text[text_position:text_end])])

    def _expand_legacy_macros(self, text: str) -> str:
        if "<" not in text:
            return text
        group_names = self.fields.get("group", self.char)
        names = {"user": self.user, "group": group_names, "charifnotgroup": group_names}
        return _LEGACY_MACRO.sub(lambda match: names.get(match[1].lower(), self.char), text)

    def _evaluate_call(
        self, parsed_text: "_ParsedText", index: int, closing_index: int | None, depth: int
    ) -> str | None:
        call = parsed_text.calls[index]
        if call.name == "//":
            return ""
        if call.is_closing:
            return None
        if time_zone_match := _TIME_ZONE.fullmatch(call.body):
            utc_offset = timedelta(hours=max(-14, min(14, int(time_zone_match[1]))))
            return format_moment(self.now.astimezone(timezone(utc_offset)), _TIME_MACROS["time"])
        if call.name == "if":
            return self._choose_branch(parsed_text, index, closing_index, depth)
        if expression := parse_expression(call.body):
            return self.variables.evaluate(
                expression, lambda text: self._expand(text, depth + 1).strip()
            )
        if call.name in {"random", "pick"}:
            return self._choose_option(call, depth)
        if not _is_known_macro(call.name):
            return None
        arguments = [self._expand(one, depth + 1).strip() for one in call.arguments]
        if closing_index is not None:
            block_text = self._expand_calls(parsed_text, index + 1, depth + 1, closing_index)
            arguments.append(block_text if "#" in call.flags else block_text.strip())
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
                end, start = (parse_moment(one, self.now) for one in (*arguments, "", "")[:2])
                return describe_duration(end - start, is_relative=True) if end and start else ""
            case "greeting":
                return "".join(self.greetings[(number := _parse_count(argument, 0)) : number + 1])
            case _:
                return self._look_up_value(name, argument)

    def _look_up_value(self, name: str, argument: str) -> str:
        if name in _TIME_MACROS:
            return format_moment(self.now, _TIME_MACROS[name])
        match name:
            case "char":
                return self.char
            case "user":
                return self.user
            case "outlet":
                return self.outlets.get(argument, "")
            case "idleduration":
                return "just now" if self.idle_time is None else describe_duration(self.idle_time)
            case _:
                return _FIXED_VALUES[name] if name in _FIXED_VALUES else self.fields.get(name, "")

    def _choose_branch(
        self, parsed_text: "_ParsedText", index: int, closing_index: int | None, depth: int
    ) -> str | None:
        """Expand a branch of `{{if condition}}...{{else}}...{{/if}}` or `{{if a::b}}`.

        Return None if the macro is incomplete.
        """
        call = parsed_text.calls[index]
        condition, *branch_arguments = call.arguments or [""]
        if closing_index is None and not branch_arguments:
            return None
        is_negated = condition.lstrip().startswith("!") or "!" in call.flags
        is_true = self._is_condition_true(condition.strip().removeprefix("!"), depth) != is_negated
        if closing_index is None:
            return self._expand("::".join(branch_arguments), depth + 1).strip() if is_true else ""
        else_index, branch_text = parsed_text.find_else(index, closing_index), ""
        if is_true:
            end_index = else_index or closing_index
            branch_text = self._expand_calls(parsed_text, index + 1, depth + 1, end_index)
        elif else_index:
            branch_text = self._expand_calls(parsed_text, else_index + 1, depth + 1, closing_index)
        return branch_text if "#" in call.flags else branch_text.strip()

    def _is_condition_true(self, condition: str, depth: int) -> bool:
        # A value is never parsed as a macro, because a person may have written it.
        if parse_expression(condition) or _is_known_macro(_to_canonical_name(condition.strip())):
            condition = "{{" + condition + "}}"
        return self._expand(condition, depth + 1).strip().lower() not in _FALSE_WORDS

    def _choose_option(self, call: "_MacroCall", depth: int) -> str:
        """Choose a random item of `a,b,c`, or of `a::b::c` if items contain commas."""
        options = call.arguments
        if len(options) == 1:
            options = _split_outside_braces(options[0], "::")
        if len(options) == 1:
            items = _split_outside_braces(options[0].replace("\\,", "\x00"), ",")
            options = [one.strip().replace("\x00", ",") for one in items]
        pick_seed = f"{call.start} {call.body}"
        rng = self.rng if call.name == "random" else self.make_pick_generator(pick_seed)
        return self._expand(rng.choice(options or [""]), depth + 1)

    def _roll_dice(self, argument: str) -> str:
        """Roll `20`, `d20`, or `3d6+2`, and return the sum; return "" for anything else."""
        match = _DICE_ROLL.fullmatch(argument.strip().strip(":"))
        if match is None:
            return ""
        dice_count = int(match[1] or 1) if match[4] is None else 1
        side_count = int(match[4] or match[2])
        if not (1 <= dice_count <= _MAX_DICE and 1 <= side_count <= _MAX_SIDES):
            return ""
        self.budget.macros_left -= dice_count // 10  # ten rolls cost as much as a macro
        dice_rolls = (self.rng.randint(1, side_count) for _ in range(dice_count))
        return str(sum(dice_rolls) + int(match[3] or 0))


_STORY_STRING_BLOCK = re.compile(r"\{\{\s*#(if|unless)\s([^{}]*)\}\}")
_STORY_STRING_REPLACEMENTS = (
    (re.compile(r"\{\{\s*![^{}]*\}\}"), ""),  # a comment
    (re.compile(r"\{\{\s*/unless\s*\}\}"), "{{/if}}"),
    (re.compile(r"\{\{\s*system\s*\}\}"), "{{systemPrompt}}"),
)


def convert_story_string(source: str) -> str:
    """Convert SillyTavern's `story_string`, a Handlebars layout of the system message, to macros.

    In a story string, `{{system}}` is a field, and a condition on an unknown name is false. Blocks
    other than `#if` and `#unless` are not changed. See docs/sources.md#sillytavern.
    """

    def convert_block(match: re.Match[str]) -> str:
        name = _to_canonical_name(match[2].strip())
        name = "systemprompt" if name == "system" else name if _is_known_macro(name) else ""
        return "{{#if " + ("!" if match[1] == "unless" else "") + name + "}}"

    for pattern, replacement in _STORY_STRING_REPLACEMENTS:
        source = pattern.sub(replacement, source)
    return _STORY_STRING_BLOCK.sub(convert_block, source)


def find_unknown_macros(texts: Iterable[str]) -> Sequence[str]:
    """Return the names of unsupported macros in these texts, without duplicates."""
    unknown_names: dict[str, None] = {}
    for _ in range(_MAX_NESTING):
        calls = [call for text in texts if "{{" in text for call in _ParsedText(text).calls]
        texts = [call.body for call in calls]
        for call in calls:
            is_known_call = (
                _is_known_macro(call.name) or call.name == "//" or _TIME_ZONE.fullmatch(call.body)
            )
            if not is_known_call and parse_expression(call.body) is None:
                call_match = _MACRO_CALL.match(call.body)
                name = call_match[2] if call_match else " ".join(call.body.split())
                unknown_names.setdefault(name[:40])
    return list(unknown_names)


def _remove_trim_marks(text: str) -> str:
    """Remove trim marks and the line breaks around them; a regex would take quadratic time."""
    first_part, *later_parts = text.split(_TRIM_MARK)
    if not later_parts:
        return text
    *middle_parts, last_part = later_parts
    stripped_parts = [part.strip("\n") for part in middle_parts]
    return "".join([first_part.rstrip("\n"), *stripped_parts, last_part.lstrip("\n")])


@value_class
class _MacroCall:
    start: int
    end: int
    body: str
    name: str = ""
    """The canonical name in lower case; "" if the text has no name."""
    flags: str = ""
    arguments: Sequence[str] = ()

    @property
    def is_closing(self) -> bool:
        return "/" in self.flags


class _ParsedText:
    """A text's outermost macro calls, and the closing tags of its blocks."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.calls = [_parse_call(text, start, end) for start, end in _find_brace_pairs(text)]
        self.closing_indexes: dict[int, int] = {}
        open_indexes: dict[str, list[int]] = defaultdict(list)
        for index, call in enumerate(self.calls):
            if call.is_closing and open_indexes[call.name]:
                self.closing_indexes[open_indexes[call.name].pop()] = index
            elif call.name in _BLOCK_MACROS and len(call.arguments) < _find_block_argument_position(
                call.name
            ):
                open_indexes[call.name].append(index)

    def find_else(self, index: int, closing_index: int) -> int | None:
        """Return the index of the `{{else}}` of an `{{if}}`, or None."""
        position = index + 1
        while position < closing_index:
            if self.calls[position].name == "else":
                return position
            position = self.closing_indexes.get(position, position) + 1
        return None


@lru_cache(maxsize=1024)
def _parse_text(text: str) -> _ParsedText:
    """Parse a text and cache the result, because a preset's texts are expanded in every prompt."""
    return _ParsedText(text)


def _parse_count(argument: str, default: int) -> int:
    return int(argument) if argument.isdecimal() and len(argument) < 4 else default


def _find_block_argument_position(macro_name: str) -> int:
    """Return the number (from 1) of the argument that may be a block with a closing tag."""
    return 2 if macro_name == "if" or macro_name in _VARIABLE_MACROS else 1


def _parse_call(text: str, start: int, end: int) -> _MacroCall:
    body = text[start + 2 : end - 2]
    content = body.lstrip()
    if content.startswith("//"):
        flags = "/" if content.startswith("///") and not content[3:].strip() else ""
        return _MacroCall(start, end, body, "//", flags, () if content == "//" else (content,))
    match = _MACRO_CALL.match(body)
    if match is None:
        return _MacroCall(start, end, body)
    text_after_name = body[match.end() :]
    argument_text = text_after_name.lstrip()
    arguments: Sequence[str] = ()
    if argument_text.startswith("::"):
        arguments = _split_outside_braces(argument_text[2:], "::")
    elif argument_text.startswith(":"):
        arguments = (argument_text[1:],)
    elif argument_text:
        arguments = _split_outside_braces(argument_text, "::")
    return _MacroCall(start, end, body, _to_canonical_name(match[2]), match[1], arguments)


def _is_known_macro(name: str) -> bool:
    """Return whether a macro is supported, including `instruct` macros, which are always empty."""
    return name in _KNOWN_MACROS or name.startswith("instruct")


def _to_canonical_name(name: str) -> str:
    lowercase_name = name.lower()
    return _MACRO_ALIASES.get(lowercase_name, lowercase_name)


def _find_brace_pairs(text: str) -> list[tuple[int, int]]:
    """Return the start and end of each outermost pair of double braces, in order."""
    pairs: list[tuple[int, int]] = []
    opening_positions: list[int] = []
    for braces in _DOUBLE_BRACES.finditer(text):
        if braces[0] == "{{":
            opening_positions.append(braces.start())
        elif opening_positions:
            start = opening_positions.pop()
            while pairs and pairs[-1][0] > start:
                pairs.pop()
            pairs.append((start, braces.end()))
    return pairs


def _split_outside_braces(text: str, separator: str) -> Sequence[str]:
    """Split at separators outside braces: `{{char}},b` into two parts, `{{pick:a,b}}` into one."""
    parts, begin, position = [], 0, 0
    for start, end in [*_find_brace_pairs(text), (len(text), len(text))]:
        while (separator_start := text.find(separator, position, start)) >= 0:
            parts.append(text[begin:separator_start])
            position = begin = separator_start + len(separator)
        position = end
    return [*parts, text[begin:]]

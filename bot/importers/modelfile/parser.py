"""Read a Modelfile by ollama's own rules, with its error texts (parser/parser.go, v0.5.7)."""

import unicodedata
from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple

from typing_extensions import override

from bot.errors import PresetError

_COMMANDS = {"from", "license", "template", "system", "adapter", "parameter", "message"}
_ROLES = {"system", "user", "assistant"}
_BAD_COMMAND = (
    'command must be one of "from", "license", "template", "system", "adapter", "parameter",'
    ' or "message"'
)
_BAD_ROLE = 'message role must be one of "system", "user", or "assistant"'
_UNEXPECTED_END = "unexpected EOF"
_QUOTES = ('"""', '"')
_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
_PARAMETER_SIGNS = _LETTERS | frozenset("0123456789_")


class ModelfileCommand(NamedTuple):
    """One instruction of a Modelfile; as a text it is the line that ollama would write."""

    name: str  # ollama's: FROM is `model`, a PARAMETER goes by its own name
    args: str

    @override
    def __str__(self) -> str:
        match self.name:
            case "model":
                return f"FROM {self.args}"
            case "license" | "template" | "system" | "adapter":
                return f"{self.name.upper()} {_quoted(self.args)}"
            case "message":
                role, _, text = self.args.partition(": ")
                return f"MESSAGE {role} {_quoted(text)}"
            case _:
                return f"PARAMETER {self.name} {_quoted(self.args)}"


@dataclass(frozen=True, slots=True)
class Modelfile:
    """Its commands in the order of the file."""

    commands: list[ModelfileCommand]

    @property
    def formatted(self) -> str:
        """Ollama's canonical text, which does not always read back as the same commands."""
        return "".join(f"{command}\n" for command in self.commands)


def parse_modelfile(text: str) -> Modelfile:
    """Raise PresetError with ollama's text; FROM may stand anywhere, but must be there."""
    commands = _ModelfileParser(text.removeprefix("\ufeff")).read()
    if not any(command.name == "model" for command in commands):
        raise PresetError("no FROM line")
    return Modelfile(commands)


class _ParserState(Enum):
    BETWEEN = auto()
    NAME = auto()
    PARAMETER = auto()
    ROLE = auto()
    VALUE = auto()
    COMMENT = auto()


class _ArgumentBuffer:
    """What stands behind a command so far; while its quotes are open it goes on for lines."""

    def __init__(self) -> None:
        self._signs: list[str] = []
        self._first = self._behind_last = 0  # of what is no blank

    def add(self, sign: str) -> None:
        if not sign.isspace():
            if not self._behind_last:
                self._first = len(self._signs)
            self._behind_last = len(self._signs) + 1
        self._signs.append(sign)

    @property
    def is_open(self) -> bool:
        """Asked at the end of each line, so the whole text is not looked at."""
        size = len(self._quotes)
        end = "".join(self._signs[self._behind_last - size : self._behind_last])
        long_enough = self._behind_last - self._first >= 2 * size
        return not (long_enough and end == self._quotes)

    @property
    def unquoted(self) -> str:
        size = len(self._quotes)
        return "".join(self._signs[self._first + size : self._behind_last - size])

    @property
    def _quotes(self) -> str:
        head = "".join(self._signs[self._first : self._first + 3])
        return next((quotes for quotes in _QUOTES if head.startswith(quotes)), "")


class _ModelfileParser:
    """Ollama's machine of states: it reads sign by sign, and each state knows what may follow."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._state = _ParserState.BETWEEN
        self._line = 1
        self._buffer: list[str] = []
        self._value = _ArgumentBuffer()
        self._name = ""
        self._role = ""
        self._commands: list[ModelfileCommand] = []

    def read(self) -> list[ModelfileCommand]:
        for sign in self._text:
            self._line += sign in "\r\n"  # so a line that ends in both counts twice
            match self._state:
                case _ParserState.BETWEEN:
                    self._between(sign)
                case _ParserState.NAME:
                    self._in_name(sign)
                case _ParserState.PARAMETER:
                    self._in_word(sign, _PARAMETER_SIGNS)
                case _ParserState.ROLE:
                    self._in_word(sign, _LETTERS)
                case _ParserState.VALUE:
                    self._in_value(sign)
                case _ParserState.COMMENT:
                    if sign in "\r\n":
                        self._state = _ParserState.BETWEEN
        self._end()
        return self._commands

    def _between(self, sign: str) -> None:
        if sign == "#":
            self._state = _ParserState.COMMENT
        elif sign not in " \t\r\n":
            self._buffer = [sign] if _prints(sign) else []
            self._state = _ParserState.NAME

    def _in_name(self, sign: str) -> None:
        if sign in _LETTERS:
            self._buffer.append(sign)
            return
        name = "".join(self._buffer).lower()
        if sign not in " \t" or name not in _COMMANDS:
            raise PresetError(f"(line {self._line}): {_BAD_COMMAND}")
        self._buffer = []
        self._name = "model" if name == "from" else name
        self._state = {"parameter": _ParserState.PARAMETER, "message": _ParserState.ROLE}.get(
            name, _ParserState.VALUE
        )

    def _in_word(self, sign: str, allowed: frozenset[str]) -> None:
        """Stand in the name of a parameter or in the role of a message."""
        if sign in allowed:
            self._buffer.append(sign)
            return
        word = "".join(self._buffer)
        if sign not in " \t":
            raise PresetError(f"{_UNEXPECTED_END}: {word}")
        if self._state is _ParserState.PARAMETER:
            self._name = word
        elif word in _ROLES:
            self._role = word
        else:
            raise PresetError(f"(line {self._line}): {_BAD_ROLE}")
        self._buffer = []
        self._state = _ParserState.VALUE

    def _in_value(self, sign: str) -> None:
        if sign in "\r\n" and not self._value.is_open:
            self._keep()
            self._state = _ParserState.BETWEEN
        elif sign in " \t\r\n" or _prints(sign):  # the rest is dropped, as ollama does
            self._value.add(sign)

    def _keep(self) -> None:
        value = self._value.unquoted
        if self._role:
            value = f"{self._role}: {value}"
        self._commands.append(ModelfileCommand(self._name, value))
        self._role = ""
        self._value = _ArgumentBuffer()

    def _end(self) -> None:
        match self._state:
            case _ParserState.BETWEEN | _ParserState.COMMENT:
                return
            case _ParserState.VALUE:
                if self._value.is_open:
                    raise PresetError(_UNEXPECTED_END)
                self._keep()
            case _ParserState.NAME | _ParserState.PARAMETER | _ParserState.ROLE:
                raise PresetError(_UNEXPECTED_END)


def _prints(sign: str) -> bool:
    """Ask for what Go calls printable; signs newer than Python's tables are taken to be."""
    return sign.isprintable() or unicodedata.category(sign) == "Cn"


def _quoted(text: str) -> str:
    if "\n" in text or text.startswith(" ") or text.endswith(" "):
        return f'"""{text}"""' if '"' in text else f'"{text}"'
    return text

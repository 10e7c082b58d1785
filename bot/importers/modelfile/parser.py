"""Parse a Modelfile by ollama's rules of August 2026, with the error texts of v0.5.7."""

import unicodedata
from enum import Enum, auto
from typing import NamedTuple

from typing_extensions import override

from bot.errors import PresetError
from bot.frozen_dataclass import frozen_dataclass
from bot.texts.text import translatable

_COMMANDS = {"from", "license", "template", "system", "adapter", "draft", "renderer", "parser"} | {
    "parameter", "message", "requires"
}  # fmt: skip
_ROLES = {"system", "user", "assistant"}
_BAD_COMMAND = translatable(
    'command must be one of "from", "license", "template", "system", "adapter", "parameter",'
    ' or "message"'  # as in v0.5.7: the newer commands are for ollama's own engine
)
_BAD_ROLE = translatable('message role must be one of "system", "user", or "assistant"')
_UNEXPECTED_END = translatable("unexpected EOF")
_QUOTES = ('"""', '"')
_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
_PARAMETER_CHARACTERS = _LETTERS | frozenset("0123456789_")


class ModelfileCommand(NamedTuple):
    """One instruction of a Modelfile; `str()` gives the line that ollama would write."""

    name: str
    """Ollama's name: FROM is `model`, a PARAMETER has its own name."""

    args: str

    @override
    def __str__(self) -> str:
        match self.name:
            case "model":
                return f"FROM {self.args}"
            case (
                "license" | "template" | "system" | "adapter" | "draft"
                | "renderer" | "parser" | "requires"
            ):  # fmt: skip
                return f"{self.name.upper()} {_quoted(self.args)}"
            case "message":
                role, _, text = self.args.partition(": ")
                return f"MESSAGE {role} {_quoted(text)}"
            case _:
                return f"PARAMETER {self.name} {_quoted(self.args)}"


@frozen_dataclass
class Modelfile:
    """The commands of a Modelfile, in the order of the file."""

    commands: list[ModelfileCommand]

    @property
    def formatted(self) -> str:
        """Return ollama's canonical text, which does not always parse to the same commands."""
        return "".join(f"{command}\n" for command in self.commands)


def parse_modelfile(text: str) -> Modelfile:
    """Parse a Modelfile.

    Raises:
        PresetError: a syntax error with ollama's text, or there is no FROM.
    """
    commands = _ModelfileParser(text.removeprefix("\ufeff")).parse()
    if not any(command.name == "model" for command in commands):
        raise PresetError(translatable("no FROM line"))
    return Modelfile(commands)


class _ParserState(Enum):
    BETWEEN_COMMANDS = auto()
    NAME = auto()
    PARAMETER = auto()
    ROLE = auto()
    VALUE = auto()
    COMMENT = auto()


class _ArgumentBuffer:
    """The argument of a command so far; it continues over lines while its quotes are open."""

    def __init__(self) -> None:
        self._characters: list[str] = []
        self._start_of_text = self._end_of_text = 0  # without white space

    def add(self, character: str) -> None:
        if not character.isspace():
            if not self._end_of_text:
                self._start_of_text = len(self._characters)
            self._end_of_text = len(self._characters) + 1
        self._characters.append(character)

    @property
    def is_open(self) -> bool:
        """Tell whether quotes are still open, in constant time: it is asked at each line end."""
        size = len(self._quotes)
        end = "".join(self._characters[self._end_of_text - size : self._end_of_text])
        long_enough = self._end_of_text - self._start_of_text >= 2 * size
        return not (long_enough and end == self._quotes)

    @property
    def unquoted(self) -> str:
        size = len(self._quotes)
        return "".join(self._characters[self._start_of_text + size : self._end_of_text - size])

    @property
    def _quotes(self) -> str:
        head = "".join(self._characters[self._start_of_text : self._start_of_text + 3])
        return next((quotes for quotes in _QUOTES if head.startswith(quotes)), "")


class _ModelfileParser:
    """Ollama's state machine; it reads one character at a time."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._state = _ParserState.BETWEEN_COMMANDS
        self._line = 1
        self._buffer: list[str] = []
        self._value = _ArgumentBuffer()
        self._name = ""
        self._role = ""
        self._commands: list[ModelfileCommand] = []

    def parse(self) -> list[ModelfileCommand]:
        for character in self._text:
            self._line += character in "\r\n"  # CR LF counts twice, as in ollama
            match self._state:
                case _ParserState.BETWEEN_COMMANDS:
                    self._between(character)
                case _ParserState.NAME:
                    self._in_name(character)
                case _ParserState.PARAMETER:
                    self._in_word(character, _PARAMETER_CHARACTERS)
                case _ParserState.ROLE:
                    self._in_word(character, _LETTERS)
                case _ParserState.VALUE:
                    self._in_value(character)
                case _ParserState.COMMENT:
                    if character in "\r\n":
                        self._state = _ParserState.BETWEEN_COMMANDS
        self._finish()
        return self._commands

    def _between(self, character: str) -> None:
        if character == "#":
            self._state = _ParserState.COMMENT
        elif character not in " \t\r\n":
            self._buffer = [character] if _is_printable(character) else []
            self._state = _ParserState.NAME

    def _in_name(self, character: str) -> None:
        if character in _LETTERS:
            self._buffer.append(character)
            return
        name = "".join(self._buffer).lower()
        if character not in " \t" or name not in _COMMANDS:
            raise PresetError(
                translatable("(line {line}): {problem}", line=self._line, problem=_BAD_COMMAND)
            )
        self._buffer = []
        self._name = "model" if name == "from" else name
        self._state = {"parameter": _ParserState.PARAMETER, "message": _ParserState.ROLE}.get(
            name, _ParserState.VALUE
        )

    def _in_word(self, character: str, allowed: frozenset[str]) -> None:
        """Handle a character of a parameter name or of a message role."""
        if character in allowed:
            self._buffer.append(character)
            return
        word = "".join(self._buffer)
        if character not in " \t":
            raise PresetError(translatable("{problem}: {word}", problem=_UNEXPECTED_END, word=word))
        if self._state is _ParserState.PARAMETER:
            self._name = word
        elif word in _ROLES:
            self._role = word
        else:
            raise PresetError(
                translatable("(line {line}): {problem}", line=self._line, problem=_BAD_ROLE)
            )
        self._buffer = []
        self._state = _ParserState.VALUE

    def _in_value(self, character: str) -> None:
        if character in "\r\n" and not self._value.is_open:
            self._add_command()
            self._state = _ParserState.BETWEEN_COMMANDS
        elif character in " \t\r\n" or _is_printable(character):  # others are dropped, as in ollama
            self._value.add(character)

    def _add_command(self) -> None:
        value = self._value.unquoted
        if self._role:
            value = f"{self._role}: {value}"
        self._commands.append(ModelfileCommand(self._name, value))
        self._role = ""
        self._value = _ArgumentBuffer()

    def _finish(self) -> None:
        match self._state:
            case _ParserState.BETWEEN_COMMANDS | _ParserState.COMMENT:
                return
            case _ParserState.VALUE:
                if self._value.is_open:
                    raise PresetError(_UNEXPECTED_END)
                self._add_command()
            case _ParserState.NAME | _ParserState.PARAMETER | _ParserState.ROLE:
                raise PresetError(_UNEXPECTED_END)


def _is_printable(character: str) -> bool:
    """Tell whether Go would print a character; characters unknown to Python count as printable."""
    return character.isprintable() or unicodedata.category(character) == "Cn"


def _quoted(text: str) -> str:
    if "\n" in text or text.startswith(" ") or text.endswith(" "):
        return f'"""{text}"""' if '"' in text else f'"{text}"'
    return text

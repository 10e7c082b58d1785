"""Tokenize a Go template by the rules of text/template."""

import re
import sys
from collections.abc import Iterator
from typing import NamedTuple

from bot.errors import TemplateError
from bot.texts.text import translatable

_SPACE = " \t\r\n"
_OPEN = re.compile(r"\{\{(-(?=[ \t\r\n]))?")
_CLOSE = re.compile(r"[ \t\r\n]*(?P<trim>(?<=[ \t\r\n])-)?\}\}")
_COMMENT = re.compile(r"[ \t\r\n]?/\*(?P<body>.*?)\*/", re.DOTALL)
_TOKEN = re.compile(
    r"""
      (?P<space>[ \t\r\n]+)
    | (?P<string>"(?:\\.|[^"\\\n])*"|`[^`]*`)
    | (?P<number>[+-]?\.?\d[\w.]*)
    | (?P<field>\.[^\W\d]\w*)
    | (?P<variable>\$\w*)
    | (?P<name>[^\W\d]\w*)
    | (?P<operator>:=|[=|(),.])
    """,
    re.VERBOSE,
)
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[0-7]{3}|.)", re.DOTALL)
_ESCAPED = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


class GoToken(NamedTuple):
    """A token: `text`, `{{`, `}}`, `eof`, or one of the group names of `_TOKEN`."""

    kind: str
    text: str
    line: int


def go_error(line: int, problem: str) -> TemplateError:
    """Return an error with the text that Go gives for a template without a name."""
    return TemplateError(translatable("template: :{line}: {problem}", line=line, problem=problem))


def unquote(literal: str) -> str:
    """Return the value of a Go string literal in double quotes or back quotes."""
    if literal.startswith("`"):
        return literal[1:-1].replace("\r", "")

    def unescape(match: re.Match[str]) -> str:
        code: str = match[1]
        if code[0] in "xuU":
            point = int(code[1:], 16)
            return chr(point) if point <= sys.maxunicode else "\ufffd"
        return chr(int(code, 8)) if len(code) == 3 else _ESCAPED.get(code, code)

    return _ESCAPE.sub(unescape, literal[1:-1])


class GoLexer:
    """Tokenizes one source; syntax errors are TemplateErrors with the line number."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._position = 0

    def tokens(self) -> Iterator[GoToken]:
        """Yield all tokens; texts are trimmed beside `{{-` and `-}}`."""
        trim = False
        while True:
            opening = _OPEN.search(self._source, self._position)
            end = opening.start() if opening else len(self._source)
            text = self._source[self._position : end]
            text = text.lstrip(_SPACE) if trim else text
            text = text.rstrip(_SPACE) if opening and opening[1] else text
            if text:
                yield self._token("text", text)
            if opening is None:
                self._position = end
                yield self._token("eof", "")
                return
            self._position = opening.end()
            comment = _COMMENT.match(self._source, self._position)
            if comment:
                self._position = comment.end()
                if not _CLOSE.match(self._source, self._position):
                    raise self._error(translatable("comment ends before closing delimiter"))
            elif self._source.startswith(("/*", " /*"), self._position):
                raise self._error(translatable("unclosed comment"))
            else:
                yield self._token("{{", "{{")
                yield from self._action_tokens()
                yield self._token("}}", "}}")
            closing = _CLOSE.match(self._source, self._position)
            if closing is None:
                raise self._error(translatable("unclosed action"))
            self._position = closing.end()
            trim = closing["trim"] is not None

    def _action_tokens(self) -> Iterator[GoToken]:
        while not _CLOSE.match(self._source, self._position):
            match = _TOKEN.match(self._source, self._position)
            if match is None or match.lastgroup is None:
                raise self._unknown_token()
            yield self._token(match.lastgroup, match[0])
            self._position = match.end()

    def _unknown_token(self) -> TemplateError:
        character = self._source[self._position : self._position + 1]
        match character:
            case "":
                return self._error(translatable("unclosed action"))
            case '"':
                return self._error(translatable("unterminated quoted string"))
            case "`":
                return self._error(translatable("unterminated raw quoted string"))
            case _:
                return self._error(
                    translatable(
                        "unrecognized character in action: {character}", character=repr(character)
                    )
                )

    def _token(self, kind: str, text: str) -> GoToken:
        return GoToken(kind, text, self._line())

    def _line(self) -> int:
        return self._source.count("\n", 0, self._position) + 1

    def _error(self, problem: str) -> TemplateError:
        return go_error(self._line(), problem)

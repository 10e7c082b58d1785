"""Cut a Go template into its texts and the words of its actions, by the rules of text/template."""

import re
import sys
from collections.abc import Iterator
from typing import NamedTuple

from bot.errors import TemplateError

_SPACE = " \t\r\n"
_OPEN = re.compile(r"\{\{(-(?=[ \t\r\n]))?")
_CLOSE = re.compile(r"[ \t\r\n]*(?P<trim>(?<=[ \t\r\n])-)?\}\}")
_COMMENT = re.compile(r"[ \t\r\n]?/\*(?P<body>.*?)\*/", re.DOTALL)
_WORD = re.compile(
    r"""
      (?P<space>[ \t\r\n]+)
    | (?P<string>"(?:\\.|[^"\\\n])*"|`[^`]*`)
    | (?P<number>[+-]?\.?\d[\w.]*)
    | (?P<field>\.[^\W\d]\w*)
    | (?P<variable>\$\w*)
    | (?P<name>[^\W\d]\w*)
    | (?P<sign>:=|[=|(),.])
    """,
    re.VERBOSE,
)
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[0-7]{3}|.)", re.DOTALL)
_ESCAPED = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


class GoToken(NamedTuple):
    """A text, `{{`, `}}`, the end (`eof`), or a word of the kinds that the expression names."""

    kind: str
    text: str
    line: int


def go_error(line: int, problem: str) -> TemplateError:
    """Say it as Go does about a template without a name."""
    return TemplateError(f"template: :{line}: {problem}")


def unquote(literal: str) -> str:
    """Say what a Go string literal stands for, in double quotes or in back quotes."""
    if literal.startswith("`"):
        return literal[1:-1].replace("\r", "")

    def character(match: re.Match[str]) -> str:
        code: str = match[1]
        if code[0] in "xuU":
            point = int(code[1:], 16)
            return chr(point) if point <= sys.maxunicode else "\ufffd"
        return chr(int(code, 8)) if len(code) == 3 else _ESCAPED.get(code, code)

    return _ESCAPE.sub(character, literal[1:-1])


class GoLexer:
    """Goes once through a source; a mistake in it is a TemplateError with its line."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._place = 0

    def tokens(self) -> Iterator[GoToken]:
        """Yield everything in order; white space beside `{{-` and `-}}` is gone from the texts."""
        trim = False
        while True:
            opening = _OPEN.search(self._source, self._place)
            end = opening.start() if opening else len(self._source)
            text = self._source[self._place : end]
            text = text.lstrip(_SPACE) if trim else text
            text = text.rstrip(_SPACE) if opening and opening[1] else text
            if text:
                yield self._token("text", text)
            if opening is None:
                self._place = end
                yield self._token("eof", "")
                return
            self._place = opening.end()
            comment = _COMMENT.match(self._source, self._place)
            if comment:
                self._place = comment.end()
                if not _CLOSE.match(self._source, self._place):
                    raise self._error("comment ends before closing delimiter")
            elif self._source.startswith(("/*", " /*"), self._place):
                raise self._error("unclosed comment")
            else:
                yield self._token("{{", "{{")
                yield from self._words()
                yield self._token("}}", "}}")
            closing = _CLOSE.match(self._source, self._place)
            if closing is None:
                raise self._error("unclosed action")
            self._place = closing.end()
            trim = closing["trim"] is not None

    def _words(self) -> Iterator[GoToken]:
        while not _CLOSE.match(self._source, self._place):
            word = _WORD.match(self._source, self._place)
            if word is None or word.lastgroup is None:
                raise self._unknown()
            yield self._token(word.lastgroup, word[0])
            self._place = word.end()

    def _unknown(self) -> TemplateError:
        sign = self._source[self._place : self._place + 1]
        match sign:
            case "":
                return self._error("unclosed action")
            case '"':
                return self._error("unterminated quoted string")
            case "`":
                return self._error("unterminated raw quoted string")
            case _:
                return self._error(f"unrecognized character in action: {sign!r}")

    def _token(self, kind: str, text: str) -> GoToken:
        return GoToken(kind, text, self._line())

    def _line(self) -> int:
        return self._source.count("\n", 0, self._place) + 1

    def _error(self, problem: str) -> TemplateError:
        return go_error(self._line(), problem)

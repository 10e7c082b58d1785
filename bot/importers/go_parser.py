"""Parse Go templates: tokens, nodes and the parser."""

import re
import sys
from collections.abc import Iterator
from typing import NamedTuple

from bot.errors import TemplateError
from bot.texts.text import marked, translatable
from bot.value_class import value_class


@value_class
class GoField:
    """A field of the dot (`.Function.Name`) or of a variable (`$tool.Function.Name`)."""

    variable: str | None
    """None for the dot; `$` is the root."""

    names: tuple[str, ...] = ()


@value_class
class GoLiteral:
    """A string, a number, `true`, `false` or `nil`."""

    value: str | int | float | bool | None


@value_class
class GoFunction:
    """The name of a function."""

    name: str


@value_class
class GoChain:
    """A field of a parenthesized pipeline, such as `(index .Messages 0).Content`."""

    pipe: "GoPipe"
    names: tuple[str, ...]


@value_class
class GoPipe:
    """A pipeline, such as `$x := first | second "argument"`."""

    commands: tuple[tuple["GoOperand", ...], ...]
    """Each command is a function or value, followed by its arguments."""

    variables: tuple[str, ...] = ()

    declares: bool = False
    """True for `:=`, false for `=`."""

    line: int = 0


GoOperand = GoField | GoLiteral | GoFunction | GoChain | GoPipe


@value_class
class GoText:
    """Text outside the braces."""

    text: str


@value_class
class GoAction:
    """A pipeline that prints its value or sets a variable."""

    pipe: GoPipe


@value_class
class GoJump:
    """`break` or `continue`."""

    keyword: str


@value_class
class GoBranch:
    """`if`, `range` or `with`, with its body and its `else` part."""

    keyword: str
    pipe: GoPipe
    body: tuple["GoNode", ...]
    else_body: tuple["GoNode", ...]


GoNode = GoText | GoAction | GoJump | GoBranch


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


def go_error(line: int, problem: str, **values: object) -> TemplateError:
    """Return an error with the text that Go gives for a template without a name."""
    text = translatable(problem, **values)
    return TemplateError.translatable("template: :{line}: {problem}", line=line, problem=text)


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
                    raise self._error(marked("comment ends before closing delimiter"))
            elif self._source.startswith(("/*", " /*"), self._position):
                raise self._error(marked("unclosed comment"))
            else:
                yield self._token("{{", "{{")
                yield from self._action_tokens()
                yield self._token("}}", "}}")
            closing = _CLOSE.match(self._source, self._position)
            if closing is None:
                raise self._error(marked("unclosed action"))
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
                return self._error(marked("unclosed action"))
            case '"':
                return self._error(marked("unterminated quoted string"))
            case "`":
                return self._error(marked("unterminated raw quoted string"))
            case _:
                return self._error(
                    marked("unrecognized character in action: {character}"),
                    character=repr(character),
                )

    def _token(self, kind: str, text: str) -> GoToken:
        return GoToken(kind, text, self._line())

    def _line(self) -> int:
        return self._source.count("\n", 0, self._position) + 1

    def _error(self, problem: str, **values: object) -> TemplateError:
        return go_error(self._line(), problem, **values)


# The functions of Go and of ollama; any other name is a parse error.
GO_FUNCTIONS = frozenset(
    {"and", "call", "eq", "ge", "gt", "html", "index", "js", "json", "le", "len", "lt", "ne", "not"}
    | {"or", "print", "printf", "println", "slice", "urlquery", "currentDate"}
)

MAX_DEPTH = 100  # protects the stack
MAX_LOOPS = 4  # limits the run time; templates need two
_MAX_NUMBER_CHARS = 70  # 64 binary digits, their sign and prefix


def parse_go_template(source: str) -> tuple[GoNode, ...]:
    """Parse a template.

    Raises:
        TemplateError: a syntax error, with Go's text, or a construct that is not supported.
    """
    return _GoParser(source).parse()


class _GoParser:
    def __init__(self, source: str) -> None:
        self._tokens = list(GoLexer(source).tokens())
        self._position = 0
        self._variables = ["$"]
        self._loops = 0
        self._depth = 0

    def parse(self) -> tuple[GoNode, ...]:
        nodes, stop = self._parse_nodes()
        if stop.kind != "eof":
            raise go_error(stop.line, marked("unexpected {{{{{word}}}}}"), word=stop.text)
        return nodes

    def _parse_nodes(self) -> tuple[tuple[GoNode, ...], GoToken]:
        """Parse up to an `end`, an `else` or the end of the file; return this token, too."""
        nodes: list[GoNode] = []
        while True:
            token = self._next()
            match token.kind:
                case "eof":
                    return tuple(nodes), token
                case "text":
                    nodes.append(GoText(token.text))
                case _:
                    self._skip_space()
                    keyword = self._peek()
                    if keyword.kind == "name" and keyword.text in {"end", "else"}:
                        self._position += 1
                        return tuple(nodes), keyword
                    nodes.append(self._parse_action(keyword))

    def _parse_action(self, keyword: GoToken) -> GoNode:
        match keyword.text if keyword.kind == "name" else "":
            case "if" | "range" | "with":
                self._position += 1
                return self._parse_branch(keyword)
            case "break" | "continue":
                self._position += 1
                if not self._loops:
                    raise go_error(
                        keyword.line,
                        marked("{{{{{word}}}}} outside {{{{range}}}}"),
                        word=keyword.text,
                    )
                self._expect_close(keyword.text)
                return GoJump(keyword.text)
            case "template" | "block" | "define":
                raise go_error(
                    keyword.line,
                    marked("{{{{{word}}}}} cannot be translated to Jinja"),
                    word=keyword.text,
                )
            case _:
                return GoAction(self._parse_pipe("command", "}}"))

    def _parse_branch(self, keyword: GoToken) -> GoBranch:
        self._enter(keyword)
        outside = len(self._variables)
        pipe = self._parse_pipe(keyword.text, "}}")
        self._loops += keyword.text == "range"
        if self._loops > MAX_LOOPS:
            raise go_error(
                keyword.line, marked("more than {limit} ranges in each other"), limit=MAX_LOOPS
            )
        body, stop = self._parse_nodes()
        self._loops -= keyword.text == "range"
        else_body: tuple[GoNode, ...] = ()
        chained = False
        if stop.text == "else":
            self._skip_space()
            chained = self._peek().text == keyword.text != "range"
            if chained:  # `else if`: one `end` closes both
                else_body = (self._parse_branch(self._next()),)
            else:
                self._expect_close("else")
                else_body, stop = self._parse_nodes()
        if not chained:
            self._expect_end(stop)
        del self._variables[outside:]
        self._depth -= 1
        return GoBranch(keyword.text, pipe, body, else_body)

    def _expect_end(self, stop: GoToken) -> None:
        if stop.kind == "eof":
            raise go_error(stop.line, marked("unexpected EOF"))
        if stop.text != "end":
            raise go_error(stop.line, marked("expected end; found {{{{else}}}}"))
        self._expect_close("end")

    def _parse_pipe(self, context: str, closing: str) -> GoPipe:
        self._enter(self._peek())
        line = self._peek().line
        variables, declares = self._parse_variables(context)
        commands = [self._parse_command(context)]
        while self._peek().text == "|":
            self._position += 1
            commands.append(self._parse_command(context))
        token = self._next()
        if token.text != closing:
            raise _unexpected(token, context)
        self._variables += variables if declares else ()
        self._depth -= 1
        return GoPipe(tuple(commands), variables, declares, line)

    def _parse_variables(self, context: str) -> tuple[tuple[str, ...], bool]:
        """Parse `$x :=`, `$x =` or, in a range, `$i, $x :=`, if one of these comes next."""
        self._skip_space()
        start = self._position
        names: list[str] = []
        while self._peek().kind == "variable":
            names.append(self._next().text)
            self._skip_space()
            operator = self._peek().text
            if operator in {":=", "="}:
                self._position += 1
                if operator == "=":
                    for name in names:
                        self._check_variable(name)
                return tuple(names), operator == ":="
            if operator != "," or context != "range" or len(names) > 1:
                break
            self._position += 1
            self._skip_space()
        self._position = start
        return (), False

    def _parse_command(self, context: str) -> tuple[GoOperand, ...]:
        operands: list[GoOperand] = []
        while True:
            self._skip_space()
            token = self._peek()
            if token.kind in {"}}", "eof"} or token.text in {"|", ")"}:
                break
            operands.append(self._parse_operand(context))
        if not operands:
            raise go_error(
                self._peek().line, marked("missing value for {context}"), context=context
            )
        return tuple(operands)

    def _parse_operand(self, context: str) -> GoOperand:
        token = self._next()
        match token.kind:
            case "string":
                return GoLiteral(unquote(token.text))
            case "number":
                return GoLiteral(_parse_number(token))
            case "field":
                return GoField(None, (token.text[1:], *self._parse_fields()))
            case "variable":
                self._check_variable(token.text)
                return GoField(token.text, self._parse_fields())
            case "name":
                return self._parse_name(token)
            case "operator" if token.text == ".":
                return GoField(None)
            case "operator" if token.text == "(":
                pipe = self._parse_pipe("parenthesized pipeline", ")")
                names = self._parse_fields()
                return GoChain(pipe, names) if names else pipe
            case _:
                raise _unexpected(token, context)

    def _parse_name(self, token: GoToken) -> GoOperand:
        match token.text:
            case "true" | "false":
                return GoLiteral(token.text == "true")
            case "nil":
                return GoLiteral(None)
            case name if name in GO_FUNCTIONS:
                return GoFunction(name)
            case name:
                raise go_error(token.line, marked('function "{name}" not defined'), name=name)

    def _parse_fields(self) -> tuple[str, ...]:
        names: list[str] = []
        while self._peek().kind == "field":
            names.append(self._next().text[1:])
        return tuple(names)

    def _check_variable(self, variable: str) -> None:
        if variable not in self._variables:
            raise go_error(
                self._peek().line, marked('undefined variable "{variable}"'), variable=variable
            )

    def _enter(self, token: GoToken) -> None:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise go_error(token.line, marked("nested deeper than {limit}"), limit=MAX_DEPTH)

    def _expect_close(self, context: str) -> None:
        self._skip_space()
        token = self._next()
        if token.kind != "}}":
            raise _unexpected(token, context)

    def _skip_space(self) -> None:
        while self._peek().kind == "space":
            self._position += 1

    def _peek(self) -> GoToken:
        return self._tokens[self._position]

    def _next(self) -> GoToken:
        token = self._peek()
        self._position += token.kind != "eof"
        return token


def _unexpected(token: GoToken, context: str) -> TemplateError:
    problem = marked('unexpected "{token}" in {context}')
    return go_error(token.line, problem, token=token.text, context=context)


def _parse_number(token: GoToken) -> int | float:
    text = token.text.replace("_", "")
    if len(text) > _MAX_NUMBER_CHARS:
        raise go_error(
            token.line, marked('integer overflow: "{number}..."'), number=text[:_MAX_NUMBER_CHARS]
        )
    try:
        return int(text, 0)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        raise go_error(
            token.line, marked('bad number syntax: "{token}"'), token=token.text
        ) from None

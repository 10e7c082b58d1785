"""Read a Go template as ollama does (text/template), with Go's error texts."""

from bot.importers.modelfile.go_lexer import GoLexer, GoToken, go_error, unquote
from bot.importers.modelfile.go_nodes import (
    GoAction,
    GoBranch,
    GoChain,
    GoField,
    GoFunction,
    GoJump,
    GoLiteral,
    GoNode,
    GoOperand,
    GoPipe,
    GoText,
)

# What Go itself defines and what ollama adds; a name beyond these is a parse error.
GO_FUNCTIONS = frozenset(
    {"and", "call", "eq", "ge", "gt", "html", "index", "js", "json", "le", "len", "lt", "ne", "not"}
    | {"or", "print", "printf", "println", "slice", "urlquery", "currentDate"}
)

MAX_DEPTH = 100  # so that no source can exhaust the stack
MAX_LOOPS = 4  # so that none can take for ever; two is what templates need
_MAX_NUMBER_CHARS = 70  # 64 binary digits, their sign and prefix


def parse(source: str) -> tuple[GoNode, ...]:
    """Raise TemplateError with Go's text, or with the construct that no prompt template needs."""
    return _GoParser(source).parse()


class _GoParser:
    def __init__(self, source: str) -> None:
        self._tokens = list(GoLexer(source).tokens())
        self._at = 0
        self._variables = ["$"]
        self._loops = 0
        self._depth = 0

    def parse(self) -> tuple[GoNode, ...]:
        nodes, stop = self._nodes()
        if stop.kind != "eof":
            raise go_error(stop.line, f"unexpected {{{{{stop.text}}}}}")
        return nodes

    def _nodes(self) -> tuple[tuple[GoNode, ...], GoToken]:
        """Read up to an `end`, an `else` or the end of the file, which is returned with them."""
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
                    word = self._peek()
                    if word.kind == "name" and word.text in {"end", "else"}:
                        self._at += 1
                        return tuple(nodes), word
                    nodes.append(self._action(word))

    def _action(self, word: GoToken) -> GoNode:
        match word.text if word.kind == "name" else "":
            case "if" | "range" | "with":
                self._at += 1
                return self._branch(word)
            case "break" | "continue":
                self._at += 1
                if not self._loops:
                    raise go_error(word.line, f"{{{{{word.text}}}}} outside {{{{range}}}}")
                self._close(word.text)
                return GoJump(word.text)
            case "template" | "block" | "define":
                raise go_error(word.line, f"{{{{{word.text}}}}} cannot be translated to Jinja")
            case _:
                return GoAction(self._pipe("command", "}}"))

    def _branch(self, word: GoToken) -> GoBranch:
        self._enter(word)
        outside = len(self._variables)
        pipe = self._pipe(word.text, "}}")
        self._loops += word.text == "range"
        if self._loops > MAX_LOOPS:
            raise go_error(word.line, f"more than {MAX_LOOPS} ranges in each other")
        body, stop = self._nodes()
        self._loops -= word.text == "range"
        otherwise: tuple[GoNode, ...] = ()
        chained = False
        if stop.text == "else":
            self._skip_space()
            chained = self._peek().text == word.text != "range"
            if chained:  # `else if`: one `end` closes both
                otherwise = (self._branch(self._next()),)
            else:
                self._close("else")
                otherwise, stop = self._nodes()
        if not chained:
            self._end(stop)
        del self._variables[outside:]
        self._depth -= 1
        return GoBranch(word.text, pipe, body, otherwise)

    def _end(self, stop: GoToken) -> None:
        if stop.kind == "eof":
            raise go_error(stop.line, "unexpected EOF")
        if stop.text != "end":
            raise go_error(stop.line, "expected end; found {{else}}")
        self._close("end")

    def _pipe(self, context: str, closing: str) -> GoPipe:
        self._enter(self._peek())
        line = self._peek().line
        variables, declares = self._declaration(context)
        commands = [self._command(context)]
        while self._peek().text == "|":
            self._at += 1
            commands.append(self._command(context))
        token = self._next()
        if token.text != closing:
            raise go_error(token.line, f'unexpected "{token.text}" in {context}')
        self._variables += variables if declares else ()
        self._depth -= 1
        return GoPipe(tuple(commands), variables, declares, line)

    def _declaration(self, context: str) -> tuple[tuple[str, ...], bool]:
        """`$x :=`, `$x =`, or in a range `$i, $x :=`; nothing is read when there is none."""
        self._skip_space()
        start = self._at
        names: list[str] = []
        while self._peek().kind == "variable":
            names.append(self._next().text)
            self._skip_space()
            sign = self._peek().text
            if sign in {":=", "="}:
                self._at += 1
                if sign == "=":
                    for name in names:
                        self._known(name)
                return tuple(names), sign == ":="
            if sign != "," or context != "range" or len(names) > 1:
                break
            self._at += 1
            self._skip_space()
        self._at = start
        return (), False

    def _command(self, context: str) -> tuple[GoOperand, ...]:
        operands: list[GoOperand] = []
        while True:
            self._skip_space()
            token = self._peek()
            if token.kind in {"}}", "eof"} or token.text in {"|", ")"}:
                break
            operands.append(self._operand(context))
        if not operands:
            raise go_error(self._peek().line, f"missing value for {context}")
        return tuple(operands)

    def _operand(self, context: str) -> GoOperand:
        token = self._next()
        match token.kind:
            case "string":
                return GoLiteral(unquote(token.text))
            case "number":
                return GoLiteral(_number(token))
            case "field":
                return GoField(None, (token.text[1:], *self._fields()))
            case "variable":
                self._known(token.text)
                return GoField(token.text, self._fields())
            case "name":
                return self._named(token)
            case "sign" if token.text == ".":
                return GoField(None)
            case "sign" if token.text == "(":
                pipe = self._pipe("parenthesized pipeline", ")")
                names = self._fields()
                return GoChain(pipe, names) if names else pipe
            case _:
                raise go_error(token.line, f'unexpected "{token.text}" in {context}')

    def _named(self, token: GoToken) -> GoOperand:
        match token.text:
            case "true" | "false":
                return GoLiteral(token.text == "true")
            case "nil":
                return GoLiteral(None)
            case name if name in GO_FUNCTIONS:
                return GoFunction(name)
            case name:
                raise go_error(token.line, f'function "{name}" not defined')

    def _fields(self) -> tuple[str, ...]:
        names: list[str] = []
        while self._peek().kind == "field":
            names.append(self._next().text[1:])
        return tuple(names)

    def _known(self, variable: str) -> None:
        if variable not in self._variables:
            raise go_error(self._peek().line, f'undefined variable "{variable}"')

    def _enter(self, token: GoToken) -> None:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise go_error(token.line, f"nested deeper than {MAX_DEPTH}")

    def _close(self, context: str) -> None:
        self._skip_space()
        token = self._next()
        if token.kind != "}}":
            raise go_error(token.line, f'unexpected "{token.text}" in {context}')

    def _skip_space(self) -> None:
        while self._peek().kind == "space":
            self._at += 1

    def _peek(self) -> GoToken:
        return self._tokens[self._at]

    def _next(self) -> GoToken:
        token = self._peek()
        self._at += token.kind != "eof"
        return token


def _number(token: GoToken) -> int | float:
    text = token.text.replace("_", "")
    if len(text) > _MAX_NUMBER_CHARS:
        raise go_error(token.line, f'integer overflow: "{text[:_MAX_NUMBER_CHARS]}..."')
    try:
        return int(text, 0)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        raise go_error(token.line, f'bad number syntax: "{token.text}"') from None

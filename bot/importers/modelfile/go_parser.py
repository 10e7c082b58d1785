"""Parse a Go template as ollama does (text/template), with Go's error texts."""

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
from bot.texts.text import translatable

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
            raise go_error(stop.line, translatable("unexpected {{{{{word}}}}}", word=stop.text))
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
                        translatable("{{{{{word}}}}} outside {{{{range}}}}", word=keyword.text),
                    )
                self._expect_close(keyword.text)
                return GoJump(keyword.text)
            case "template" | "block" | "define":
                raise go_error(
                    keyword.line,
                    translatable("{{{{{word}}}}} cannot be translated to Jinja", word=keyword.text),
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
                keyword.line,
                translatable("more than {limit} ranges in each other", limit=MAX_LOOPS),
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
            raise go_error(stop.line, translatable("unexpected EOF"))
        if stop.text != "end":
            raise go_error(stop.line, translatable("expected end; found {{{{else}}}}"))
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
            raise go_error(
                token.line,
                translatable(
                    'unexpected "{token}" in {context}', token=token.text, context=context
                ),
            )
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
                self._peek().line, translatable("missing value for {context}", context=context)
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
                raise go_error(
                    token.line,
                    translatable(
                        'unexpected "{token}" in {context}', token=token.text, context=context
                    ),
                )

    def _parse_name(self, token: GoToken) -> GoOperand:
        match token.text:
            case "true" | "false":
                return GoLiteral(token.text == "true")
            case "nil":
                return GoLiteral(None)
            case name if name in GO_FUNCTIONS:
                return GoFunction(name)
            case name:
                raise go_error(token.line, translatable('function "{name}" not defined', name=name))

    def _parse_fields(self) -> tuple[str, ...]:
        names: list[str] = []
        while self._peek().kind == "field":
            names.append(self._next().text[1:])
        return tuple(names)

    def _check_variable(self, variable: str) -> None:
        if variable not in self._variables:
            raise go_error(
                self._peek().line,
                translatable('undefined variable "{variable}"', variable=variable),
            )

    def _enter(self, token: GoToken) -> None:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise go_error(token.line, translatable("nested deeper than {limit}", limit=MAX_DEPTH))

    def _expect_close(self, context: str) -> None:
        self._skip_space()
        token = self._next()
        if token.kind != "}}":
            raise go_error(
                token.line,
                translatable(
                    'unexpected "{token}" in {context}', token=token.text, context=context
                ),
            )

    def _skip_space(self) -> None:
        while self._peek().kind == "space":
            self._position += 1

    def _peek(self) -> GoToken:
        return self._tokens[self._position]

    def _next(self) -> GoToken:
        token = self._peek()
        self._position += token.kind != "eof"
        return token


def _parse_number(token: GoToken) -> int | float:
    text = token.text.replace("_", "")
    if len(text) > _MAX_NUMBER_CHARS:
        raise go_error(
            token.line,
            translatable('integer overflow: "{number}..."', number=text[:_MAX_NUMBER_CHARS]),
        )
    try:
        return int(text, 0)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        raise go_error(
            token.line, translatable('bad number syntax: "{token}"', token=token.text)
        ) from None

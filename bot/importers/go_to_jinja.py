"""Translate Ollama's Go templates to Jinja."""

import ast
import json
import re
import tomllib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from bot.errors import TemplateError
from bot.texts.text import marked, translatable

_GO_WHITESPACE = " \t\r\n"
_OPENING_BRACES = re.compile(r"\{\{(-(?=[ \t\r\n]))?")
_CLOSING_BRACES = re.compile(r"[ \t\r\n]*(?P<trim>(?<=[ \t\r\n])-)?\}\}")
_COMMENT = re.compile(r"[ \t\r\n]?/\*.*?\*/", re.DOTALL)
_TOKEN = re.compile(
    r"""
      (?P<space>[ \t\r\n]+)
    | (?P<string>`[^`]*`
        | "(?: [^"\\\r\n\0] | \\(?: [abfnrtv\\"] | x[0-9a-fA-F]{2} | u[0-9a-fA-F]{4} | [0-3][0-7]{2}
                                     | U00(?: 0[0-9a-fA-F] | 10 )[0-9a-fA-F]{4} ) )*" )
    | (?P<number>[+-]?\.?\d[\w.]*)
    | (?P<field>(?:\.[^\W\d]\w*)+)
    | (?P<variable>\$\w*(?:\.[^\W\d]\w*)*)
    | (?P<closing>\)(?:\.[^\W\d]\w*)*)
    | (?P<name>[^\W\d]\w*)
    | (?P<operator>:=|[=|(,.])
    """,
    re.VERBOSE,
)
_FORMAT_VERB = re.compile(r"%(.?)", re.DOTALL)
_COMPARISON_OPERATORS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_GO_FUNCTIONS = frozenset(
    {"and", "index", "json", "len", "not", "or", "print", "printf", "slice", "currentDate"}
    | _COMPARISON_OPERATORS.keys()
)
_UNKNOWN_TOKEN_PROBLEMS = {
    "": marked("unclosed action"),
    '"': marked("unterminated quoted string"),
    "`": marked("unterminated raw quoted string"),
}
_MAX_TEMPLATE_CHARS = 64 * 1024  # the render process's limit
_MAX_NESTING_DEPTH = 100  # protects the stack
_MAX_LOOPS = 4  # to limit the run time; real templates need two
_MAX_NUMBER_CHARS = 70  # 64 binary digits with sign and prefix

_FIELDS_BY_TYPE: Mapping[str, Mapping[str, str]] = tomllib.loads(
    (Path(__file__).parent / "go_types.toml").read_text("utf-8")
)
_CASE_BOUNDARY = re.compile(r"(?<=[a-z])(?=[A-Z])")

# Types that ollama prints as JSON, with keys in their original order.
_TYPES_PRINTED_AS_JSON = frozenset({"tool", "list of tool", "declared"})


def _read_template(name: str) -> str:
    return (Path(__file__).parent / f"{name}.jinja").read_text("utf-8").removesuffix("\n")


# Consecutive messages with the same role are merged, and `.System` is all system messages together.
_MESSAGE_MERGER = _read_template("go_messages")
# An exchange is a system message, a prompt, and a response; each may be missing.
_TURN_LOOP_START = _read_template("go_turns")
# Go escapes these three characters in JSON.
_AS_JSON_MACRO = _read_template("go_json")


class _GoValue(NamedTuple):
    """A Jinja expression and the Go type of its value."""

    source: str
    go_type: str = "any"


_ROOT_VALUE = _GoValue("", "root")
_MISSING_VALUE = _GoValue("none", "nothing")  # the value of a missing key
_LITERALS = {
    "true": _GoValue("true", "bool"),
    "false": _GoValue("false", "bool"),
    "nil": _MISSING_VALUE,
}
_MESSAGES_ROOT_FIELDS = {
    "System": _GoValue('(chat.system | join("\\n\\n"))', "text"),
    "Messages": _GoValue("chat.messages", "list of message"),
    "Tools": _GoValue("(tools or [])", "list of tool"),
    "Response": _GoValue('""', "text"),
}
_TURN_ROOT_FIELDS = {
    "System": _GoValue("turn.system", "text"),
    "Prompt": _GoValue("turn.prompt", "text"),
    "Response": _GoValue("turn.response", "text"),
}


def jinja_from_go(source: str) -> str:
    """Translate a Go template to Jinja; raise `TemplateError` if it is invalid or unsupported."""
    if len(source) > _MAX_TEMPLATE_CHARS:
        raise TemplateError.translatable(
            "the template is longer than {limit} characters; shorten it", limit=_MAX_TEMPLATE_CHARS
        )
    tokens = list(_tokenize(source))
    used_fields = {name.lower() for token in tokens for name in token.field_names}
    uses_turns = "messages" not in used_fields
    if uses_turns and "response" not in used_fields:
        tokens = list(_tokenize(source + "{{ .Response }}"))
    assigned_names = {name.text for name, operator in pairwise(tokens) if operator.text == "="}
    root_fields = _TURN_ROOT_FIELDS if uses_turns else _MESSAGES_ROOT_FIELDS
    translator = _Translator(tokens, root_fields, assigned_names=assigned_names, indent=uses_turns)
    translator.translate_tokens()
    prelude = [_AS_JSON_MACRO] if translator.prints_json else []
    prelude += [_MESSAGE_MERGER, *(["{%- set var = namespace() %}"] if assigned_names else [])]
    loop_lines = ([_TURN_LOOP_START], ["{%- endfor %}"]) if uses_turns else ([], [])
    return "\n".join([*prelude, *loop_lines[0], *translator.lines, *loop_lines[1]])


class _Token(NamedTuple):
    """A token of a Go template; `kind` is `text`, `{{`, `}}`, `eof`, or a group in `_TOKEN`."""

    kind: str
    text: str
    line_number: int

    @property
    def field_names(self) -> Sequence[str]:
        """The names in a token such as `.Function.Name`, `$x.Name`, or `).Name`."""
        can_have_fields = self.kind in {"field", "variable", "closing"}
        return self.text.split(".")[1:] if can_have_fields else ()


def _tokenize(source: str) -> Iterator[_Token]:
    """Yield a template's tokens except spaces, with text trimmed next to `{{-` and `-}}`."""
    position, trims_next_text = 0, False
    while opening_match := _OPENING_BRACES.search(source, position):
        text = source[position : opening_match.start()]
        text = text.lstrip(_GO_WHITESPACE) if trims_next_text else text
        text = text.rstrip(_GO_WHITESPACE) if opening_match[1] else text
        yield _Token("text", text, _line_number(source, position))
        position = _skip_comment(source, opening_match.end())
        if position == opening_match.end():
            yield _Token("{{", "{{", _line_number(source, position))
            while not _CLOSING_BRACES.match(source, position):
                token = _read_token(source, position)
                position += len(token.text)
                if token.kind != "space":
                    yield token
            yield _Token("}}", "}}", _line_number(source, position))
        closing_match = _CLOSING_BRACES.match(source, position)
        if closing_match is None:
            line_number = _line_number(source, position)
            raise _error(line_number, marked("comment ends before closing delimiter"))
        position, trims_next_text = closing_match.end(), closing_match["trim"] is not None
    text = source[position:].lstrip(_GO_WHITESPACE) if trims_next_text else source[position:]
    yield _Token("text", text, _line_number(source, position))
    yield _Token("eof", "", _line_number(source, len(source)))


def _skip_comment(source: str, position: int) -> int:
    if comment_match := _COMMENT.match(source, position):
        return comment_match.end()
    if source.startswith(("/*", " /*"), position):
        raise _error(_line_number(source, position), marked("unclosed comment"))
    return position


def _read_token(source: str, position: int) -> _Token:
    token_match = _TOKEN.match(source, position)
    if token_match is None or token_match.lastgroup is None:
        character = source[position : position + 1]
        problem = marked("unrecognized character in action: {character}")
        problem = _UNKNOWN_TOKEN_PROBLEMS.get(character, problem)
        raise _error(_line_number(source, position), problem, character=repr(character))
    return _Token(token_match.lastgroup, token_match[0], _line_number(source, position))


def _line_number(source: str, position: int) -> int:
    return source.count("\n", 0, position) + 1


class _Translator:
    """Parses a Go template, and writes each construct in Jinja as soon as it is parsed."""

    def __init__(
        self,
        tokens: Sequence[_Token],
        root_fields: Mapping[str, _GoValue],
        *,
        assigned_names: Collection[str],
        indent: int,
    ) -> None:
        self._tokens = [one for one in tokens if one.text or one.kind != "text"]
        self._position = 0
        self._root_fields = root_fields
        self._assigned_names = assigned_names  # with `=`, perhaps in a loop or branch
        self._dot = _ROOT_VALUE
        self._variables = {"$": _ROOT_VALUE}
        self._loop_depth = self._nesting_depth = 0
        self._indent_depth = indent
        self._used_names: Counter[str] = Counter()
        self._has_printed_response = False
        self.lines: list[str] = []
        self.prints_json = False

    def translate_tokens(self) -> None:
        end_token = self._translate_nodes()
        if end_token.kind != "eof":
            raise self._error(marked("unexpected {{{{{word}}}}}"), word=end_token.text)

    def _translate_nodes(self) -> _Token:
        """Translate up to an `end`, an `else`, or the end of the file; return that token."""
        had_printed_response, skips_last_turn = self._has_printed_response, False
        while True:
            token = self._next()
            if token.kind == "{{":
                token = self._peek()
                if token.kind == "name" and token.text in {"end", "else"}:
                    self._position += 1
                    break
            if token.kind == "eof":
                break
            if self._has_printed_response and not had_printed_response and not skips_last_turn:
                skips_last_turn = True
                self._emit("{%- if not turn.last %}")
                self._indent_depth += 1
            if token.kind == "text":
                self._emit(f"{{{{- {_quote(token.text)} }}}}")
            else:
                self._translate_action(token.text if token.kind == "name" else "")
        if skips_last_turn:
            self._indent_depth -= 1
            self._emit("{%- endif %}")
        return token

    def _translate_body(self) -> _Token:
        with self._nested_scope():
            self._indent_depth += 1
            end_token = self._translate_nodes()
            self._indent_depth -= 1
        return end_token

    def _translate_action(self, keyword: str) -> None:
        match keyword:
            case "range":
                self._position += 1
                self._translate_range()
            case "if" | "with":
                self._position += 1
                self._translate_condition(keyword)
            case "break" | "continue":
                self._position += 1
                if not self._loop_depth:
                    raise self._error(marked("{{{{{word}}}}} outside {{{{range}}}}"), word=keyword)
                self._expect("}}", keyword)
                self._emit(f"{{%- {keyword} %}}")
            case _:
                start_position = self._position
                value, variables, is_declaration = self._read_pipeline("command")
                if variables:
                    self._set_variable(variables[0], value, is_declaration=is_declaration)
                else:
                    self._emit(f"{{{{- {self._to_text_source(value)} }}}}")
                self._has_printed_response |= self._root_fields is _TURN_ROOT_FIELDS and any(
                    token.kind == "field" and "Response" in token.field_names
                    for token in self._tokens[start_position : self._position]
                )

    def _translate_condition(self, keyword: str, *, is_chained: bool = False) -> None:
        """Translate `if` or `with`, including a chain of `else if` that ends at a single `end`."""
        with self._nested_scope():
            value, variables, is_declaration = self._read_pipeline(keyword)
            is_elif = is_chained and keyword == "if" and not variables
            if is_chained and not is_elif:
                self._emit("{%- else %}")
            if variables:
                value = self._set_variable(variables[0], value, is_declaration=is_declaration)
            self._emit(f"{{%- {'elif' if is_elif else 'if'} {value.source} %}}")
            outer_dot = self._dot
            self._dot = value if keyword == "with" else outer_dot
            end_token = self._translate_body()
            self._dot = outer_dot
            self._translate_else(keyword, end_token)
            if not is_elif:
                self._emit("{%- endif %}")

    def _translate_range(self) -> None:
        with self._nested_scope():
            container, variables, _ = self._read_pipeline("range")
            self._loop_depth += 1
            if self._loop_depth > _MAX_LOOPS:
                raise self._error(marked("ranges nested deeper than {limit}"), limit=_MAX_LOOPS)
            item = _GoValue(self._make_unique_name("item"), _element_type(container.go_type))
            index_source, loop_target, source = "loop.index0", item.source, container.source
            if container.go_type.startswith("map of "):
                index_source = self._make_unique_name("key")  # Go iterates over maps by key
                loop_target, source = f"{index_source}, {loop_target}", f"{source} | dictsort(true)"
            elif container.go_type == "nothing":
                source = "[]"
            self._emit(f"{{%- for {loop_target} in {source} %}}")
            outer_dot, self._dot = self._dot, item
            for name, value in zip(
                reversed(variables), (item, _GoValue(index_source)), strict=False
            ):
                if name != "$_":
                    self._set_variable(name, value, is_declaration=True)
            end_token = self._translate_body()
            self._dot = outer_dot
            self._loop_depth -= 1
            self._translate_else("range", end_token)
            self._emit("{%- endfor %}")

    def _translate_else(self, keyword: str, end_token: _Token) -> None:
        if end_token.text == "else":
            if self._peek().text == keyword != "range":
                self._position += 1
                self._translate_condition(keyword, is_chained=True)
                return
            self._expect("}}", "else")
            self._emit("{%- else %}")
            end_token = self._translate_body()
        if end_token.kind == "eof":
            raise self._error(marked("unexpected EOF"))
        if end_token.text != "end":
            raise self._error(marked("expected end; found {{{{else}}}}"))
        self._expect("}}", "end")

    def _set_variable(self, name: str, value: _GoValue, *, is_declaration: bool) -> _GoValue:
        """Assign and return a variable; use a Jinja namespace if it is assigned again."""
        if is_declaration:
            unique_name = self._make_unique_name("go_" + name.removeprefix("$"))
            source = f"var.{unique_name}" if name in self._assigned_names else unique_name
            self._variables[name] = _GoValue(source, value.go_type)
        variable = self._variables[name]
        self._emit(f"{{%- set {variable.source} = {value.source} %}}")
        return variable

    @contextmanager
    def _nested_scope(self) -> Iterator[None]:
        self._increase_nesting_depth()
        outer_variables = dict(self._variables)
        yield
        self._variables = outer_variables
        self._nesting_depth -= 1

    def _make_unique_name(self, name: str) -> str:
        self._used_names[name] += 1
        return name if self._used_names[name] == 1 else f"{name}_{self._used_names[name]}"

    def _emit(self, line: str) -> None:
        self.lines.append("  " * self._indent_depth + line)

    def _read_pipeline(
        self, context: str, closing_text: str = "}}"
    ) -> tuple[_GoValue, tuple[str, ...], bool]:
        """Read `$x := a | b`; return the value, the variables, and whether they are declared."""
        self._increase_nesting_depth()
        variables, is_declaration = self._read_variables(context)
        value = self._read_command(context, [])
        while self._peek().text == "|":
            self._position += 1
            value = self._read_command(context, [value])
        self._expect(closing_text, context)
        self._nesting_depth -= 1
        return value, variables, is_declaration

    def _read_variables(self, context: str) -> tuple[tuple[str, ...], bool]:
        """Read `$x :=`, `$x =` or, in a range, `$i, $x :=`, if present.

        Return the variables, and whether they are declared.
        """
        start_position = self._position
        names: list[str] = []
        while self._peek().kind == "variable":
            names.append(self._next().text)
            operator = self._next().text
            if operator in {":=", "="}:
                if operator == "=":
                    for name in names:
                        self._find_variable(name)
                return tuple(names), operator == ":="
            if operator != "," or context != "range" or len(names) > 1:
                break
        self._position = start_position
        return (), False

    def _read_command(self, context: str, piped_values: Sequence[_GoValue]) -> _GoValue:
        first_token = self._peek()
        operands: list[_GoValue] = []
        is_call = first_token.kind == "name" and first_token.text in _GO_FUNCTIONS
        self._position += is_call
        while not (self._peek().kind in {"}}", "closing", "eof"} or self._peek().text == "|"):
            operands.append(self._read_operand(context))
        if is_call:
            return self._translate_call(first_token.text, [*operands, *piped_values])
        if not operands:
            raise self._error(marked("missing value for {context}"), context=context)
        if len(operands) > 1 or piped_values:
            raise self._unsupported_error(marked("an argument of something other than a function"))
        return operands[0]

    def _read_operand(self, context: str) -> _GoValue:
        token = self._next()
        match token.kind, token.text:
            case "string", text:
                is_raw_string = text.startswith("`")
                value = text[1:-1].replace("\r", "") if is_raw_string else ast.literal_eval(text)
                return _GoValue(_quote(value), "text")
            case "number", text:
                return _GoValue(repr(self._parse_number(text)), "number")
            case "field", _:
                return self._access_fields(self._dot, token.field_names)
            case "variable", text:
                variable = self._find_variable(text.partition(".")[0])
                return self._access_fields(variable, token.field_names)
            case "name", name:
                if name not in _GO_FUNCTIONS | _LITERALS.keys():
                    raise self._error(marked('function "{name}" not defined'), name=name)
                return _LITERALS.get(name) or self._translate_call(name, [])
            case "operator", ".":
                return self._dot
            case "operator", "(":
                value, *_ = self._read_pipeline("parenthesized pipeline", ")")
                return self._access_fields(value, self._tokens[self._position - 1].field_names)
            case _:
                raise self._unexpected_error(token, context)

    def _access_fields(self, value: _GoValue, names: Sequence[str]) -> _GoValue:
        for name in names:
            value = self._access_field(value, name)
        return value

    def _access_field(self, value: _GoValue, name: str) -> _GoValue:
        match value.go_type:
            case "root":
                return self._root_fields.get(name, _MISSING_VALUE)
            case "any" | "nothing" | "object":
                return _GoValue(f"{value.source}.{name}")
            case kind if kind.startswith("map of "):
                return _GoValue(f"{value.source}[{_quote(name)}]", _element_type(kind))
            case kind if name in _FIELDS_BY_TYPE.get(kind, {}):
                value_type = _FIELDS_BY_TYPE[kind][name]
                source = f"{value.source}.{_CASE_BOUNDARY.sub('_', name).lower()}"
                default = {"list": "[]", "map": "{}"}.get(value_type.partition(" of ")[0])
                return _GoValue(f"({source} or {default})" if default else source, value_type)
            case kind:
                construct = marked("the field .{name} of a {kind}")
                raise self._unsupported_error(construct, name=name, kind=kind)

    def _translate_call(self, name: str, args: list[_GoValue]) -> _GoValue:
        sources = [value.source for value in args]
        match name, args:
            case "currentDate", []:
                return _GoValue('strftime_now("%Y-%m-%d")', "text")
            case "not", [_]:
                return _GoValue(f"(not {sources[0]})", "bool")
            case "and" | "or", [_, *_]:
                arg_types = {value.go_type for value in args}
                kind = arg_types.pop() if len(arg_types) == 1 else "any"
                return _GoValue(_join_sources(f" {name} ", sources), kind)
            case "len", [_]:
                return _GoValue(f"({sources[0]} | length)", "number")
            case "index", [container, _, *_]:
                for key in sources[1:]:
                    source = f"{container.source}[{key}]"
                    container = _GoValue(source, _element_type(container.go_type))
                return container
            case "slice", [container, *_] if len(args) <= 3:
                slice_bounds = ":".join(sources[1:]) + (":" if len(args) < 3 else "")
                return _GoValue(f"{sources[0]}[{slice_bounds}]", container.go_type)
            case _ if name in _COMPARISON_OPERATORS and len(args) >= 2:
                # Only `eq` accepts several values, one of which must match.
                comparisons = [
                    f"{sources[0]} {_COMPARISON_OPERATORS[name]} {other}" for other in sources[1:]
                ]
                return _GoValue(_join_sources(" or ", comparisons), "bool")
            case _:
                return self._translate_text_call(name, args)

    def _translate_text_call(self, name: str, args: list[_GoValue]) -> _GoValue:
        match name, args:
            case "json", [value]:
                return self._convert_to_json(value)
            case "print", [_, *_] if len(args) == 1 or {one.go_type for one in args} == {"text"}:
                return _GoValue(_join_sources(" ~ ", list(map(self._to_text_source, args))), "text")
            case "printf", [template, *arguments]:
                return self._translate_printf(template.source, arguments)
            case _:
                construct = marked("the function {name} with {count} arguments")
                raise self._unsupported_error(construct, name=name, count=len(args))

    def _translate_printf(self, template: str, args: Sequence[_GoValue]) -> _GoValue:
        if not template.startswith('"'):
            raise self._unsupported_error(marked("printf without a literal format"))
        arguments = iter(args)

        def replace_verb(verb: re.Match[str]) -> str:
            if verb[0] == "%%":
                return "%"
            if verb[0] in {"%s", "%v", "%d"} and (argument := next(arguments, None)):
                return f'" ~ {self._to_text_source(argument)} ~ "'
            raise self._unsupported_error(marked("printf with {verb}"), verb=verb[0])

        source = f"({_FORMAT_VERB.sub(replace_verb, template)})"
        if next(arguments, None):
            raise self._unsupported_error(marked("printf with more arguments than verbs"))
        return _GoValue(source, "text")

    def _to_text_source(self, value: _GoValue) -> str:
        match value.go_type:
            case "text" | "number" | "any":
                return value.source
            case "bool":
                return f'("true" if {value.source} else "false")'
            case "nothing":
                return '"<no value>"'
            case "list of text":
                return f'("[" ~ {value.source} | join(" ") ~ "]")'
            case "object":  # in OpenAI's API, a call's arguments are JSON text
                json_source = self._convert_to_json(value).source
                return f"({value.source} if {value.source} is string else {json_source})"
            case kind if kind in _TYPES_PRINTED_AS_JSON:
                return self._convert_to_json(value).source
            case kind:
                raise self._unsupported_error(marked("printing an entire {kind}"), kind=kind)

    def _convert_to_json(self, value: _GoValue) -> _GoValue:
        self.prints_json = True
        return _GoValue(f"as_json({value.source})", "text")

    def _parse_number(self, text: str) -> int | float:
        if len(text) <= _MAX_NUMBER_CHARS:
            for parse_number in (partial(int, base=0), float):
                with suppress(ValueError):
                    return parse_number(text.replace("_", ""))
        problem = marked('bad number syntax: "{token}"')
        raise self._error(problem, token=text[:_MAX_NUMBER_CHARS])

    def _find_variable(self, name: str) -> _GoValue:
        if name not in self._variables:
            raise self._error(marked('undefined variable "{variable}"'), variable=name)
        return self._variables[name]

    def _increase_nesting_depth(self) -> None:
        self._nesting_depth += 1
        if self._nesting_depth > _MAX_NESTING_DEPTH:
            raise self._error(marked("nested deeper than {limit}"), limit=_MAX_NESTING_DEPTH)

    def _expect(self, closing_text: str, context: str) -> None:
        if not self._peek().text.startswith(closing_text):
            raise self._unexpected_error(self._peek(), context)
        self._position += 1

    def _peek(self) -> _Token:
        return self._tokens[self._position]

    def _next(self) -> _Token:
        token = self._peek()
        self._position += token.kind != "eof"
        return token

    def _unexpected_error(self, token: _Token, context: str) -> TemplateError:
        problem = marked('unexpected "{token}" in {context}')
        return _error(token.line_number, problem, token=token.text, context=context)

    def _error(self, problem: str, **values: object) -> TemplateError:
        return _error(self._peek().line_number, problem, **values)

    def _unsupported_error(self, construct: str, **values: object) -> TemplateError:
        return TemplateError.translatable(
            "template: :{line}: {construct} cannot be translated to Jinja",
            line=self._peek().line_number,
            construct=translatable(construct, **values),
        )


def _error(line: int, problem: str, **values: object) -> TemplateError:
    """Return an error in Go's wording for an unnamed template."""
    text = translatable(problem, **values)
    return TemplateError.translatable("template: :{line}: {problem}", line=line, problem=text)


def _element_type(type_name: str) -> str:
    """Return the element type of a list or map type: `tool` for `list of tool`."""
    return type_name.partition(" of ")[2] or "any"


def _quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _join_sources(operator: str, sources: Sequence[str]) -> str:
    return sources[0] if len(sources) == 1 else f"({operator.join(sources)})"

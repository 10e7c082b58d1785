"""Parse and render SillyTavern's `story_string`, a Handlebars layout of the system message.

Supported are `{{field}}`, `{{#if field}}...{{else}}...{{/if}}`, `{{#unless field}}`, `{{trim}}` and
comments; every other name is a macro (macros.py). Other blocks are an error that names them. See
docs/sources.md#sillytavern.
"""

import re
from collections.abc import Callable

from bot.errors import TemplateError
from bot.prompting.macros import remove_trim_marks
from bot.value_class import value_class

_TAG = re.compile(r"\{\{(.*?)\}\}", re.DOTALL)
_OWN_NAMES = frozenset({"system", "else", ""})
_MAX_CHARS = 50_000
_MAX_DEPTH = 16
_TRIM = "\x00"  # stands for {{trim}}; texts contain no other NULs


@value_class
class FieldNode:
    name: str


@value_class
class ConditionalNode:
    """Renders `then` if the field has a text, else `otherwise`."""

    name: str
    then: tuple["Node", ...]
    otherwise: tuple["Node", ...]


Node = str | FieldNode | ConditionalNode


@value_class
class StoryString:
    """A parsed layout."""

    nodes: tuple[Node, ...]

    def render(self, value_of: Callable[[str], str]) -> str:
        """Render the layout with the value of each name; values are inserted unchanged."""
        return remove_trim_marks(_render(self.nodes, value_of), _TRIM, "\r\n").strip()


def parse_story_string(source: str) -> StoryString:
    """Parse a layout.

    Raises:
        TemplateError: names the unsupported or unclosed tag.
    """
    if len(source) > _MAX_CHARS:
        raise TemplateError.translatable(
            "a story_string has at most {limit} characters; shorten it", limit=_MAX_CHARS
        )
    parser = _StoryStringParser(_split_tags(source.replace(_TRIM, "")))
    nodes, end = parser.block(0)
    if end:
        raise TemplateError.translatable(
            "story_string: {tag} closes no block; remove it", tag=f"{{{{{end}}}}}"
        )
    return StoryString(nodes)


def story_macros(source: str) -> list[str]:
    """Return the macros of a layout; `{{system}}` is only for layouts."""
    fields = (
        field.partition(" ")[2] if field[:1] == "#" else field
        for field in _split_tags(source)[1::2]
    )
    return [f"{{{{{name}}}}}" for name in fields if name not in _OWN_NAMES and name[:1] not in "/!"]


def _split_tags(source: str) -> list[str]:
    """Return texts at even indexes and the contents of tags at odd ones."""
    tagged, end, rest = source.rpartition("}}")  # each tag that is never closed costs a search
    *tokens, last = _TAG.split(tagged + end)
    return [*tokens, last + rest]


class _StoryStringParser:
    """Parses a split source: texts at even indexes, the contents of tags at odd ones."""

    def __init__(self, tokens: list[str]) -> None:
        self._tokens = tokens
        self._index = 0

    def block(self, depth: int) -> tuple[tuple[Node, ...], str]:
        """Parse up to the end of a block or of the text; return the nodes and the closing tag."""
        if depth > _MAX_DEPTH:
            raise TemplateError.translatable(
                "story_string: blocks are nested deeper than {limit}", limit=_MAX_DEPTH
            )
        nodes: list[Node] = []
        while self._index < len(self._tokens):
            index, token = self._index, self._tokens[self._index]
            self._index += 1
            if index % 2 == 0:
                nodes += [token] if token else []
                continue
            tag = " ".join(token.split())
            if tag in {"else", "/if", "/unless"}:
                return tuple(nodes), tag
            nodes += self._tag(tag, depth)
        return tuple(nodes), ""

    def _tag(self, tag: str, depth: int) -> list[Node]:
        kind, _, name = tag.partition(" ")
        if kind in {"#if", "#unless"} and name:
            return [self._conditional(kind.removeprefix("#"), name, depth)]
        if tag.lower() == "trim":
            return [_TRIM]
        if tag.startswith(("!", "//")):
            return []
        if not tag.startswith(("#", "/", "^", ">", "else")):
            return [FieldNode(tag)]
        raise TemplateError.translatable(
            "story_string: {tag} is not supported; use #if, #unless and macros",
            tag=f"{{{{{tag[:60]}}}}}",
        )

    def _conditional(self, kind: str, name: str, depth: int) -> ConditionalNode:
        then, end = self.block(depth + 1)
        otherwise: tuple[Node, ...] = ()
        if end == "else":
            otherwise, end = self.block(depth + 1)
        if end != f"/{kind}":
            raise TemplateError.translatable(
                "story_string: {tag} is never closed", tag=f"{{{{#{kind} {name}}}}}"
            )
        return (
            ConditionalNode(name, then, otherwise)
            if kind == "if"
            else ConditionalNode(name, otherwise, then)
        )


def _render(nodes: tuple[Node, ...], value_of: Callable[[str], str]) -> str:
    texts = []
    for node in nodes:
        match node:
            case str():
                texts.append(node)
            case FieldNode(name):
                texts.append(value_of(name).replace(_TRIM, ""))
            case ConditionalNode(name, then, otherwise):
                is_given = value_of(name) not in {"", f"{{{{{name}}}}}"}  # unknown ones stay
                texts.append(_render(then if is_given else otherwise, value_of))
    return "".join(texts)

"""Parse and render SillyTavern's `story_string`, a Handlebars layout of the system message.

Supported are `{{field}}`, `{{#if field}}...{{else}}...{{/if}}`, `{{#unless field}}`, `{{trim}}` and
comments; every other name is a macro (macros.py). Other blocks are an error that names them. See
docs/sources.md#sillytavern.
"""

import re
from collections.abc import Callable, Iterator
from typing import TypeAlias

from bot.errors import TemplateError
from bot.prompting.macros import remove_trim_marks

_TAG = re.compile(r"\{\{(.*?)\}\}", re.DOTALL)
_OWN_NAMES = frozenset({"system", "else", ""})
_MAX_CHARS = 50_000
_MAX_DEPTH = 16
_TRIM = "\x00"  # stands for {{trim}}; texts contain no other NULs


Nodes: TypeAlias = "tuple[str | tuple[str] | tuple[str, Nodes, Nodes], ...]"
"""Texts, fields `(name,)`, and conditions `(name, with a text, without one)`."""


def render_story_string(nodes: Nodes, value_of: Callable[[str], str]) -> str:
    """Render a parsed layout with the value of each name; values are inserted unchanged."""
    return remove_trim_marks(_render(nodes, value_of), _TRIM, "\r\n").strip()


def parse_story_string(source: str) -> Nodes:
    """Parse a layout.

    Raises:
        TemplateError: names the unsupported or unclosed tag.
    """
    if len(source) > _MAX_CHARS:
        raise TemplateError.translatable(
            "a story_string has at most {limit} characters; shorten it", limit=_MAX_CHARS
        )
    nodes, end = _read_block(enumerate(_split_tags(source.replace(_TRIM, ""))))
    if end:
        raise TemplateError.translatable(
            "story_string: {tag} closes no block; remove it", tag=f"{{{{{end}}}}}"
        )
    return nodes


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


def _read_block(tokens: Iterator[tuple[int, str]], depth: int = 0) -> tuple[Nodes, str]:
    """Parse up to the end of a block or of the layout; return the nodes and the closing tag."""
    if depth > _MAX_DEPTH:
        raise TemplateError.translatable(
            "story_string: blocks are nested deeper than {limit}", limit=_MAX_DEPTH
        )
    nodes: list[str | tuple[str] | tuple[str, Nodes, Nodes]] = []
    for index, token in tokens:
        tag = " ".join(token.split())
        kind, _, name = tag.partition(" ")
        if index % 2 == 0:
            nodes.append(token)
        elif tag in {"else", "/if", "/unless"}:
            return tuple(nodes), tag
        elif kind in {"#if", "#unless"} and name:
            nodes.append(_read_condition(tokens, kind.removeprefix("#"), name, depth))
        elif tag.lower() == "trim":
            nodes.append(_TRIM)
        elif not tag.startswith(("!", "//")):
            if tag.startswith(("#", "/", "^", ">", "else")):
                raise TemplateError.translatable(
                    "story_string: {tag} is not supported; use #if, #unless and macros",
                    tag=f"{{{{{tag[:60]}}}}}",
                )
            nodes.append((tag,))
    return tuple(nodes), ""


def _read_condition(
    tokens: Iterator[tuple[int, str]], kind: str, name: str, depth: int
) -> tuple[str, Nodes, Nodes]:
    then, end = _read_block(tokens, depth + 1)
    otherwise: Nodes = ()
    if end == "else":
        otherwise, end = _read_block(tokens, depth + 1)
    if end != f"/{kind}":
        raise TemplateError.translatable(
            "story_string: {tag} is never closed", tag=f"{{{{#{kind} {name}}}}}"
        )
    return (name, then, otherwise) if kind == "if" else (name, otherwise, then)


def _render(nodes: Nodes, value_of: Callable[[str], str]) -> str:
    texts = []
    for node in nodes:
        match node:
            case str():
                texts.append(node)
            case (name,):
                texts.append(value_of(name).replace(_TRIM, ""))
            case (name, then, otherwise):
                is_given = value_of(name) not in {"", f"{{{{{name}}}}}"}  # unknown ones stay
                texts.append(_render(then if is_given else otherwise, value_of))
    return "".join(texts)

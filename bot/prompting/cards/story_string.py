"""SillyTavern's `story_string`: a handlebars text that lays out a system message, read as data.

Only what such files need is known: `{{field}}`, `{{#if field}}...{{else}}...{{/if}}`,
`{{#unless field}}`, `{{trim}}` and comments. Nothing is evaluated; anything else is an error that
names it.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from bot.errors import TemplateError
from bot.prompting.cards.macros import without_trims

FIELDS = frozenset({
    "system", "description", "personality", "scenario", "persona", "wiBefore", "wiAfter",
    "loreBefore", "loreAfter", "anchorBefore", "anchorAfter", "mesExamples", "mesExamplesRaw",
    "char", "user",
})  # fmt: skip

_TAG = re.compile(r"\{\{(.*?)\}\}", re.DOTALL)
_MAX_CHARS = 50_000
_MAX_DEPTH = 16
_TRIM = "\x00"  # stands for {{trim}} in a text that has no NULs otherwise


@dataclass(frozen=True, slots=True)
class Field:
    name: str


@dataclass(frozen=True, slots=True)
class Conditional:
    """`then` where the field has a text, else `otherwise`."""

    name: str
    then: tuple["Node", ...]
    otherwise: tuple["Node", ...]


Node = str | Field | Conditional


@dataclass(frozen=True, slots=True)
class StoryString:
    """A layout that was read; `compose` writes it."""

    nodes: tuple[Node, ...]

    def compose(self, values: Mapping[str, str]) -> str:
        """Write it with these texts, which go in as they are; a missing one is empty."""
        return without_trims(_text(self.nodes, values), _TRIM, "\r\n").strip()


def parse_story_string(source: str) -> StoryString:
    """Raise TemplateError, which names what cannot be said."""
    if len(source) > _MAX_CHARS:
        raise TemplateError(f"a story_string has at most {_MAX_CHARS} characters; shorten it")
    parser = _Parser(_TAG.split(source.replace(_TRIM, "")))
    nodes, end = parser.block(0)
    if end:
        raise TemplateError(f"story_string: {{{{{end}}}}} closes nothing; take it out")
    return StoryString(nodes)


class _Parser:
    """Walks the pieces: texts at even places, insides of tags at odd ones."""

    def __init__(self, pieces: list[str]) -> None:
        self._pieces = pieces
        self._place = 0

    def block(self, depth: int) -> tuple[tuple[Node, ...], str]:
        """Read up to the tag that ends a block, which is given, or to the end of the text."""
        if depth > _MAX_DEPTH:
            raise TemplateError(f"story_string: blocks are nested deeper than {_MAX_DEPTH}")
        nodes: list[Node] = []
        while self._place < len(self._pieces):
            place, piece = self._place, self._pieces[self._place]
            self._place += 1
            if place % 2 == 0:
                nodes += [piece] if piece else []
                continue
            tag = " ".join(piece.split())
            if tag in {"else", "/if", "/unless"}:
                return tuple(nodes), tag
            nodes += self._tag(tag, depth)
        return tuple(nodes), ""

    def _tag(self, tag: str, depth: int) -> list[Node]:
        kind, _, name = tag.partition(" ")
        if kind in {"#if", "#unless"} and name in FIELDS:
            return [self._choice(kind.removeprefix("#"), name, depth)]
        if tag in FIELDS:
            return [Field(tag)]
        if tag.lower() == "trim":
            return [_TRIM]
        if tag.startswith(("!", "//")):
            return []
        raise TemplateError(
            f"story_string: {{{{{tag[:60]}}}}} cannot be translated; known are #if, #unless, trim"
            f" and the fields {', '.join(sorted(FIELDS))}"
        )

    def _choice(self, kind: str, name: str, depth: int) -> Conditional:
        then, end = self.block(depth + 1)
        otherwise: tuple[Node, ...] = ()
        if end == "else":
            otherwise, end = self.block(depth + 1)
        if end != f"/{kind}":
            raise TemplateError(f"story_string: {{{{#{kind} {name}}}}} is never closed")
        return (
            Conditional(name, then, otherwise)
            if kind == "if"
            else Conditional(name, otherwise, then)
        )


def _text(nodes: tuple[Node, ...], values: Mapping[str, str]) -> str:
    pieces = []
    for node in nodes:
        match node:
            case str():
                pieces.append(node)
            case Field(name):
                pieces.append(values.get(name, "").replace(_TRIM, ""))
            case Conditional(name, then, otherwise):
                pieces.append(_text(then if values.get(name) else otherwise, values))
    return "".join(pieces)

"""The reasoning tags of model families (reasoning_families.toml)."""

import tomllib
from collections.abc import Iterable, Sequence
from enum import Enum
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple

import regex

from bot.value_class import value_class


@value_class
class _Family:
    """One row of the table of families."""

    start: str
    end: str
    tokens: Sequence[str] = ()
    identified_by: Sequence[str] = ()
    is_wording: bool = False
    is_markup: bool = False


_CATALOG = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
CALLEE: Final[str] = _CATALOG["parts"]["CALLEE"]
"""In a tag of gpt-oss: a tool call follows."""
FIRST_CHARS: Final = frozenset("<[◁")
_FAMILIES = [_Family(**one) for one in _CATALOG["family"]]


class TagKind(Enum):
    START = "start"
    LONE_END = "lone end"
    MARKER = "marker"
    TURN_END = "turn end"
    WRAPPER = "wrapper"
    """Opens the answer; it counts only right after reasoning."""
    INCOMPLETE = "incomplete"


class Tag(NamedTuple):
    kind: TagKind
    text: str
    closing: "regex.Pattern[str] | None" = None
    is_wording: bool = False
    is_markup: bool = False


INCOMPLETE: Final = Tag(TagKind.INCOMPLETE, "")


def _compile(pattern: str) -> "regex.Pattern[str]":
    for name, part in reversed(_CATALOG["parts"].items()):
        pattern = pattern.replace(f"%{name}%", part)
    return regex.compile(pattern, regex.IGNORECASE)


def _compile_tag(kind: TagKind) -> "regex.Pattern[str]":
    one = "|".join(_CATALOG["tags"][kind.value])
    return _compile(rf"(?:(?:{one})\s*)+" if kind is TagKind.TURN_END else one)


_TAGS = (
    *((_compile(family.start), TagKind.START, family) for family in _FAMILIES),
    *(
        (_compile_tag(kind), kind, None)
        for kind in (TagKind.LONE_END, TagKind.MARKER, TagKind.TURN_END, TagKind.WRAPPER)
    ),
)
_HEAD_CHARS = 3
_IN_TEMPLATES = regex.compile(r"<[^<>\s]{1,40}>|\[/?[A-Z]+\]|◁/?think▷")


def tag_at(text: str, at: int, *, may_continue: bool = False) -> Tag | None:
    """Return the longest tag at a position, or a partial one if the text may continue."""
    found: Tag | None = None
    for pattern, kind, family in _possible(text[at : at + _HEAD_CHARS]):
        match = pattern.match(text, at, partial=may_continue)
        if match is None:
            continue
        if match.partial:
            return INCOMPLETE
        if found is None or len(match[0]) > len(found.text):
            end = family.end if family else "</{name}>" if kind is TagKind.WRAPPER else ""
            groups = tuple(sorted(match.groupdict().items()))
            closing = _closing(end, groups) if end else None
            is_wording = family is not None and family.is_wording
            is_markup = family is not None and family.is_markup
            found = Tag(kind, match[0], closing, is_wording, is_markup)
    return found


@lru_cache(4096)
def _possible(head: str) -> "Sequence[tuple[regex.Pattern[str], TagKind, _Family | None]]":
    return [each for each in _TAGS if each[0].match(head, partial=True)]


@lru_cache(256)
def _closing(end: str, groups: tuple[tuple[str, str], ...]) -> "regex.Pattern[str]":
    return _compile(end.format(**{name: regex.escape(text) for name, text in groups}))


def control_tokens(template: str, vocabulary: Iterable[str]) -> tuple[tuple[str, ...], set[str]]:
    """Return a model's reasoning tags among its tokens, and those that end reasoning."""
    words = [*_IN_TEMPLATES.findall(template), *vocabulary]
    known = " ".join([template, *words])
    tokens: dict[str, None] = {}
    ends: set[str] = set()
    for word in words:
        tag = tag_at(word, 0)
        if tag and tag.text == word and tag.kind in {TagKind.START, TagKind.LONE_END}:
            tokens[word] = None
            ends |= {word} if tag.kind is TagKind.LONE_END else set()
    for family in _FAMILIES:
        if family.tokens and all(one in known for one in family.identified_by or family.tokens):
            tokens |= dict.fromkeys(family.tokens)
            ends.add(family.tokens[-1])
    return tuple(tokens), ends

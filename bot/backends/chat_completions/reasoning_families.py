"""How model families tag their reasoning: one table, which unknown models are read by as well.

Sources: the families' chat templates and model cards, and the reasoning parsers of llama.cpp, vLLM,
SGLang and Open WebUI.
"""

from collections.abc import Iterable, Sequence
from enum import Enum
from functools import lru_cache
from typing import Final, NamedTuple

import regex

from bot.value_class import value_class

_WORD = (
    r"(?:think(?:ing)?|thoughts?|reason(?:ing)?|reflections?|scratchpad"
    r"|(?:inner|internal)[_-]monologue)"
)
_NAME = rf"(?:\w[\w.|-]{{0,24}}[_:|-])?{_WORD}(?:[:_-][\w.:-]{{0,24}})?"
CALLEE: Final = "to=functions."
"""In a tag of gpt-oss: a tool call follows."""
_ASSISTANT = r"(?:<\|start\|>\s?assistant)?"


@value_class
class _Family:
    """The reasoning tags of one family or more, as patterns; case does not matter."""

    start: str
    end: str
    """May name groups of `start` in braces."""
    tokens: tuple[str, ...] = ()
    """Control tokens that the tags consist of, the one that ends reasoning last."""
    identified_by: tuple[str, ...] = ()
    """The tokens that no other family has together; by default all."""
    is_wording: bool = False
    """Ordinary answers may begin so: it is reasoning only if the end follows."""
    is_markup: bool = False
    """People write about it: within a line it is reasoning only if the end follows."""


def _literal(start: str, end: str, *tokens: str) -> _Family:
    return _Family(regex.escape(start), regex.escape(end), tokens or (start, end))


_FAMILIES = (
    # <think>: DeepSeek, Qwen, GLM, Kimi K2, MiniMax, Nemotron, Phi, SmolLM. <thought>: EXAONE Deep,
    # Marco-o1. <seed:think>, <mm:think>, <longcat_think>, <ifm|think_fast>, <think:…> of Hunyuan.
    _Family(rf"<(?P<name>{_NAME})(?:\s[^<>]{{0,200}})?>", "</{name}>", is_markup=True),
    _Family(r'<details type="reasoning"[^<>]{0,200}>', "</details>", is_markup=True),  # Open WebUI
    # <|begin_of_thought|>: OpenThoughts. <|START_THINKING|>: Command. <|thought_start|>: MiniCPM.
    # <|think:start|>: Solar Open 2. <|plamo:begin_think:plamo|>.
    _Family(
        rf"<\|(?=[\w:]*{_WORD})(?P<before>[\w:]*?)(?:begin|start)(?P<after>[\w:]*)\|>",
        r"<\|{before}end{after}\|>",
    ),
    _literal("[THINK]", "[/THINK]"),  # Magistral
    _literal("◁think▷", "◁/think▷"),  # Kimi-VL
    _literal("[unused16]", "[unused17]"),  # Pangu
    _Family(  # Gemma 4
        r"<\|channel>(?:thought|analysis|commentary)",
        r"<channel\|>",
        ("<|channel>", "<channel|>"),
    ),
    _literal("<|inner_prefix|>", "<|inner_suffix|>"),  # Apertus
    _literal(  # Kimi K3
        *("<|open|>think<|sep|>", "<|close|>think<|sep|>", "<|open|>", "<|close|>", "<|sep|>")
    ),
    _literal("<|content_thinking|>", "<|end_message|>"),  # Inkling
    _Family(  # Solar Open
        rf"<\|(?P<name>{_WORD})\|>",
        r"<\|(?:/|end_|end_of_){name}\|>|<\|end\|>",
        ("<|begin|>", "<|content|>", "<|think|>", "<|end|>"),
        ("<|think|>", "<|content|>"),
    ),
    _Family(  # gpt-oss; to=self: Muse
        rf"{_ASSISTANT}(?:(?:\s?{CALLEE}[^<>]{{0,80}})?<\|channel\|>"
        r"(?:analysis|commentary)[^<>]{0,100}"
        r"(?:<\|constrain\|>[^<>]{0,100})?|\s?to=self)<\|message\|>",
        r"<\|(?:end|call|eom)\|>|(?=<\|start\|>)|(?=<\|channel\|>)",
        ("<|start|>", "<|channel|>", "<|message|>", "<|end|>"),
        ("<|channel|>", "<|message|>"),
    ),
    # gpt-oss by a server that removes control tokens
    _Family(
        r"(?-i:(?:assistant)?analysis(?=[\p{L}\"“']))", "(?-i:assistantfinal)", is_wording=True
    ),
    _Family(  # Granite
        r"Here(?:'s| is) my thought process:", r"Here(?:'s| is) my response:", is_wording=True
    ),
    _Family(  # Apriel
        "Here are my reasoning steps:", r"\[BEGIN FINAL RESPONSE\]", is_wording=True
    ),
)
# End tags of reasoning whose start tag stands in the prompt, or was removed.
_LONE_END = (
    rf"</{_NAME}>|<\|(?=[\w:]*{_WORD})[\w:]*?end[\w:]*\|>|\[/THINK\]|◁/think▷|\[unused17\]"
    r"|<channel\|>|<\|inner_suffix\|>|<\|close\|>think<\|sep\|>|<\|open\|>response<\|sep\|>"
    r"|<\|START_(?:RESPONSE|TEXT)\|>|<\|content_text\|>|\[BEGIN FINAL RESPONSE\]"
    rf"|(?:<\|(?:end|eom)\|>)?{_ASSISTANT}(?:<\|channel\|>final[^<>]{{0,100}}|\s?to=user)"
    r"<\|message\|>"
)
# Around an answer, and no part of it.
_MARKER = (
    r"<\|(?:begin|end)_of_(?:box|solution)\|>|<\|END_(?:RESPONSE|TEXT)\|>"
    r"|\[END FINAL RESPONSE\]|<\|close\|>(?:response|message)<\|sep\|>"
    r"|<\|(?:start|begin)\|>\s?assistant"
    r"|<\|(?:return|end|eom|content|message_model|end_message|content_model_end_sampling)\|>"
)
# End-of-turn tokens that misconfigured servers leave in the text.
_TURN_END = (
    r"(?:(?:<\|(?:im_end|eot_id|eot|end_of_text|endoftext|end_of_turn_token)\|>"
    r"|<end_of_turn>|<turn\|>|</s>|<｜end▁of▁sentence｜>|\[e~\[)\s*)+"
)
_WRAPPER = r"<(?P<name>answer|output|response|solution|conclusion|final(?:[_-]answer)?)>"
FIRST_CHARS: Final = frozenset("<[◁")


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
    return regex.compile(pattern, regex.IGNORECASE)


_TAGS = (
    *((_compile(family.start), TagKind.START, family) for family in _FAMILIES),
    (_compile(_LONE_END), TagKind.LONE_END, None),
    (_compile(_MARKER), TagKind.MARKER, None),
    (_compile(_TURN_END), TagKind.TURN_END, None),
    (_compile(_WRAPPER), TagKind.WRAPPER, None),
)
_HEAD_CHARS = 3
_IN_TEMPLATES = regex.compile(r"<[^<>\s]{1,40}>|\[/?[A-Z]+\]|◁/?think▷")


def tag_at(text: str, at: int, *, may_continue: bool = False) -> Tag | None:
    """Return the longest tag at a place, or an incomplete one where the text may continue."""
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
    """Return the tokens of a model's tags, and those among them that end reasoning."""
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

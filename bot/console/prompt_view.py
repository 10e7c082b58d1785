"""Split prompts into pieces for display.

Pieces are speaker names, control tokens, text that people typed to imitate either, and other text.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import TypeAlias

from bot.chat.prompt import Message, Prompt, PromptDescription, PromptToken
from bot.chat.receipt import PromptSpan, Receipt
from bot.prompting.fit import locate_spans, prompt_tokens, tokens_by_section, tokens_by_span
from bot.value_class import value_class

_CONTROL_TOKEN_PATTERN = re.compile(
    r"<\|[^|<>\n]{1,40}\|>|\[/?INST\]|<</?SYS>>|</?s>|<(?:start|end)_of_turn>|<｜[^｜\n]{1,40}｜>"
)
_ROLE_PATTERN = r"\[?(?:system|user|assistant)\]?"
_SPEAKER_SECTIONS = ("newest", "observed", "history")
_QUOTE_PREFIX = "> "
"""The prefix of each observed line, and of typed text that looks like a speaker's name."""
PieceMark: TypeAlias = tuple[tuple[int, int], "PieceKind"]
"""The begin and end of a piece in a text, and its kind."""


class PieceKind(StrEnum):
    """The kind of a prompt piece; the values are CSS classes."""

    TEXT = ""
    CONTROL = "control"
    SPEAKER = "speaker"
    """The name of a speaker, which Troupe added before the line."""
    LOOK_ALIKE = "look-alike"
    """Typed by a person; looks like a control token or a speaker, but is plain text."""
    KEY = "key"
    """A key of a lorebook entry, in the text that the lorebook is tested with."""


@value_class
class PromptPiece:
    text: str
    kind: PieceKind = PieceKind.TEXT
    token_id: int | None = None


@value_class
class PromptSection:
    section: str
    name: str
    score: float | None
    tokens: int
    cached_tokens: int
    """How many of `tokens` were cached, so that the model did not read them again."""
    messages: Sequence[tuple[str, Sequence[PromptPiece]]]
    """The role and text of each message, or part of a message, in the section."""


def split_into_sections(receipt: Receipt) -> list[PromptSection]:
    """Return a prompt's sections in order, each with its number of tokens."""
    sections, cached_tokens_left = [], receipt.usage.cached_tokens  # the prompt's first tokens
    for (span, tokens), each in zip(tokens_by_span(receipt), _split_spans(receipt), strict=True):
        messages = [(role, pieces) for _, role, pieces in each]
        cached_tokens = min(tokens, cached_tokens_left)
        cached_tokens_left -= cached_tokens
        name, score = span.name, span.score
        sections.append(PromptSection(span.section, name, score, tokens, cached_tokens, messages))
    return sections


def _split_spans(receipt: Receipt) -> list[list[tuple[int, str, list[PromptPiece]]]]:
    """Return each section's messages (index, role, pieces); sections may share a message."""
    finder = LookAlikeFinder(receipt.prompt)
    messages = receipt.prompt.messages
    return [list(_split_span(messages, *location, finder)) for location in locate_spans(receipt)]


def _split_span(
    messages: Sequence[Message],
    span: PromptSpan,
    begin: int,
    end: int | None,
    finder: "LookAlikeFinder",
) -> Iterator[tuple[int, str, list[PromptPiece]]]:
    is_whole_message = not begin and end is None
    has_speaker = is_whole_message or span.section in _SPEAKER_SECTIONS
    for at, one in enumerate(messages[span.message : span.message + span.messages], span.message):
        text, speaker = one.content[begin:end], one.name if has_speaker else None
        is_observed = span.section == "observed"
        yield at, one.role, finder.split_message(text, speaker, is_observed=is_observed)


def extract_question(receipt: Receipt) -> str:
    """Return the text of the question, without the parts that the prompt added around it."""
    question = ""
    for span, begin, end in locate_spans(receipt):
        if span.section == "newest":
            message = receipt.prompt.messages[span.message]
            name_prefix = f"{message.name}:" if receipt.prompt.template.names is None else ""
            question = message.content[begin:end].removeprefix(name_prefix)
    return question


def join_messages(prompt: Prompt) -> str:
    return "\n\n".join(f"[{one.role}]\n{one.content}" for one in prompt.messages)


class LookAlikeFinder:
    """Finds speaker names and control tokens in messages, and whether a person typed them."""

    def __init__(self, prompt: Prompt) -> None:
        speaker_names = {*prompt.speakers, *([prompt.answers_as] if prompt.answers_as else [])}
        names = [re.escape(tag) for tag in sorted(speaker_names, key=len, reverse=True)]
        self._speaker_pattern = re.compile(
            rf"^((?:{_QUOTE_PREFIX})*)((?:{'|'.join([*names, _ROLE_PATTERN])})[ \t]*[:：])",
            re.MULTILINE | re.IGNORECASE,
        )
        # Otherwise the template writes speaker names, so any name in a message was typed.
        self._adds_speaker_names = prompt.template.names is None

    def split_message(
        self, text: str, speaker: str | None = None, *, is_observed: bool = False
    ) -> list[PromptPiece]:
        """Split the text of a message, or a part of it, into pieces.

        `speaker` is the author's name if Troupe added it before the text. With `is_observed`, the
        text quotes several messages, each with the name of its speaker.
        """
        marks = _find_control_marks(text, 0, len(text), PieceKind.LOOK_ALIKE)
        has_added_name = self._adds_speaker_names and speaker is not None
        for match in self._speaker_pattern.finditer(text):
            prefix, tag = match.groups()
            is_at_start = match.start() == 0 and tag == f"{speaker}:"
            is_added = has_added_name and (prefix == _QUOTE_PREFIX if is_observed else is_at_start)
            marks.append((match.span(2), PieceKind.SPEAKER if is_added else PieceKind.LOOK_ALIKE))
        return list(cut_at_marks(text, sorted(marks)))


def cut_at_marks(text: str, marks: Sequence[PieceMark]) -> Iterator[PromptPiece]:
    at = 0
    for (begin, end), kind in marks:
        if begin < at:
            continue  # inside the previous mark
        if begin > at:
            yield PromptPiece(text[at:begin])
        yield PromptPiece(text[begin:end], kind)
        at = end
    if at < len(text):
        yield PromptPiece(text[at:])


def split_tokens(tokens: Sequence[PromptToken], receipt: Receipt) -> list[PromptPiece]:
    marks = _find_marks("".join(one.text for one in tokens), receipt, is_rendered=True)
    kind_at = {at: kind for (begin, end), kind in marks for at in range(begin, end)}
    pieces, begin = [], 0
    for token in tokens:
        end = begin + len(token.text)
        span_kind = next((kind_at[at] for at in range(begin, end) if at in kind_at), PieceKind.TEXT)
        pieces.append(PromptPiece(token.text, _choose_piece_kind(token, span_kind), token.id))
        begin = end
    return pieces


def _choose_piece_kind(token: PromptToken, kind: PieceKind) -> PieceKind:
    if token.control:
        return PieceKind.CONTROL
    if not token.trusted and _CONTROL_TOKEN_PATTERN.fullmatch(token.text):
        return PieceKind.LOOK_ALIKE
    return PieceKind.TEXT if kind is PieceKind.CONTROL else kind


def split_description(description: PromptDescription, receipt: Receipt) -> list[PromptPiece]:
    """Split the exact text that was sent to a model into pieces.

    The template's control tokens get the kind CONTROL, and those typed in messages LOOK_ALIKE. If
    the model got a JSON request instead of a rendered prompt, all control tokens are look-alikes.
    """
    marks = _find_marks(description.text, receipt, is_rendered=description.is_rendered)
    return list(cut_at_marks(description.text, marks))


def _find_marks(text: str, receipt: Receipt, *, is_rendered: bool) -> list[PieceMark]:
    control_kind = PieceKind.CONTROL if is_rendered else PieceKind.LOOK_ALIKE
    marks: list[PieceMark] = []
    at = 0
    for pieces in _split_messages(receipt):
        shown_pieces = [one if is_rendered else _escape_for_json(one) for one in pieces]
        content = "".join(one.text for one in shown_pieces)
        begin = text.find(content.strip(), at) if content.strip() else -1
        if begin < 0:
            continue
        marks += _find_control_marks(text, at, begin, control_kind)
        position = begin - (len(content) - len(content.lstrip()))
        for one in shown_pieces:
            position += len(one.text)
            if one.kind:
                marks.append(((position - len(one.text), position), one.kind))
        at = begin + len(content.strip())
    return [*marks, *_find_control_marks(text, at, len(text), control_kind)]


def _split_messages(receipt: Receipt) -> list[list[PromptPiece]]:
    messages = receipt.prompt.messages
    pieces_by_message: list[list[PromptPiece]] = [[] for _ in messages]
    for section in _split_spans(receipt):
        for at, _, pieces in section:
            pieces_by_message[at] += pieces
    finder = LookAlikeFinder(receipt.prompt)
    return [
        pieces or finder.split_message(message.content)
        for pieces, message in zip(pieces_by_message, messages, strict=True)
    ]


def _escape_for_json(piece: PromptPiece) -> PromptPiece:
    return PromptPiece(json.dumps(piece.text, ensure_ascii=False)[1:-1], piece.kind)


def _find_control_marks(text: str, begin: int, end: int, kind: PieceKind) -> list[PieceMark]:
    return [(match.span(), kind) for match in _CONTROL_TOKEN_PATTERN.finditer(text, begin, end)]


@value_class
class BudgetSegment:
    section: str
    """A section of the prompt, or "free" for the unused part of the budget."""
    tokens: int
    prompt_share: float
    """The section's share of the prompt, from 0 to 1; 0 for the free part."""
    begin: int
    """How many tokens of the prompt precede the section."""


def make_budget_segments(receipt: Receipt) -> list[BudgetSegment]:
    """Return the sections of a prompt as segments of its token budget, then the unused part."""
    total_tokens, begin = prompt_tokens(receipt), 0
    segments: list[BudgetSegment] = []
    for section, tokens in tokens_by_section(receipt).items():
        segments.append(BudgetSegment(section, tokens, tokens / max(1, total_tokens), begin))
        begin += tokens
    if receipt.limit and receipt.limit > total_tokens:
        segments.append(BudgetSegment("free", receipt.limit - total_tokens, 0, begin))
    return segments


def view_prompt(receipt: Receipt) -> Mapping[str, object]:
    return {
        "receipt": receipt,
        "tokens": prompt_tokens(receipt),
        "segments": make_budget_segments(receipt),
        "sections": split_into_sections(receipt),
    }

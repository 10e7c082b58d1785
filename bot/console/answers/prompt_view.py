"""Divide a prompt into pieces that are shown differently: control tokens, speakers, look-alikes."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from bot.chat.prompt import Message, Prompt, PromptDescription, PromptToken
from bot.chat.receipt import PromptSpan, Receipt
from bot.prompting.draft.token_shares import tokens_by_span

_CONTROL_LOOK_ALIKE = re.compile(
    r"<\|[^|<>\n]{1,40}\|>|\[/?INST\]|<</?SYS>>|</?s>|<(?:start|end)_of_turn>|<｜[^｜\n]{1,40}｜>"
)


class PieceKind(StrEnum):
    """What a piece of a prompt is; the values are classes of the style sheet."""

    TEXT = ""
    CONTROL = "control"
    """A control token of the template."""
    SPEAKER = "speaker"
    """The name of a speaker, as it was added before the line."""
    LOOK_ALIKE = "look-alike"
    """Typed by a person: it looks like a control token or a speaker, and is read as plain text."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of a prompt."""

    text: str
    kind: PieceKind = PieceKind.TEXT
    token_id: int | None = None


@dataclass(frozen=True, slots=True)
class PromptSection:
    """A section of a prompt with its text."""

    section: str
    name: str
    score: float | None
    tokens: int
    messages: Sequence[tuple[str, Sequence[Piece]]]
    """The role and the text of each message, or of the part of one."""


def prompt_sections(receipt: Receipt) -> list[PromptSection]:
    """Return the sections in the order of the prompt; their tokens add up to the prompt's."""
    read: dict[int, int] = {}  # by message: characters that belong to earlier sections
    marker = LookAlikes(receipt.prompt)
    return [
        PromptSection(
            span.section,
            span.name,
            span.score,
            tokens,
            list(_span_messages(receipt.prompt.messages, span, read, marker)),
        )
        for span, tokens in tokens_by_span(receipt)
    ]


def _span_messages(
    messages: Sequence[Message], span: PromptSpan, read: dict[int, int], marker: "LookAlikes"
) -> Iterator[tuple[str, Sequence[Piece]]]:
    begin = read.get(span.message, 0)
    if span.chars is None and not begin:
        for message in messages[span.message : span.message + span.messages]:
            yield message.role, marker.pieces(message.content)
        return
    message = messages[span.message]
    end = len(message.content) if span.chars is None else begin + span.chars
    read[span.message] = end
    yield message.role, marker.pieces(message.content[begin:end], begins_message=begin == 0)


def instructions_of(prompt: Prompt) -> str:
    """Return the system message that a prompt begins with; empty if it has none."""
    first = prompt.messages[:1]
    return first[0].content if first and first[0].role == "system" else ""


def joined_messages(prompt: Prompt) -> str:
    """Return the messages of a prompt as one text, to compare it with another one."""
    return "\n\n".join(f"[{one.role}]\n{one.content}" for one in prompt.messages)


class LookAlikes:
    """Finds in messages what was added by us, and what people typed that looks like it."""

    def __init__(self, prompt: Prompt) -> None:
        tags = {*prompt.speakers, *([prompt.answers_as] if prompt.answers_as else [])}
        names = "|".join(re.escape(tag) for tag in sorted(tags, key=len, reverse=True))
        self._speaker = re.compile(rf"^(?:{names}):", re.MULTILINE) if names else None

    def pieces(self, text: str, *, begins_message: bool = True) -> list[Piece]:
        """Divide the text of one message; only a name at its very beginning was added by us."""
        marks = [
            (match.span(), PieceKind.LOOK_ALIKE) for match in _CONTROL_LOOK_ALIKE.finditer(text)
        ]
        if self._speaker is not None:
            for match in self._speaker.finditer(text):
                ours = begins_message and match.start() == 0
                kind = PieceKind.SPEAKER if ours else PieceKind.LOOK_ALIKE
                marks.append((match.span(), kind))
        return list(_cut(text, sorted(marks)))


def _cut(text: str, marks: Sequence[tuple[tuple[int, int], PieceKind]]) -> Iterator[Piece]:
    at = 0
    for (begin, end), kind in marks:
        if begin < at:
            continue  # inside the mark before
        if begin > at:
            yield Piece(text[at:begin])
        yield Piece(text[begin:end], kind)
        at = end
    if at < len(text):
        yield Piece(text[at:])


def token_pieces(tokens: Sequence[PromptToken]) -> list[Piece]:
    """Return a piece for each token of the model's own tokenizer."""
    return [Piece(token.text, _token_kind(token), token.id) for token in tokens]


def _token_kind(token: PromptToken) -> PieceKind:
    if token.control:
        return PieceKind.CONTROL
    is_alike = not token.trusted and _CONTROL_LOOK_ALIKE.fullmatch(token.text)
    return PieceKind.LOOK_ALIKE if is_alike else PieceKind.TEXT


def described_pieces(description: PromptDescription, receipt: Receipt) -> list[Piece]:
    """Divide what a model was sent: what stands in no message was written by the template.

    The messages are looked for in their order; a control token inside of one is a look-alike, and
    in the body of a request there is no other.
    """
    text = description.text
    if not description.is_rendered:
        return list(_cut(text, _control_marks(text, 0, len(text), PieceKind.LOOK_ALIKE)))
    marks: list[tuple[tuple[int, int], PieceKind]] = []
    at = 0
    for message in receipt.prompt.messages:
        content = message.content.strip()
        begin = text.find(content, at) if content else -1
        if begin < 0:
            continue
        marks += _control_marks(text, at, begin, PieceKind.CONTROL)
        marks += _control_marks(text, begin, begin + len(content), PieceKind.LOOK_ALIKE)
        at = begin + len(content)
    marks += _control_marks(text, at, len(text), PieceKind.CONTROL)
    return list(_cut(text, marks))


def _control_marks(
    text: str, begin: int, end: int, kind: PieceKind
) -> list[tuple[tuple[int, int], PieceKind]]:
    return [(match.span(), kind) for match in _CONTROL_LOOK_ALIKE.finditer(text, begin, end)]

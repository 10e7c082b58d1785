"""A prompt in the making: its parts in the order in which a model reads them, each with a name.

What must be in it is told apart from what may be left out when the context is small (budget.py).
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from bot.chat.prompt import Message, Prompt
from bot.chat.receipt import Span
from bot.prompting.persona import Story

_BETWEEN = "\n\n"  # the parts of one message


@dataclass(frozen=True, slots=True)
class Part:
    """A text in the system message or beside the newest one: a story, an entry of a lorebook."""

    section: str  # what a receipt counts it under: "system", "lore", "stories", "quote", ...
    text: str
    name: str = ""  # which story, which entry
    score: float | None = None  # how well it was found to fit
    priority: int = 0  # what has less is left out first; among equals what stands later
    needed: bool = False  # without it there is no prompt


@dataclass(frozen=True, slots=True)
class Unit:
    """What is kept or left out together: a question with its answers."""

    messages: tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class Draft:
    """The sections of a prompt, stable ones first, so that a backend keeps their prefix warm."""

    frame: Prompt  # everything but its messages
    system: tuple[Part, ...]  # instructions, persona, standing lore
    pinned: tuple[Message, ...]  # turns that every conversation begins with
    summary: Part | None  # of what is too old for the history
    history: tuple[Unit, ...]  # oldest first
    context: tuple[Part, ...]  # what changes with every message; stands with the newest one
    newest: Message
    stories: tuple[Story, ...] = ()  # those that stand in the system text, with their scores

    @property
    def prompt(self) -> Prompt:
        """The prompt of all that is in this draft."""
        fixed = [*_system_message(self.system), *self.pinned]
        if self.summary:
            fixed.append(Message("system", self.summary.text))
        return replace(self.frame, messages=(*fixed, *self._said(), _beside(self)))

    @property
    def layout(self) -> tuple[Span, ...]:
        """Where each section stands in the prompt."""
        spans = [*_stretches(self.system, 0)]
        at = 1 if spans else 0
        earlier = sum(len(unit.messages) for unit in self.history)
        summaries = 1 if self.summary else 0
        for section, messages in (
            ("pinned", len(self.pinned)),
            ("summary", summaries),
            ("history", earlier),
        ):
            if messages:
                spans.append(Span(section, at, messages))
                at += messages
        return (*spans, *_stretches(self.context, at), Span("newest", at))

    def _said(self) -> Iterator[Message]:
        return (message for unit in self.history for message in unit.messages)


def units(messages: Iterable[Message]) -> tuple[Unit, ...]:
    """Group a history: each question begins a unit, and the answers to it belong there, too."""
    groups: list[list[Message]] = []
    for message in messages:
        if message.role == "assistant" and groups:
            groups[-1].append(message)
        else:
            groups.append([message])
    return tuple(Unit(tuple(group)) for group in groups)


def _stretches(parts: Iterable[Part], message: int) -> list[Span]:
    return [
        Span(part.section, message, 1, len(part.text) + len(_BETWEEN), part.name, part.score)
        for part in parts
    ]


def _system_message(parts: Sequence[Part]) -> list[Message]:
    text = _BETWEEN.join(part.text for part in parts)
    return [Message("system", text)] if text else []


def _beside(draft: Draft) -> Message:
    texts = [part.text for part in draft.context]
    return replace(draft.newest, content=_BETWEEN.join([*texts, draft.newest.content]))

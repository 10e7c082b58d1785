"""A prompt in the making: its parts in the order in which a model reads them, each with a name.

What must be in it is told apart from what may be left out when the context is small (budget.py).
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import itemgetter

from bot.chat.prompt import Message, Prompt
from bot.chat.receipt import DroppedItem, PromptSpan
from bot.chat.story import Story

_BETWEEN = "\n\n"  # the parts of one message


@dataclass(frozen=True, slots=True)
class PromptPart:
    """A text in the system message or beside the newest one: a story, an entry of a lorebook."""

    section: str  # what a receipt counts it under: "system", "lore", "stories", "quote", ...
    text: str
    name: str = ""  # which story, which entry
    score: float | None = None  # how well it was found to fit
    priority: int = 0  # what has less is left out first; among equals what stands later
    required: bool = False  # without it there is no prompt


@dataclass(frozen=True, slots=True)
class InsertedMessage:
    """An entry of a lorebook that stands in the history, behind so many messages of its unit."""

    after: int
    message: Message
    name: str


@dataclass(frozen=True, slots=True)
class HistoryUnit:
    """What is kept or left out together: a question with its answers."""

    messages: tuple[Message, ...]
    inserted: tuple[InsertedMessage, ...] = ()

    @property
    def contents(self) -> Sequence[tuple[Message, str]]:
        """What a model reads, in order; an inserted one with its name."""
        if not self.inserted:  # as nearly always: each history is read several times
            return [(message, "") for message in self.messages]
        found: list[tuple[Message, str]] = []
        for place in range(len(self.messages) + 1):
            found += [(one.message, one.name) for one in self.inserted if one.after == place]
            found += [(message, "") for message in self.messages[place : place + 1]]
        return found


@dataclass(frozen=True, slots=True)
class Draft:
    """The sections of a prompt, stable ones first, so that a backend keeps their prefix warm."""

    base: Prompt  # everything but its messages
    system: tuple[PromptPart, ...]  # instructions, persona, standing lore
    pinned: tuple[Message, ...]  # turns that every conversation begins with
    summary: PromptPart | None  # of what is too old for the history
    history: tuple[HistoryUnit, ...]  # oldest first
    context: tuple[PromptPart, ...]  # what changes with every message; stands with the newest one
    newest: Message
    stories: tuple[Story, ...] = ()  # those that stand in the system text, in its order
    left_out: tuple[DroppedItem, ...] = ()  # before it came to the budget

    @property
    def prompt(self) -> Prompt:
        """The prompt of all that is in this draft."""
        fixed = [*_system_message(self.system), *self.pinned]
        if self.summary:
            fixed.append(Message("system", self.summary.text))
        said = (message for message, _ in self._read())
        return replace(self.base, messages=(*fixed, *said, _beside(self)))

    def without_story(self, story: Story) -> "Draft":
        """The same draft, less one of the stories in its system text."""
        told = f"###\n{story.text}"
        parts = (replace(part, text=part.text.replace(told, "", 1)) for part in self.system)
        stories = tuple(one for one in self.stories if one is not story)
        return replace(self, system=tuple(parts), stories=stories)

    @property
    def layout(self) -> tuple[PromptSpan, ...]:
        """Where each section stands in the prompt."""
        spans = [*_part_spans(self.system, 0, self.stories)]
        at = 1 if spans else 0
        for section, messages in (
            ("pinned", len(self.pinned)),
            ("summary", 1 if self.summary else 0),
        ):
            if messages:
                spans.append(PromptSpan(section, at, messages))
                at += messages
        for name, some in groupby(self._read(), key=itemgetter(1)):
            messages = len(list(some))
            spans.append(PromptSpan("lore" if name else "history", at, messages, name=name))
            at += messages
        return (*spans, *_part_spans(self.context, at), PromptSpan("newest", at))

    def _read(self) -> Iterator[tuple[Message, str]]:
        return (each for unit in self.history for each in unit.contents)


def group_history(
    messages: Iterable[Message], *, questions: Sequence[bool] = ()
) -> tuple[HistoryUnit, ...]:
    """Group a history: each question begins a unit, and the answers to it belong there, too.

    `questions` says of each message whether it is one; without it all are that a user sent. A
    model reads the lines of other characters as a user's, but they are answers, too.
    """
    said = list(messages)
    groups: list[list[Message]] = []
    for message, asks in zip(
        said, questions or [one.role != "assistant" for one in said], strict=True
    ):
        if groups and not asks:
            groups[-1].append(message)
        else:
            groups.append([message])
    return tuple(HistoryUnit(tuple(group)) for group in groups)


def story_title(story: Story) -> str:
    """What a receipt calls a story: its first line."""
    return story.text.partition("\n")[0]


def _part_spans(
    parts: Iterable[PromptPart], message: int, stories: Sequence[Story] = ()
) -> Iterator[PromptSpan]:
    for part in parts:
        at = 0
        for story in stories if part.section in {"system", "persona"} else ():
            begin = part.text.find(story.text, at)
            if begin < 0:  # a prompter has made something else of it
                continue
            if begin > at:
                yield PromptSpan(part.section, message, 1, begin - at)
            yield PromptSpan(
                "stories", message, 1, len(story.text), story_title(story), story.score
            )
            at = begin + len(story.text)
        chars = len(part.text) + len(_BETWEEN) - at
        yield PromptSpan(part.section, message, 1, chars, part.name, part.score)


def _system_message(parts: Sequence[PromptPart]) -> list[Message]:
    text = _BETWEEN.join(part.text for part in parts)
    return [Message("system", text)] if text else []


def _beside(draft: Draft) -> Message:
    texts = [part.text for part in draft.context]
    return replace(draft.newest, content=_BETWEEN.join([*texts, draft.newest.content]))

"""Check the result of a run from the visible messages alone.

A question contains a token, `T<hex>:<n>`. Its only right answer is `RS<hex>:<n> 1 2 ... n RE<hex>`,
in one message or in several, so that every missing, repeated, or wrong word is found.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from typing_extensions import override

from bot.commands.answers import BUTTON_GONE_NOTICE, CONVERSATION_MOVED_ON_NOTICE, NOT_AUTHOR_NOTICE

QUESTION = re.compile(r"\bT(?P<name>[0-9a-f]+):(?P<words>\d+)\b")
ANSWER_START = re.compile(r"RS(?P<name>[0-9a-f]+):(?P<words>\d+)")
ANSWER_END = re.compile(r"RE(?P<name>[0-9a-f]+)")
_REFUSED_PRESSES = (BUTTON_GONE_NOTICE, CONVERSATION_MOVED_ON_NOTICE, NOT_AUTHOR_NOTICE)
"""Notices about presses without effect, which are not parts of an answer."""
_MORE_WAITING = re.compile(r"⏳ (1 more message has|\d+ more messages have) arrived\. .*")
"""A notice with an answer to many questions: how many messages still wait."""
KINDS = ("lost", "skipped", "repeated", "out_of_order", "leftovers", "ignored")
"""The kinds of faults."""
_EXAMPLES = 5


@dataclass(frozen=True, slots=True)
class PostedMessage:
    """A publicly visible message of a conversation."""

    conversation: str
    by_bot: bool
    """Whether the bot under test sent it."""

    text: str
    earlier: tuple[str, ...] = ()
    """The texts before each edit, oldest first."""

    number: str = ""
    """Its id on the platform."""

    answers: str = ""
    """The id of the first question of this answer, taken from its buttons, or empty."""


@dataclass(slots=True)
class PeoplesChanges:
    """Actions of people after their questions that change the right answers."""

    deleted: set[str] = field(default_factory=set)
    """Questions whose answers somebody removed, so that they may be missing."""

    gone: dict[str, set[str]] = field(default_factory=dict)
    """The questions whose answers must be missing, by conversation."""

    followed: set[str] = field(default_factory=set)
    """Conversations in which the answer must fit the current text of the newest question."""


def expected_answer(question: str) -> str:
    """Return the right answer to the last token in a text; raise `ValueError` without one."""
    found = [*QUESTION.finditer(question)]
    if not found:
        raise ValueError(f"no token in {question!r}")
    name, words = found[-1]["name"], int(found[-1]["words"])
    return " ".join([f"RS{name}:{words}", *map(str, range(1, words + 1)), f"RE{name}"])


@dataclass(slots=True)
class CheckResult:
    """The faults of a run; without any, every question has exactly one right answer."""

    questions: int = 0
    lost: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    """Questions that were answered in a turn that began with a later question."""

    repeated: list[str] = field(default_factory=list)
    """Answers that were started more than once."""

    out_of_order: list[str] = field(default_factory=list)
    leftovers: list[str] = field(default_factory=list)
    """Placeholders, parts of answers, and messages that answer nothing."""

    ignored: list[str] = field(default_factory=list)
    """Edits and presses without effect."""

    @property
    def is_clean(self) -> bool:
        return not any(getattr(self, kind) for kind in KINDS)

    @override
    def __str__(self) -> str:
        figures = ", ".join(f"{len(getattr(self, kind))} {kind}" for kind in KINDS)
        lines = [f"{self.questions} questions: {figures}"]
        lines += [
            f"  {kind}: {example}" for kind in KINDS for example in getattr(self, kind)[:_EXAMPLES]
        ]
        return "\n".join(lines)


def check_transcripts(
    messages: Iterable[PostedMessage], changes: PeoplesChanges | None = None
) -> CheckResult:
    """Check all conversations; an edited question needs one answer, to any of its versions."""
    result = CheckResult()
    for conversation, said in groupby(
        sorted(messages, key=lambda post: post.conversation), lambda post: post.conversation
    ):
        _check_conversation(conversation, list(said), changes or PeoplesChanges(), result)
    return result


def _versions(post: PostedMessage) -> tuple[str, ...]:
    found = (QUESTION.search(text) for text in (*post.earlier, post.text))
    return tuple(dict.fromkeys(one["name"] for one in found if one))


def _check_conversation(
    conversation: str,
    messages: Sequence[PostedMessage],
    changes: PeoplesChanges,
    result: CheckResult,
) -> None:
    questions = [names for post in messages if not post.by_bot if (names := _versions(post))]
    asked = {name for names in questions for name in names}
    reader = _TranscriptReader()
    for post in messages:
        if post.by_bot:
            reader.read(post.text, post.answers)
    reader.close()
    result.questions += len(questions)
    result.leftovers += [f"{conversation}: {text!r:.100}" for text in reader.leftovers]
    result.leftovers += [
        f"{conversation}: {name} was not asked in this conversation"
        for name in reader.answered
        if name not in asked
    ]
    result.repeated += [
        f"{conversation}: {name}, {times} times"
        for name, times in reader.started.items()
        if times > 1
    ]
    for names in questions:
        answered = [name for name in names if name in reader.answered]
        if len(answered) > 1:
            result.repeated.append(f"{conversation}: {' and '.join(answered)}, one was edited")
        if not answered and changes.deleted.isdisjoint(names):
            result.lost.append(f"{conversation}: {names[-1]}")
    numbers = {
        name: post.number for post in messages if not post.by_bot for name in _versions(post)
    }
    # Whoever deleted an answer to an earlier version knew nothing of the edit that was waiting.
    deleted = {name for names in questions if changes.deleted & {*names} for name in names}
    # Of several questions with one answer, the first began it. An edit can begin one as well.
    known = set(numbers.values())
    result.skipped += [
        f"{conversation}: {name}"
        for name, begun_by in reader.begun_by.items()
        if begun_by in known and begun_by != numbers.get(name) and name not in deleted
    ]
    result.out_of_order += [
        f"{conversation}: {name}" for name in _answered_late(questions, reader.answered)
    ]
    result.ignored += [
        f"{conversation}: the answer to {name} is still there"
        for name in sorted(changes.gone.get(conversation, set()).intersection(reader.answered))
    ]
    if conversation in changes.followed and questions:
        *earlier, newest = questions[-1]
        result.ignored += [
            f"{conversation}: {name} has become {newest}"
            for name in earlier
            if name in reader.answered
        ]


def _answered_late(questions: Sequence[Sequence[str]], answered: Sequence[str]) -> list[str]:
    position = {name: number for number, names in enumerate(questions) for name in names}
    newest, late = -1, []
    for name in dict.fromkeys(answered):
        if position.get(name, newest) < newest:
            late.append(name)
        newest = max(newest, position.get(name, newest))
    return late


class _TranscriptReader:
    """Reads the bot's messages of one conversation, in order, as one text."""

    def __init__(self) -> None:
        self.answered: list[str] = []
        self.started: Counter[str] = Counter()
        self.leftovers: list[str] = []
        self.begun_by: dict[str, str] = {}
        """The `PostedMessage.answers` of each answer, by its first question."""
        self._first = ""
        self._open: re.Match[str] | None = None
        self._counted_waiting = False
        self._next = 1
        self._parts: list[str] = []
        """The messages of the answer that is being read."""

    def read(self, text: str, answers: str = "") -> None:
        if self._open is None and text.endswith(_REFUSED_PRESSES):
            return
        if self._open is None and not self._counted_waiting and _MORE_WAITING.fullmatch(text):
            self._counted_waiting = True
            return
        taken = [self._accept(word) for word in text.split()]
        if not taken or not all(taken):
            self.leftovers.append(text)
        elif self._open is not None:
            self._parts.append(text)
        if answers and self._first:  # buttons are under the last message of an answer
            self.begun_by[self._first] = answers
            self._first = ""

    def close(self) -> None:
        """End the current answer: an incomplete answer is a leftover."""
        if self._open is not None:
            self.leftovers.append(" ".join(self._parts) or self._open[0])
            self._open = None
        self._parts = []

    def _accept(self, word: str) -> bool:
        """Read a word; return whether it may come next."""
        if start := ANSWER_START.fullmatch(word):
            self.close()
            self._open, self._next, self._counted_waiting = start, 1, False
            self.started[start["name"]] += 1
            return True
        if self._open is None:
            return False
        if end := ANSWER_END.fullmatch(word):
            return self._end(self._open, end)
        if word != str(self._next):
            return False
        self._next += 1
        return True

    def _end(self, start: re.Match[str], end: re.Match[str]) -> bool:
        if end["name"] != start["name"] or self._next != int(start["words"]) + 1:
            return False
        self.answered.append(end["name"])
        self._first = self._first or end["name"]
        self._open, self._parts = None, []
        return True

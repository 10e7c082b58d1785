"""Judge a run by what people can read in the chats, and by nothing else.

A question holds a token, `T<hex>:<n>`. Its only right answer is `RS<hex>:<n> 1 2 ... n RE<hex>`, in
one message or in several, so that a missing, doubled or foreign word cannot hide.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from typing_extensions import override

QUESTION = re.compile(r"\bT(?P<name>[0-9a-f]+):(?P<words>\d+)\b")
_BEGINNING = re.compile(r"RS(?P<name>[0-9a-f]+):(?P<words>\d+)")
_END = re.compile(r"RE(?P<name>[0-9a-f]+)")
_EXAMPLES = 5


@dataclass(frozen=True, slots=True)
class Post:
    """A message as everybody in the chat sees it."""

    place: str  # a chat, or a thread or topic in one
    by_bot: bool  # by the bot under test
    text: str


def right_answer(question: str) -> str:
    """What must be answered to the last token in this text; raises `ValueError` without one."""
    found = [*QUESTION.finditer(question)]
    if not found:
        raise ValueError(f"no token in {question!r}")
    name, words = found[-1]["name"], int(found[-1]["words"])
    return " ".join([f"RS{name}:{words}", *map(str, range(1, words + 1)), f"RE{name}"])


@dataclass(slots=True)
class Verdict:
    """What is wrong, each with its place; all empty: every question has its one right answer."""

    questions: int = 0
    lost: list[str] = field(default_factory=list)
    repeated: list[str] = field(default_factory=list)  # began more than once
    out_of_order: list[str] = field(default_factory=list)
    leftovers: list[str] = field(default_factory=list)  # placeholders, pieces, strangers

    @property
    def clean(self) -> bool:
        return not (self.lost or self.repeated or self.out_of_order or self.leftovers)

    @override
    def __str__(self) -> str:
        kinds = ("lost", "repeated", "out_of_order", "leftovers")
        figures = ", ".join(f"{len(getattr(self, kind))} {kind}" for kind in kinds)
        lines = [f"{self.questions} questions: {figures}"]
        lines += [
            f"  {kind}: {example}" for kind in kinds for example in getattr(self, kind)[:_EXAMPLES]
        ]
        return "\n".join(lines)


def judge(posts: Iterable[Post]) -> Verdict:
    """Read every place from its first message to its last; `posts` of a place are in its order."""
    verdict = Verdict()
    for place, said in groupby(sorted(posts, key=lambda post: post.place), lambda post: post.place):
        _judge_place(place, list(said), verdict)
    return verdict


def _judge_place(place: str, posts: Sequence[Post], verdict: Verdict) -> None:
    asked = [
        found["name"] for post in posts if not post.by_bot for found in QUESTION.finditer(post.text)
    ]
    reader = _Reader()
    for post in posts:
        if post.by_bot:
            reader.read(post.text)
    reader.close()
    verdict.questions += len(asked)
    verdict.leftovers += [f"{place}: {text!r:.100}" for text in reader.strays]
    verdict.leftovers += [
        f"{place}: {name} was not asked here" for name in reader.answered if name not in asked
    ]
    verdict.lost += [f"{place}: {name}" for name in asked if name not in reader.answered]
    verdict.repeated += [
        f"{place}: {name}, {times} times" for name, times in reader.begun.items() if times > 1
    ]
    verdict.out_of_order += [f"{place}: {name}" for name in _overtaken(asked, reader.answered)]


def _overtaken(asked: Sequence[str], answered: Sequence[str]) -> list[str]:
    """The questions that were answered after a later one was."""
    position = {name: number for number, name in enumerate(asked)}
    newest, late = -1, []
    for name in dict.fromkeys(answered):
        if position.get(name, newest) < newest:
            late.append(name)
        newest = max(newest, position.get(name, newest))
    return late


class _Reader:
    """Reads the bot's messages of one place, one after the other, as one text."""

    def __init__(self) -> None:
        self.answered: list[str] = []
        self.begun: Counter[str] = Counter()
        self.strays: list[str] = []
        self._open: re.Match[str] | None = None
        self._next = 1
        self._pieces: list[str] = []  # of the answer that is being read

    def read(self, text: str) -> None:
        taken = [self._takes(word) for word in text.split()]
        if not taken or not all(taken):
            self.strays.append(text)
        elif self._open is not None:
            self._pieces.append(text)

    def close(self) -> None:
        """Nothing more comes: an answer that did not end is a piece."""
        if self._open is not None:
            self.strays.append(" ".join(self._pieces) or self._open[0])
            self._open = None
        self._pieces = []

    def _takes(self, word: str) -> bool:
        """Whether this word may come next."""
        if beginning := _BEGINNING.fullmatch(word):
            self.close()
            self._open, self._next = beginning, 1
            self.begun[beginning["name"]] += 1
            return True
        if self._open is None:
            return False
        if end := _END.fullmatch(word):
            return self._ends(self._open, end)
        if word != str(self._next):
            return False
        self._next += 1
        return True

    def _ends(self, beginning: re.Match[str], end: re.Match[str]) -> bool:
        if end["name"] != beginning["name"] or self._next != int(beginning["words"]) + 1:
            return False
        self.answered.append(end["name"])
        self._open, self._pieces = None, []
        return True

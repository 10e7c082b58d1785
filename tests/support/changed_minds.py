"""People who edit their questions and press buttons under answers while the bot is killed."""

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from tests.support.chats import DELETE, NEWER, OLDER, RETRY, Chat, Platforms
from tests.support.transcripts import ANSWER_START, PeoplesChanges

_WEIGHTS = {RETRY: 4, OLDER: 2, NEWER: 2, DELETE: 1}


@dataclass(slots=True)
class _Newest:
    message: Any
    who: int
    name: str


@dataclass(slots=True)
class ChangedMinds:
    """Edits newest questions, presses buttons of newest answers, and records expected effects."""

    platforms: Platforms
    rng: random.Random
    changes: PeoplesChanges = field(default_factory=PeoplesChanges)
    counts: Counter[str] = field(default_factory=Counter)
    bot_stays_up: bool = False
    """Whether the bot is running, so that it receives all further changes."""
    _newest: dict[str, _Newest] = field(default_factory=dict)

    def ask(self, where: Chat, name: str, words: int, who: int) -> None:
        self._newest[where.name] = _Newest(where.ask(name, words, who).message, who, name)
        self.changes.gone.pop(where.name, None)
        self.changes.followed.discard(where.name)

    def edit(self, where: Chat) -> None:
        """Edit the newest question of a conversation, if any, to another question."""
        if (newest := self._newest.get(where.name)) is None:
            return
        number = self.counts["edit"]
        self.counts["edit"] += 1
        newest.name = f"d{number:04x}"
        text = f"{where.mention}please T{newest.name}:{self.rng.randint(1, 40)}"
        where.edit(newest.message, text, newest.who)
        self.changes.gone.pop(where.name, None)
        if self._must_follow(where):
            self.changes.followed.add(where.name)

    async def change_everywhere(self) -> None:
        """Edit the newest question or press a button in each conversation of a running bot."""
        self.bot_stays_up = True
        for number, where in enumerate(self.platforms.conversations.values()):
            if number % 3 == 0:
                self.edit(where)
            else:
                await self.press(where, DELETE if number % 3 == 1 else RETRY)

    async def press(self, where: Chat, wanted: str | None = None) -> None:
        messages, buttons = where.texts(), where.buttons()
        labels = [label for label in (buttons[-1] if buttons else ()) if label in _WEIGHTS]
        newest = self._newest.get(where.name)
        if newest is None or not labels:
            return
        [label] = self.rng.choices(labels, [_WEIGHTS[one] for one in labels])
        label = wanted if wanted in labels else label
        self.counts[label] += 1
        if label == DELETE:
            self._note_deletion(where, newest, messages, buttons)
        elif label != RETRY:  # an older version may answer what the question was before
            self.changes.followed.discard(where.name)
        await where.press(label, newest.who)

    def _note_deletion(
        self, where: Chat, newest: _Newest, texts: list[str], buttons: list[list[str]]
    ) -> None:
        """Record the deleted answer: the last message, and those without buttons before it."""
        taken, *others = zip(reversed(texts), reversed(buttons), strict=True)
        parts = [taken[0]]
        for text, labels in others:
            if labels:
                break
            parts.append(text)
        # an edit may have stopped the answer before its end
        names = {start["name"] for text in parts for start in ANSWER_START.finditer(text)}
        self.changes.deleted |= names
        self.changes.followed.discard(where.name)
        if self._must_follow(where) and newest.name in names:
            self.changes.gone[where.name] = {newest.name}

    def _must_follow(self, where: Chat) -> bool:
        return self.bot_stays_up or where.name.startswith("telegram")

"""Which entries of a lorebook a conversation wakes, as SillyTavern's World Info does it, and why.

Each round wakes entries by their keys, thins out the groups, throws the dice, and fills the budget;
what was taken may wake others in the next round. The same dice give the same lore.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import Enum, auto

from bot.prompting.lorebook.entries import Entry, Lore, Lorebook, Timed, Verdict
from bot.prompting.lorebook.groups import losers
from bot.prompting.lorebook.keys import Keys, Patience, joined
from bot.prompting.text.token_counter import TextTokenCounter

__all__ = ["UNMENTIONED", "consult"]

UNMENTIONED = "its keys were not found"


class _Round(Enum):
    FIRST = auto()
    RECURSION = auto()  # what was taken is searched, too
    FURTHER_BACK = auto()  # too few were found: one message more is searched


def consult(
    book: Lorebook,
    messages: Sequence[str],
    *,
    budget: int,
    count: TextTokenCounter,
    dice: Callable[[], float],
    timed: Timed = Timed(),  # noqa: B008 -- a frozen value
    expand: Callable[[str], str] = str,
    patience: Patience | None = None,
) -> Lore:
    """Search `messages` (oldest first, the newest among them) for what the book knows about them.

    Args:
        book: its own `token_budget` lowers `budget`, where it has one.
        messages: as they are to be read, `Alice: hello`; their number is the time of sticky
            entries, of cooldown and of delay.
        budget: tokens for all entries together.
        count: the tokens of each text.
        dice: gives a number from 0 up to 1.
        timed: what the lore of the last prompt handed out.
        expand: fills macros into keys and contents.
        patience: with slow regular expressions, where several searches share it.
    """
    limit = budget if book.token_budget is None else min(budget, book.token_budget)
    filled = tuple(_filled(entry, expand) for entry in book.entries)
    return _Search(
        replace(book, entries=filled), messages, limit, count, dice, timed, patience
    ).run()


class _Search:
    def __init__(
        self,
        book: Lorebook,
        messages: Sequence[str],
        budget: int,
        count: TextTokenCounter,
        dice: Callable[[], float],
        timed: Timed,
        patience: Patience | None,
    ) -> None:
        self._book = book
        self._messages = messages
        self._budget = budget
        self._count = count
        self._dice = dice
        self._timed = _still(timed, book, len(messages))
        self._sticky = {uid for uid, _, _ in self._timed.sticky}
        self._resting = {uid: end for uid, _, end in self._timed.cooldown}
        # Sticky entries first, then by order: who comes first finds room in the budget.
        self._entries = sorted(
            book.entries, key=lambda entry: (entry.uid not in self._sticky, -entry.order)
        )
        levels = {entry.delay_until_recursion for entry in book.entries} - {0}
        self._levels = sorted(levels)  # of recursion that are still to come
        self._level = self._levels.pop(0) if self._levels else 0
        self._patience = patience or Patience()
        self._keys = Keys(book, self._patience)
        self._taken: dict[str, Entry] = {}
        self._why: dict[str, str] = {}  # of entries that fired, and of those that never will
        self._refused: set[str] = set()
        self._woken_by: list[str] = []  # contents that recursion searches
        self._texts: dict[tuple[int, int], str] = {}  # by depth, and how many woke others
        self._further = 0
        self._full = False
        self._tokens = 0

    def run(self) -> Lore:
        turn: _Round | None = _Round.FIRST
        recursions = 0
        while turn is not None:
            turn = self._next(self._take(self._woken(turn)))
            recursions += turn is _Round.RECURSION
            if recursions > self._book.max_recursion_steps:
                break
        inserted = sorted(self._taken.values(), key=lambda entry: entry.order)
        verdicts = tuple(self._verdict(entry) for entry in self._book.entries)
        return Lore(tuple(inserted), verdicts, self._tokens, self._timed_after())

    def _woken(self, turn: _Round) -> list[Entry]:
        woken = []
        for entry in self._entries:
            if entry.uid in self._taken or entry.uid in self._refused:
                continue
            hindrance = self._hindrance(entry, turn)
            why = None if hindrance else self._reason(entry, turn)
            if why is None:
                self._why[entry.uid] = hindrance or self._missing(entry)
            else:
                self._why[entry.uid] = why
                woken.append(entry)
        return woken

    def _hindrance(self, entry: Entry, turn: _Round) -> str | None:
        """What keeps an entry asleep whatever was said."""
        now = len(self._messages)
        if not entry.enabled:
            return "it is switched off"
        if now < entry.delay:
            return f"it waits until there are {entry.delay} messages (delay)"
        if entry.uid in self._sticky:
            return None
        if entry.uid in self._resting:
            return f"it rests until there are {self._resting[entry.uid]} messages (cooldown)"
        if entry.delay_until_recursion and (
            turn is not _Round.RECURSION or entry.delay_until_recursion > self._level
        ):
            return "it waits until another entry was taken"
        if turn is _Round.RECURSION and entry.exclude_recursion:
            return self._why.get(entry.uid, "other entries cannot wake it")
        return "its author switched it off (@@dont_activate)" if entry.never else None

    def _reason(self, entry: Entry, turn: _Round) -> str | None:
        if entry.constant:
            return "it is constant"
        if entry.uid in self._sticky:
            return "it is sticky"
        found = self._keys.found(entry, self._text(entry, turn))
        if found and turn is _Round.RECURSION:
            return f"{found}, here or in another entry"
        return found

    def _text(self, entry: Entry, turn: _Round) -> str:
        """What an entry's keys are looked for in."""
        own = entry.scan_depth
        depth = own if own is not None else self._book.scan_depth + self._further
        others = 0 if turn is _Round.FURTHER_BACK else len(self._woken_by)
        if (depth, others) not in self._texts:  # most entries share one
            woken = "".join(f"\x01{content}\n" for content in self._woken_by[:others])
            self._texts[depth, others] = joined(self._messages, depth) + woken
        return self._texts[depth, others]

    def _missing(self, entry: Entry) -> str:
        if any(key in self._patience.slow for key in (*entry.keys, *entry.secondary_keys)):
            return "its regular expression took too long and was skipped"
        return UNMENTIONED if entry.keys else "it has no keys"

    def _take(self, woken: Sequence[Entry]) -> list[Entry]:
        """Take of the woken what its group, the dice and the budget let in."""
        lost = losers(
            woken,
            list(self._taken.values()),
            sticky=frozenset(self._sticky),
            score=lambda entry: self._keys.score(entry, self._text(entry, _Round.FIRST)),
            dice=self._dice,
        )
        prices = self._count([entry.content for entry in woken])
        fresh = []
        for entry, price in zip(woken, prices, strict=True):
            refusal = lost.get(entry.uid) or self._unlucky(entry) or self._no_room(entry, price)
            if refusal:
                self._refused.add(entry.uid)
                self._why[entry.uid] = refusal
                continue
            self._taken[entry.uid] = entry
            self._tokens += price
            fresh.append(entry)
        return fresh

    def _unlucky(self, entry: Entry) -> str | None:
        if entry.probability >= 100 or entry.uid in self._sticky:
            return None
        if self._dice() * 100 < entry.probability:
            return None
        return f"the dice were against it ({entry.probability:g} %)"

    def _no_room(self, entry: Entry, price: int) -> str | None:
        if entry.ignores_budget:
            return None
        self._full = self._full or self._tokens + price > self._budget
        return f"no room in the budget of {self._budget} tokens" if self._full else None

    def _next(self, fresh: Sequence[Entry]) -> _Round | None:
        """Say which round follows; each takes something, or comes nearer to the end."""
        waking = [entry.content for entry in fresh if not entry.prevent_recursion]
        self._woken_by += waking
        if self._full:
            return None
        if self._book.recursive and waking:
            return _Round.RECURSION
        deepest = self._book.scan_depth + self._further >= len(self._messages)
        if len(self._taken) < self._book.min_activations and not deepest:
            self._further += 1
            return _Round.FURTHER_BACK
        if self._book.recursive and self._levels:
            self._level = self._levels.pop(0)
            return _Round.RECURSION
        return None

    def _verdict(self, entry: Entry) -> Verdict:
        return Verdict(entry, entry.uid in self._taken, self._why[entry.uid])

    def _timed_after(self) -> Timed:
        """Add what the entries taken now begin; what runs already is not begun anew."""
        now = len(self._messages)
        taken = self._taken.values()
        fresh_sticky = [
            (entry.uid, now, now + entry.sticky)
            for entry in taken
            if entry.sticky and entry.uid not in self._sticky
        ]
        fresh_cooldown = [
            (entry.uid, now, now + entry.cooldown)
            for entry in taken
            if entry.cooldown and entry.uid not in self._resting
        ]
        return Timed((*self._timed.sticky, *fresh_sticky), (*self._timed.cooldown, *fresh_cooldown))


def _still(timed: Timed, book: Lorebook, now: int) -> Timed:
    """What of earlier prompts still holds. Where stickiness ends, the rest begins.

    What began now or later was of a message that has been taken back since.
    """
    entries = {entry.uid: entry for entry in book.entries}
    sticky = [one for one in timed.sticky if one[0] in entries and one[1] < now < one[2]]
    cooldown = [one for one in timed.cooldown if one[0] in entries and one[1] < now < one[2]]
    for uid, begun, end in timed.sticky:
        rest = entries[uid].cooldown if uid in entries else 0
        if begun < now and end <= now < end + rest:
            cooldown = [one for one in cooldown if one[0] != uid] + [(uid, end - 1, end + rest)]
    return Timed(tuple(sticky), tuple(cooldown))


def _filled(entry: Entry, expand: Callable[[str], str]) -> Entry:
    texts = (entry.content, *entry.keys, *entry.secondary_keys)
    if not any("{{" in text or "<" in text for text in texts):
        return entry
    return replace(
        entry,
        content=expand(entry.content),
        keys=tuple(expand(key) for key in entry.keys),
        secondary_keys=tuple(expand(key) for key in entry.secondary_keys),
    )

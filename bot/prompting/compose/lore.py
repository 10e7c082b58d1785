"""Ask a preset's lorebook about a conversation, and give its entries their places in the draft.

Sticky entries and cooldown need to know what earlier prompts woke. Nothing is stored for that: the
prompts before are searched again, with the same dice, as far back as such an effect may reach.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from bot.chat.prompt import Message
from bot.chat.receipt import DroppedItem
from bot.chat.session import Turn
from bot.prompting.cards.macros import Macros
from bot.prompting.compose.card_macros import seeded_random, turn_seed
from bot.prompting.draft.draft import HistoryUnit, InsertedMessage, PromptPart
from bot.prompting.lorebook.entries import (
    EntryPosition,
    Lorebook,
    LoreEntry,
    LoreResult,
    TimedEffects,
)
from bot.prompting.lorebook.keys import RegexTimeBudget
from bot.prompting.lorebook.search import KEYS_NOT_FOUND, search_lorebook
from bot.prompting.text.token_counter import TextTokenCounter

_SHARE_OF_PROMPT = 4  # a quarter of it, if the book says nothing else
_TOKENS_WITHOUT_LIMIT = 1024
_MAX_REPLAYED = 40  # prompts that are searched again
_MAX_ENTRIES_REPLAYED = 20_000  # in all of them together: a tenth of a second
_MAX_TOLD = 100  # entries in a receipt that did not fire
_LORE_PRIORITY = 2  # the book's own budget was kept already; others give way first


@dataclass(frozen=True, slots=True)
class Line:
    """A turn as keys are looked for in it, `Alice: hello`."""

    turn: Turn
    text: str
    own: bool  # the character's that the book belongs to


def lore_of(
    book: Lorebook,
    lines: Sequence[Line],
    *,
    max_input_tokens: int | None,
    macros: Macros,
    seed: str,
    estimate: TextTokenCounter,
) -> LoreResult:
    """Search for what the newest of `lines` and those before it wake."""
    budget = _TOKENS_WITHOUT_LIMIT if not max_input_tokens else max_input_tokens // _SHARE_OF_PROMPT
    texts = [line.text for line in lines]
    time_budget = RegexTimeBudget()

    def search(so_far: int, timed: TimedEffects) -> LoreResult:
        return search_lorebook(
            book,
            texts[:so_far],
            budget=budget,
            count=estimate,
            random_float=seeded_random("lore", seed, turn_seed(lines[so_far - 1].turn)).random,
            timed=timed,
            expand=macros.expand,
            time_budget=time_budget,
        )

    timed = TimedEffects()
    for place in _earlier_prompts(book, lines):
        timed = search(place, timed).timed
    return search(len(lines), timed)


def _earlier_prompts(book: Lorebook, lines: Sequence[Line]) -> list[int]:
    """How many lines there were, each time the character answered, back to the oldest effect."""
    reach = max((entry.sticky + entry.cooldown for entry in book.entries), default=0)
    if not reach:
        return []
    # An effect may have held off another one just before, so look twice as far.
    oldest = max(1, len(lines) - 2 * reach)
    answered = [at for at in range(oldest, len(lines)) if lines[at].own]
    most = min(_MAX_REPLAYED, _MAX_ENTRIES_REPLAYED // len(book.entries))
    return answered[len(answered) - most :] if most < len(answered) else answered


def parts_at(lore: LoreResult, *positions: EntryPosition) -> list[PromptPart]:
    """The entries that belong there, in the order of their insertion."""
    return [_part(lore, entry) for entry in lore.entries if entry.position in positions]


def beside_newest(lore: LoreResult) -> list[PromptPart]:
    """What stands with the newest message: notes, and what is to be at its very depth."""
    deep = [_part(lore, entry) for entry in lore.entries if _is_beside(entry)]
    notes = parts_at(lore, EntryPosition.NOTE_TOP, EntryPosition.NOTE_BOTTOM)
    return [*notes, *deep]


def at_depth(lore: LoreResult, history: Sequence[HistoryUnit]) -> tuple[HistoryUnit, ...]:
    """Put entries between the messages; one that is deeper than the history stands at its start.

    They belong to the unit around them, so that a question keeps its answer.
    """
    total = 1 + sum(len(unit.messages) for unit in history)  # with the newest
    waiting: dict[int, list[LoreEntry]] = defaultdict(list)  # by the messages before them
    for entry in lore.entries:
        if entry.position is EntryPosition.AT_DEPTH and not _is_beside(entry):
            waiting[max(0, total - entry.depth)].append(entry)
    placed, before = [], 0
    for unit in history:
        said = len(unit.messages)
        last = before + said == total - 1  # what stands just before the newest is its, too
        inserted = tuple(
            InsertedMessage(place, Message(entry.role, entry.content), _told(lore, entry))
            for place in range(said + last)
            for entry in waiting[before + place]
        )
        placed.append(replace(unit, inserted=inserted))
        before += said
    return tuple(placed)


def homeless(lore: LoreResult, history: Sequence[HistoryUnit]) -> list[PromptPart]:
    """What has a depth, but no history to stand in."""
    if history:
        return []
    deep = (entry for entry in lore.entries if entry.position is EntryPosition.AT_DEPTH)
    return [_part(lore, entry) for entry in deep if not _is_beside(entry)]


def asleep(lore: LoreResult) -> list[DroppedItem]:
    """Why the other entries do not stand in the prompt; those that nobody mentioned are counted."""
    missed = [verdict for verdict in lore.decisions if not verdict.activated]
    unmentioned = [verdict for verdict in missed if verdict.reason == KEYS_NOT_FOUND]
    told = [
        DroppedItem("lore", one.entry.label, one.reason)
        for one in missed
        if one.reason != KEYS_NOT_FOUND
    ]
    if unmentioned:
        told.append(DroppedItem("lore", "", KEYS_NOT_FOUND, len(unmentioned)))
    return told[:_MAX_TOLD]


def _is_beside(entry: LoreEntry) -> bool:
    return entry.position is EntryPosition.AT_DEPTH and entry.depth <= 0


def _part(lore: LoreResult, entry: LoreEntry) -> PromptPart:
    return PromptPart("lore", entry.content, name=_told(lore, entry), priority=_LORE_PRIORITY)


def _told(lore: LoreResult, entry: LoreEntry) -> str:
    why = next(verdict.reason for verdict in lore.decisions if verdict.entry.uid == entry.uid)
    return f"{entry.label}: {why}"

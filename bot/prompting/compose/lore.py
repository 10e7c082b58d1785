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
from bot.prompting.compose.scene import seeded, turn_seed
from bot.prompting.draft.draft import HistoryUnit, InsertedMessage, PromptPart
from bot.prompting.lorebook.entries import Entry, Lore, Lorebook, Position, Timed
from bot.prompting.lorebook.keys import Patience
from bot.prompting.lorebook.search import UNMENTIONED, consult
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
) -> Lore:
    """Search for what the newest of `lines` and those before it wake."""
    budget = _TOKENS_WITHOUT_LIMIT if not max_input_tokens else max_input_tokens // _SHARE_OF_PROMPT
    texts = [line.text for line in lines]
    patience = Patience()

    def search(so_far: int, timed: Timed) -> Lore:
        return consult(
            book,
            texts[:so_far],
            budget=budget,
            count=estimate,
            dice=seeded("lore", seed, turn_seed(lines[so_far - 1].turn)).random,
            timed=timed,
            expand=macros.expand,
            patience=patience,
        )

    timed = Timed()
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


def parts_at(lore: Lore, *positions: Position) -> list[PromptPart]:
    """The entries that belong there, in the order of their insertion."""
    return [_part(lore, entry) for entry in lore.entries if entry.position in positions]


def beside_newest(lore: Lore) -> list[PromptPart]:
    """What stands with the newest message: notes, and what is to be at its very depth."""
    deep = [_part(lore, entry) for entry in lore.entries if _is_beside(entry)]
    notes = parts_at(lore, Position.NOTE_TOP, Position.NOTE_BOTTOM)
    return [*notes, *deep]


def at_depth(lore: Lore, history: Sequence[HistoryUnit]) -> tuple[HistoryUnit, ...]:
    """Put entries between the messages; one that is deeper than the history stands at its start.

    They belong to the unit around them, so that a question keeps its answer.
    """
    total = 1 + sum(len(unit.messages) for unit in history)  # with the newest
    waiting: dict[int, list[Entry]] = defaultdict(list)  # by the messages before them
    for entry in lore.entries:
        if entry.position is Position.AT_DEPTH and not _is_beside(entry):
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


def homeless(lore: Lore, history: Sequence[HistoryUnit]) -> list[PromptPart]:
    """What has a depth, but no history to stand in."""
    if history:
        return []
    deep = (entry for entry in lore.entries if entry.position is Position.AT_DEPTH)
    return [_part(lore, entry) for entry in deep if not _is_beside(entry)]


def asleep(lore: Lore) -> list[DroppedItem]:
    """Why the other entries do not stand in the prompt; those that nobody mentioned are counted."""
    missed = [verdict for verdict in lore.verdicts if not verdict.fired]
    unmentioned = [verdict for verdict in missed if verdict.why == UNMENTIONED]
    told = [
        DroppedItem("lore", one.entry.label, one.why) for one in missed if one.why != UNMENTIONED
    ]
    if unmentioned:
        told.append(DroppedItem("lore", "", UNMENTIONED, len(unmentioned)))
    return told[:_MAX_TOLD]


def _is_beside(entry: Entry) -> bool:
    return entry.position is Position.AT_DEPTH and entry.depth <= 0


def _part(lore: Lore, entry: Entry) -> PromptPart:
    return PromptPart("lore", entry.content, name=_told(lore, entry), priority=_LORE_PRIORITY)


def _told(lore: Lore, entry: Entry) -> str:
    why = next(verdict.why for verdict in lore.verdicts if verdict.entry.uid == entry.uid)
    return f"{entry.label}: {why}"

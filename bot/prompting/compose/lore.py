"""Search a preset's lorebook for a conversation, and add the active entries to the draft.

Sticky entries and cooldowns depend on which entries earlier prompts activated. That is not stored:
the search is repeated for earlier prompts with the same random numbers, as far back as these
effects last.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from bot.chat.prompt import Message
from bot.chat.receipt import DroppedItem
from bot.prompting.compose.card_macros import seeded_random, turn_seed
from bot.prompting.compose.inputs import PromptInputs
from bot.prompting.draft import HistoryUnit, PromptPart
from bot.prompting.lorebook.entries import (
    EntryPosition,
    Lorebook,
    LoreEntry,
    LoreResult,
    RegexTimeBudget,
)
from bot.prompting.lorebook.search import KEYS_NOT_FOUND_REASON, LorebookSearch
from bot.prompting.macros import Macros, Variables
from bot.prompting.text.tokens import counter_for_model
from bot.texts.text import StoredPattern, marked

_MAX_SHARE_DIVISOR = 4  # a quarter of the prompt, if the book has no budget
_TOKENS_WITHOUT_LIMIT = 1024
_MAX_REPLAYED_PROMPTS = 40  # earlier prompts to search again
_MAX_ENTRIES_REPLAYED = 20_000  # in all these prompts together, in 0.1 s
_MAX_REPORTED_ENTRIES = 100  # inactive entries to list in a receipt
_MAX_REPORTED_LABELS = 8  # entries without a matching key to list in a receipt
_MAX_LABEL_CHARS = 40
_LABEL_AND_REASON = StoredPattern(marked("{label}: {reason}"))
_LORE_PRIORITY = 2  # lore has its own budget, so other parts are dropped first


DeepMessage: TypeAlias = tuple[int, Message, str]
"""(depth, message, name); the message goes before the last `depth` messages, newest included."""


def find_lore(book: Lorebook, inputs: PromptInputs, macros: Macros) -> LoreResult:
    """Return the entries that the turns, including the newest message, activate."""
    turns, limit = inputs.turns, inputs.max_input_tokens
    texts = [f"{inputs.speaker_label(turn)}: {turn.text}" for turn in turns]
    time_budget = RegexTimeBudget()

    def search(length: int, activated_at: Mapping[str, int], macros: Macros) -> LoreResult:
        rng = seeded_random("lore", inputs.seed, turn_seed(turns[length - 1]))
        return LorebookSearch(
            book,
            texts[:length],
            budget=limit // _MAX_SHARE_DIVISOR if limit else _TOKENS_WITHOUT_LIMIT,
            count=counter_for_model(inputs.preset.model),
            random_float=rng.random,
            activated_at=activated_at,
            expand=macros.expand,
            time_budget=time_budget,
        ).run()

    activated_at: Mapping[str, int] = {}
    for length in _earlier_prompt_lengths(book, inputs):
        fresh = replace(macros, variables=Variables())
        activated_at = search(length, activated_at, fresh).activated_at
    return search(len(turns), activated_at, macros)


def _earlier_prompt_lengths(book: Lorebook, inputs: PromptInputs) -> list[int]:
    """Return the numbers of turns of earlier prompts whose lorebook effects may still last."""
    reach = max((entry.sticky + entry.cooldown for entry in book.entries), default=0)
    if not reach:
        return []
    # Look back twice as far, because an earlier effect may have prevented this one.
    oldest = max(1, len(inputs.turns) - 2 * reach)
    answered = [at for at in range(oldest, len(inputs.turns)) if inputs.is_own(inputs.turns[at])]
    most = min(_MAX_REPLAYED_PROMPTS, _MAX_ENTRIES_REPLAYED // len(book.entries))
    return answered[len(answered) - most :] if most < len(answered) else answered


def lore_parts_at(lore: LoreResult, *positions: EntryPosition) -> list[PromptPart]:
    return [_to_part(entry, lore) for entry in lore.entries if entry.position in positions]


def outlet_texts(lore: LoreResult) -> Mapping[str, str]:
    """Return the texts of outlet entries, by outlet name."""
    found: dict[str, list[str]] = defaultdict(list)
    for entry in lore.entries:
        if entry.position is EntryPosition.OUTLET:
            found[entry.outlet].append(entry.content)
    return {name: "\n".join(contents) for name, contents in found.items()}


def parts_for_newest_message(lore: LoreResult) -> list[PromptPart]:
    """Return the parts to put before the newest message: author's note, and entries at depth 0."""
    notes = lore_parts_at(lore, EntryPosition.NOTE_TOP, EntryPosition.NOTE_BOTTOM)
    return [*notes, *(_to_part(entry, lore) for entry in lore.entries if _is_at_newest(entry))]


def deep_lore_messages(lore: LoreResult) -> list[DeepMessage]:
    return [
        (entry.depth, Message(entry.role, entry.content), _named_reason(entry, lore))
        for entry in lore.entries
        if entry.position is EntryPosition.AT_DEPTH and not _is_at_newest(entry)
    ]


def insert_messages(
    deep_messages: Sequence[DeepMessage], history: Sequence[HistoryUnit]
) -> tuple[HistoryUnit, ...]:
    """Insert messages into a history at their depths, or at its start if it is too short."""
    if not deep_messages:
        return tuple(history)
    total = 1 + sum(len(unit.messages) for unit in history)  # including the newest message
    # By the number of messages before them.
    waiting: dict[int, list[tuple[Message, str]]] = defaultdict(list)
    for depth, message, name in deep_messages:
        waiting[max(0, total - depth)].append((message, name))
    units, before = [], 0
    for unit in history:
        end = before + len(unit.messages)
        contents = [*waiting.pop(before, ())]
        # Messages inserted earlier at the same place come after these.
        for message, name in unit.contents or [(message, "") for message in unit.messages]:
            contents.append((message, name))
            before += not name
            # The last unit also contains what comes right before the newest message.
            if not name and (before < end or unit is history[-1]):
                contents += waiting.pop(before, ())
        is_longer = len(contents) > len(unit.all_messages)
        units.append(replace(unit, contents=tuple(contents)) if is_longer else unit)
    return tuple(units)


def deep_lore_parts_without_history(
    lore: LoreResult, history: Sequence[HistoryUnit]
) -> list[PromptPart]:
    if history:
        return []
    return [
        PromptPart("lore", message.content, name=name, priority=_LORE_PRIORITY)
        for _, message, name in deep_lore_messages(lore)
    ]


def inactive_entries(lore: LoreResult) -> list[DroppedItem]:
    """Return a receipt item per inactive entry; all entries with unmatched keys share one."""
    inactive = [decision for decision in lore.decisions if not decision.is_activated]
    others = [decision for decision in inactive if decision.reason != KEYS_NOT_FOUND_REASON]
    items = [
        DroppedItem("lore", one.entry.label, one.reason, was_wanted=one.is_over_budget)
        for one in others
    ]
    if len(others) < len(inactive):
        labels = [one.entry.label for one in inactive if one.reason == KEYS_NOT_FOUND_REASON]
        items.append(_unmatched_item(labels))
    return items[:_MAX_REPORTED_ENTRIES]


def _unmatched_item(labels: Sequence[str]) -> DroppedItem:
    named = ", ".join(label[:_MAX_LABEL_CHARS] for label in labels[:_MAX_REPORTED_LABELS])
    if len(labels) > _MAX_REPORTED_LABELS:
        named += ", …"
    reason = KEYS_NOT_FOUND_REASON if len(labels) == 1 else marked("none of their keys were found")
    return DroppedItem("lore", named, reason, len(labels), was_wanted=False)


def _is_at_newest(entry: LoreEntry) -> bool:
    return entry.position is EntryPosition.AT_DEPTH and entry.depth <= 0


def _to_part(entry: LoreEntry, lore: LoreResult) -> PromptPart:
    name = _named_reason(entry, lore)
    return PromptPart("lore", entry.content, name=name, priority=_LORE_PRIORITY)


def _named_reason(entry: LoreEntry, lore: LoreResult) -> str:
    return _LABEL_AND_REASON.with_values(label=entry.label, reason=lore.reasons[entry.uid])

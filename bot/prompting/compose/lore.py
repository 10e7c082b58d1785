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
from bot.prompting.compose.card_macros import build_turn_seed, make_random_generator
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
from bot.prompting.text.tokens import get_counter_for_model
from bot.texts.text import StoredPattern, marked

_PROMPT_TO_LORE_RATIO = 4  # lore may use a quarter of the prompt
_DEFAULT_TOKEN_BUDGET = 1024
_MAX_REPLAYED_PROMPTS = 40  # earlier prompts to search again
_MAX_REPLAYED_ENTRIES = 20_000  # in all these prompts together, in 0.1 s
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
    texts = [f"{inputs.find_speaker_label(turn)}: {turn.text}" for turn in turns]
    time_budget = RegexTimeBudget()

    def search(turn_count: int, activation_turns: Mapping[str, int], macros: Macros) -> LoreResult:
        rng = make_random_generator("lore", inputs.seed, build_turn_seed(turns[turn_count - 1]))
        return LorebookSearch(
            book,
            texts[:turn_count],
            budget=limit // _PROMPT_TO_LORE_RATIO if limit else _DEFAULT_TOKEN_BUDGET,
            counter=get_counter_for_model(inputs.preset.model),
            draw_float=rng.random,
            activation_turns=activation_turns,
            expand=macros.expand,
            time_budget=time_budget,
        ).run()

    activation_turns: Mapping[str, int] = {}
    for turn_count in _find_earlier_turn_counts(book, inputs):
        fresh_macros = replace(macros, variables=Variables())
        activation_turns = search(turn_count, activation_turns, fresh_macros).activation_turns
    return search(len(turns), activation_turns, macros)


def _find_earlier_turn_counts(book: Lorebook, inputs: PromptInputs) -> list[int]:
    """Return how many turns each earlier prompt had, if its lorebook effects may still last."""
    max_effect_turns = max((entry.sticky + entry.cooldown for entry in book.entries), default=0)
    if not max_effect_turns:
        return []
    # Look back twice as far, because an earlier effect may have prevented this one.
    oldest_turn_index = max(1, len(inputs.turns) - 2 * max_effect_turns)
    turns = list(enumerate(inputs.turns))[oldest_turn_index:]
    answer_indexes = [index for index, turn in turns if inputs.is_own_turn(turn)]
    max_prompts = min(_MAX_REPLAYED_PROMPTS, _MAX_REPLAYED_ENTRIES // len(book.entries))
    return answer_indexes[max(0, len(answer_indexes) - max_prompts) :]


def build_lore_parts_at(lore: LoreResult, *positions: EntryPosition) -> list[PromptPart]:
    return [_to_part(entry, lore) for entry in lore.entries if entry.position in positions]


def join_outlet_texts(lore: LoreResult) -> Mapping[str, str]:
    """Return the texts of outlet entries, by outlet name."""
    texts_by_outlet: dict[str, list[str]] = defaultdict(list)
    for entry in lore.entries:
        if entry.position is EntryPosition.OUTLET:
            texts_by_outlet[entry.outlet].append(entry.content)
    return {name: "\n".join(contents) for name, contents in texts_by_outlet.items()}


def build_lore_parts_before_newest_message(lore: LoreResult) -> list[PromptPart]:
    """Return the parts before the newest message: the author's note, and entries at depth 0."""
    notes = build_lore_parts_at(lore, EntryPosition.NOTE_TOP, EntryPosition.NOTE_BOTTOM)
    return [*notes, *(_to_part(entry, lore) for entry in lore.entries if _is_before_newest(entry))]


def build_deep_lore_messages(lore: LoreResult) -> list[DeepMessage]:
    return [
        (entry.depth, Message(entry.role, entry.content), _describe_reason(entry, lore))
        for entry in lore.entries
        if entry.position is EntryPosition.AT_DEPTH and not _is_before_newest(entry)
    ]


def insert_messages(
    deep_messages: Sequence[DeepMessage], history: Sequence[HistoryUnit]
) -> tuple[HistoryUnit, ...]:
    """Insert messages into a history at their depths, or at its start if it is too short."""
    if not deep_messages:
        return tuple(history)
    message_count = 1 + sum(len(unit.messages) for unit in history)  # including the newest message
    # The keys are numbers of preceding messages.
    messages_by_position: dict[int, list[tuple[Message, str]]] = defaultdict(list)
    for depth, message, name in deep_messages:
        messages_by_position[max(0, message_count - depth)].append((message, name))
    new_units, position = [], 0
    for unit in history:
        end = position + len(unit.messages)
        pairs = [*messages_by_position.pop(position, ())]
        # Messages inserted earlier at the same place come after these.
        for message, name in unit.lore_name_pairs or [(message, "") for message in unit.messages]:
            pairs.append((message, name))
            position += not name
            # The last unit also contains what comes right before the newest message.
            if not name and (position < end or unit is history[-1]):
                pairs += messages_by_position.pop(position, ())
        is_longer = len(pairs) > len(unit.messages_with_lore)
        new_units.append(replace(unit, lore_name_pairs=tuple(pairs)) if is_longer else unit)
    return tuple(new_units)


def build_parts_without_history(
    lore: LoreResult, history: Sequence[HistoryUnit]
) -> list[PromptPart]:
    if history:
        return []
    return [
        PromptPart("lore", message.content, name=name, priority=_LORE_PRIORITY)
        for _, message, name in build_deep_lore_messages(lore)
    ]


def list_inactive_entries(lore: LoreResult) -> list[DroppedItem]:
    """Return a receipt item for each inactive entry; entries with unmatched keys share one."""
    inactive_decisions = [decision for decision in lore.decisions if not decision.is_activated]
    items = [
        DroppedItem("lore", one.entry.label, one.reason, was_wanted=one.is_over_budget)
        for one in inactive_decisions
        if one.reason != KEYS_NOT_FOUND_REASON
    ]
    labels = [one.entry.label for one in inactive_decisions if one.reason == KEYS_NOT_FOUND_REASON]
    if labels:
        items.append(_make_unmatched_entries_item(labels))
    return items[:_MAX_REPORTED_ENTRIES]


def _make_unmatched_entries_item(labels: Sequence[str]) -> DroppedItem:
    names = ", ".join(label[:_MAX_LABEL_CHARS] for label in labels[:_MAX_REPORTED_LABELS])
    if len(labels) > _MAX_REPORTED_LABELS:
        names += ", …"
    reason = KEYS_NOT_FOUND_REASON if len(labels) == 1 else marked("none of their keys were found")
    return DroppedItem("lore", names, reason, len(labels), was_wanted=False)


def _is_before_newest(entry: LoreEntry) -> bool:
    return entry.position is EntryPosition.AT_DEPTH and entry.depth <= 0


def _to_part(entry: LoreEntry, lore: LoreResult) -> PromptPart:
    name = _describe_reason(entry, lore)
    return PromptPart("lore", entry.content, name=name, priority=_LORE_PRIORITY)


def _describe_reason(entry: LoreEntry, lore: LoreResult) -> str:
    return _LABEL_AND_REASON.with_values(label=entry.label, reason=lore.reasons[entry.uid])

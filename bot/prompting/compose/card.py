"""Apply a card to a draft: expand its macros, insert its lorebook, and describe the speakers.

system message: system, lore before the character, persona, lore after it, lore before the examples
examples, lore after them, history with lore at its depth
newest message: speakers, notes and lore at depth 0, quote, the card's post-history instructions
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from bot.chat.prompt import Message
from bot.prompting.cards.macros import Macros
from bot.prompting.cards.story_string import parse_story_string
from bot.prompting.compose.card_macros import ORIGINAL_SYSTEM, CardMacros, build_card_macros
from bot.prompting.compose.inputs import PromptInputs
from bot.prompting.compose.lore import (
    ScannedTurn,
    find_lore,
    inactive_entries,
    insert_at_depth,
    parts_at,
    parts_at_newest,
    parts_without_history,
)
from bot.prompting.draft.draft import Draft, PromptPart
from bot.prompting.lorebook.entries import EntryPosition, Lorebook, LoreResult, TimedEffects
from bot.prompting.presets.preset import Preset
from bot.prompting.speakers.user_personas import describe_speakers
from bot.prompting.text.token_counter import counter_for_model

_NO_LORE = LoreResult((), (), 0, TimedEffects())


def apply_card(draft: Draft, inputs: PromptInputs) -> Draft:
    """Return the draft with what the card and the speakers' personas add.

    Without a card and without personas the draft is unchanged.
    """
    preset = inputs.preset
    if (
        preset.macros
        or preset.parsed_lorebook
        or preset.post_history_instructions
        or preset.story_string
    ):
        macros = build_card_macros(inputs)
        if preset.macros:
            draft = _expand_macros(draft, macros.stable)
        book = preset.parsed_lorebook
        lore = _find_lore(book, inputs, macros) if book else _NO_LORE
        draft = _insert_lore(draft, lore)
        draft = replace(
            draft,
            system=_system_parts(draft.system, lore, preset, macros),
            context=(*draft.context, *_post_history(inputs, macros)),
        )
    if people := describe_speakers(_newest_first(inputs), inputs.speakers.people, inputs.personas):
        draft = replace(draft, context=(PromptPart("people", people, priority=1), *draft.context))
    return draft


def _expand_macros(draft: Draft, macros: Macros) -> Draft:
    original = macros.expand(ORIGINAL_SYSTEM)
    system = replace(macros, original=original)
    return replace(
        draft,
        system=tuple(replace(part, text=system.expand(part.text)) for part in draft.system),
        pinned=tuple(_expand_message(message, macros) for message in draft.pinned),
        context=tuple(
            replace(part, text=macros.expand(part.text)) if part.section == "stories" else part
            for part in draft.context
        ),
        stories=tuple(
            replace(story, text=macros.expand(story.text.strip())) for story in draft.stories
        ),
    )


def _expand_message(message: Message, macros: Macros) -> Message:
    parts = tuple(macros.expand(part) if isinstance(part, str) else part for part in message.parts)
    return replace(message, content=macros.expand(message.content), parts=parts)


def _find_lore(book: Lorebook, inputs: PromptInputs, macros: CardMacros) -> LoreResult:
    turns = [
        ScannedTurn(turn, f"{inputs.speaker_label(turn)}: {turn.text}", inputs.is_own(turn))
        for turn in inputs.turns
    ]
    return find_lore(
        book,
        turns,
        max_input_tokens=inputs.max_input_tokens,
        macros=macros.current,
        seed=inputs.seed,
        count=counter_for_model(inputs.preset.model),
    )


def _insert_lore(draft: Draft, lore: LoreResult) -> Draft:
    """Insert the entries, except those in the system message."""
    examples = "\n".join(part.text for part in parts_at(lore, EntryPosition.EXAMPLES_BOTTOM))
    return replace(
        draft,
        pinned=(*draft.pinned, *([Message("system", examples)] if examples else [])),
        history=insert_at_depth(lore, draft.history),
        context=(
            *parts_without_history(lore, draft.history),
            *parts_at_newest(lore),
            *draft.context,
        ),
        left_out=(*draft.left_out, *inactive_entries(lore)),
    )


def _system_parts(
    parts: Sequence[PromptPart], lore: LoreResult, preset: Preset, macros: CardMacros
) -> tuple[PromptPart, ...]:
    """Return the system message in our order, or as a `story_string` lays it out."""
    before = parts_at(lore, EntryPosition.BEFORE_CHAR)
    after = parts_at(lore, EntryPosition.AFTER_CHAR)
    system = [part for part in parts if part.section == "system"]
    persona = [part for part in parts if part.section == "persona"]
    others = [part for part in parts if part not in system and part not in persona]
    examples = parts_at(lore, EntryPosition.EXAMPLES_TOP)
    if not preset.story_string:
        return (*system, *before, *persona, *after, *examples, *others)
    text = parse_story_string(preset.story_string).render(
        {
            "system": _joined(system),
            "description": _joined(persona),
            "wiBefore": _joined(before),
            "loreBefore": _joined(before),
            "wiAfter": _joined(after),
            "loreAfter": _joined(after),
            "char": macros.stable.char,
            "user": macros.stable.user,
        }
    )
    rendered = [PromptPart("system", text, required=True)] if text else []
    return (*rendered, *examples, *others)


def _joined(parts: Sequence[PromptPart]) -> str:
    return "\n".join(part.text for part in parts)


def _post_history(inputs: PromptInputs, macros: CardMacros) -> list[PromptPart]:
    source = inputs.preset.post_history_instructions or ""
    text = macros.current.expand(source) if inputs.preset.macros else source
    return [PromptPart("post_history", text, required=True)] if text.strip() else []


def _newest_first(inputs: PromptInputs) -> Iterator[str]:
    return (turn.speaker.id for turn in reversed(inputs.turns) if turn.speaker)

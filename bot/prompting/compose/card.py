"""The last step of composing: what a card brings along, and who people are, put into a draft.

system -> lore before the character -> persona -> lore behind -> lore before the examples
examples -> lore behind them -> history, with lore at its depth
found -> notes and lore beside the newest message -> people -> quote -> the card's last word
"""

from collections.abc import Sequence
from dataclasses import replace

from bot.chat.prompt import Message
from bot.prompting.cards.macros import Macros
from bot.prompting.cards.story_string import parse_story_string
from bot.prompting.compose.card_macros import (
    ORIGINAL_SYSTEM,
    CardMacros,
    PromptInputs,
    build_card_macros,
)
from bot.prompting.compose.lore import (
    Line,
    asleep,
    at_depth,
    beside_newest,
    homeless,
    lore_of,
    parts_at,
)
from bot.prompting.draft.draft import Draft, PromptPart
from bot.prompting.lorebook.entries import EntryPosition, Lorebook, LoreResult, TimedEffects
from bot.prompting.presets.preset import Preset
from bot.prompting.speakers.user_personas import describe_speakers
from bot.prompting.text.token_counter import count_tokens

_NO_LORE = LoreResult((), (), 0, TimedEffects())


def stage(draft: Draft, room: PromptInputs) -> Draft:
    """Leave a draft as it is, but for what people say of themselves, where no card is played."""
    preset = room.preset
    if (
        preset.macros
        or preset.parsed_lorebook
        or preset.post_history_instructions
        or preset.story_string
    ):
        scene = build_card_macros(room)
        if preset.macros:
            draft = _with_macros(draft, scene.stable)
        lore = _lore(preset.parsed_lorebook, room, scene) if preset.parsed_lorebook else _NO_LORE
        draft = _with_lore(draft, lore)
        draft = replace(
            draft,
            system=_system(draft.system, lore, preset, scene),
            context=(*draft.context, *_last_word(room, scene)),
        )
    if people := describe_speakers(_newest_first(room), room.speakers.people, room.personas):
        draft = replace(draft, context=(PromptPart("people", people, priority=1), *draft.context))
    return draft


def _with_macros(draft: Draft, standing: Macros) -> Draft:
    original = standing.expand(ORIGINAL_SYSTEM)
    system = replace(standing, original=original)
    return replace(
        draft,
        system=tuple(replace(part, text=system.expand(part.text)) for part in draft.system),
        pinned=tuple(_expanded(message, standing) for message in draft.pinned),
        stories=tuple(
            replace(story, text=standing.expand(story.text.strip())) for story in draft.stories
        ),
    )


def _expanded(message: Message, macros: Macros) -> Message:
    parts = tuple(macros.expand(part) if isinstance(part, str) else part for part in message.parts)
    return replace(message, content=macros.expand(message.content), parts=parts)


def _lore(book: Lorebook, room: PromptInputs, scene: CardMacros) -> LoreResult:
    lines = [
        Line(turn, f"{room.speaker_label(turn)}: {turn.text}", room.is_own(turn))
        for turn in room.turns
    ]
    return lore_of(
        book,
        lines,
        max_input_tokens=room.preset.max_input_tokens,
        macros=scene.current,
        seed=room.seed,
        estimate=count_tokens,
    )


def _with_lore(draft: Draft, lore: LoreResult) -> Draft:
    """Give the entries their places, but for those in the system message."""
    behind = "\n".join(part.text for part in parts_at(lore, EntryPosition.EXAMPLES_BOTTOM))
    return replace(
        draft,
        pinned=(*draft.pinned, *([Message("system", behind)] if behind else [])),
        history=at_depth(lore, draft.history),
        context=(*homeless(lore, draft.history), *beside_newest(lore), *draft.context),
        left_out=(*draft.left_out, *asleep(lore)),
    )


def _system(
    parts: Sequence[PromptPart], lore: LoreResult, preset: Preset, scene: CardMacros
) -> tuple[PromptPart, ...]:
    """The system message, in our order or as a `story_string` lays it out."""
    before, after = (
        parts_at(lore, EntryPosition.BEFORE_CHAR),
        parts_at(lore, EntryPosition.AFTER_CHAR),
    )
    system = [part for part in parts if part.section == "system"]
    persona = [part for part in parts if part.section == "persona"]
    others = [part for part in parts if part not in system and part not in persona]
    examples = parts_at(lore, EntryPosition.EXAMPLES_TOP)
    if not preset.story_string:
        return (*system, *before, *persona, *after, *examples, *others)
    told = parse_story_string(preset.story_string).compose(
        {
            "system": _joined(system),
            "description": _joined(persona),
            "wiBefore": _joined(before),
            "loreBefore": _joined(before),
            "wiAfter": _joined(after),
            "loreAfter": _joined(after),
            "char": scene.stable.char,
            "user": scene.stable.user,
        }
    )
    story = [PromptPart("system", told, needed=True)] if told else []
    return (*story, *examples, *others)


def _joined(parts: Sequence[PromptPart]) -> str:
    return "\n".join(part.text for part in parts)


def _last_word(room: PromptInputs, scene: CardMacros) -> list[PromptPart]:
    text = room.preset.post_history_instructions or ""
    said = scene.current.expand(text) if room.preset.macros else text
    return [PromptPart("post_history", said, needed=True)] if said.strip() else []


def _newest_first(room: PromptInputs) -> list[str]:
    return [turn.speaker.id for turn in reversed(room.turns) if turn.speaker]

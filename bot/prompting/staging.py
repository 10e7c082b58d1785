"""The last step of composing: what a card brings along, and who people are, put into a draft.

system -> lore before the character -> persona -> lore behind -> lore before the examples
examples -> lore behind them -> history, with lore at its depth
found -> notes and lore beside the newest message -> people -> quote -> the card's last word
"""

from dataclasses import replace

from bot.chat.prompt import Message
from bot.prompting.draft import Draft, Part
from bot.prompting.lore_entries import Lore, Position
from bot.prompting.lore_placing import (
    Line,
    asleep,
    at_depth,
    beside_newest,
    homeless,
    lore_of,
    parts_at,
)
from bot.prompting.macros import Macros
from bot.prompting.people import about
from bot.prompting.scene import ORIGINAL_SYSTEM, Room, Scene, set_scene
from bot.prompting.tokens import count_tokens


def stage(draft: Draft, room: Room) -> Draft:
    """Leave a draft as it is, but for what people say of themselves, where no card is played."""
    preset = room.preset
    if preset.macros or preset.book or preset.post_history_instructions:
        scene = set_scene(room)
        if preset.macros:
            draft = _with_macros(draft, scene.standing)
        if preset.book:
            draft = _with_lore(draft, _lore(room, scene))
        draft = replace(draft, context=(*draft.context, *_last_word(room, scene)))
    if people := about(_newest_first(room), room.labels, room.personas):
        draft = replace(draft, context=(Part("people", people, priority=1), *draft.context))
    return draft


def _with_macros(draft: Draft, standing: Macros) -> Draft:
    original = standing.expand(ORIGINAL_SYSTEM)
    system = replace(standing, original=original)
    return replace(
        draft,
        system=tuple(replace(part, text=system.expand(part.text)) for part in draft.system),
        pinned=tuple(_expanded(message, standing) for message in draft.pinned),
    )


def _expanded(message: Message, macros: Macros) -> Message:
    parts = tuple(macros.expand(part) if isinstance(part, str) else part for part in message.parts)
    return replace(message, content=macros.expand(message.content), parts=parts)


def _lore(room: Room, scene: Scene) -> Lore:
    lines = [
        Line(turn, f"{room.labels[turn.speaker.id] if turn.speaker else room.name}: {turn.text}")
        for turn in room.turns
    ]
    if room.preset.book is None:
        raise ValueError("there is no lorebook to ask")
    return lore_of(
        room.preset.book,
        lines,
        max_input_tokens=room.preset.max_input_tokens,
        macros=scene.now,
        seed=room.seed,
        estimate=count_tokens,
    )


def _with_lore(draft: Draft, lore: Lore) -> Draft:
    sections = [part.section for part in draft.system]
    behind_system = sections.index("system") + 1 if "system" in sections else 0
    behind_persona = sections.index("persona") + 1 if "persona" in sections else behind_system
    behind = "\n".join(part.text for part in parts_at(lore, Position.EXAMPLES_BOTTOM))
    return replace(
        draft,
        system=(
            *draft.system[:behind_system],
            *parts_at(lore, Position.BEFORE_CHAR),
            *draft.system[behind_system:behind_persona],
            *parts_at(lore, Position.AFTER_CHAR, Position.EXAMPLES_TOP),
            *draft.system[behind_persona:],
        ),
        pinned=(*draft.pinned, *([Message("system", behind)] if behind else [])),
        history=at_depth(lore, draft.history),
        context=(*homeless(lore, draft.history), *beside_newest(lore), *draft.context),
        left_out=(*draft.left_out, *asleep(lore)),
    )


def _last_word(room: Room, scene: Scene) -> list[Part]:
    text = room.preset.post_history_instructions or ""
    said = scene.now.expand(text) if room.preset.macros else text
    return [Part("post_history", said, needed=True)] if said.strip() else []


def _newest_first(room: Room) -> list[str]:
    return [turn.speaker.id for turn in reversed(room.turns) if turn.speaker]

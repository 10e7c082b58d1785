"""Tell how a message addresses a character: by the platform, by its wake rules, name or quote."""

import unicodedata
from collections.abc import Callable, Sequence
from typing import TypeAlias

from bot.chat.incoming import Quote, Said, WakeReason
from bot.chat.session import Turn
from bot.prompting.presets.preset import Preset
from bot.prompting.text.words import find_word

Dice: TypeAlias = Callable[[], float]
"""Returns a random number from 0 up to 1."""

_MARKUP = "*_~` :"
_SHORTEST_QUOTE_CHARS = 8


def is_addressed(incoming: Said, preset: Preset) -> bool:
    """Return whether the message was sent to the bot in a way that the preset listens to."""
    match incoming.wake:
        case WakeReason.DM | WakeReason.COMMAND:
            return True
        case WakeReason.MENTION:
            return preset.wake.mention
        case WakeReason.REPLY:
            return preset.wake.reply
        case None:
            return False


def wakes_by_own_rules(incoming: Said, preset: Preset, dice: Dice) -> bool:
    """Return whether the preset's own rules make it answer, whoever was addressed."""
    text = incoming.text.casefold()
    return (
        preset.wake.always
        or any(word.casefold() in text for word in preset.wake.words)
        or dice() < preset.wake.chance
    )


def name_position(preset: Preset, text: str) -> int | None:
    """Return where one of the character's names first stands in a text as a word of its own."""
    names = [name for name in (preset.role_name, preset.name, *preset.aliases) if name]
    found = (find_word(_normalized(name), _normalized(text)) for name in names)
    return min((position for position in found if position is not None), default=None)


def quoted_preset(
    quote: Quote | None, recent: Sequence[Turn], presets: Sequence[Preset]
) -> str | None:
    """Return whose message was replied to, by the name in its first line or by its text."""
    text = quote.text.strip() if quote else ""
    if not text:
        return None
    first_line = text.splitlines()[0].strip(_MARKUP).casefold()
    for preset in presets:
        if first_line == preset.character_name.casefold():
            return preset.name
    names = {preset.name for preset in presets}
    for turn in reversed(recent):
        is_part = len(text) >= _SHORTEST_QUOTE_CHARS and text in turn.text
        if turn.preset in names and (turn.text.strip() == text or is_part):
            return turn.preset
    return None


def _normalized(text: str) -> str:
    """Fold case and width, and let `_Nora_` count as the word Nora."""
    return unicodedata.normalize("NFKC", text).casefold().replace("_", " ")

"""Tell how a message addresses a character: by the platform, by its wake rules, name or quote."""

import re
import unicodedata
from collections.abc import Callable, Sequence
from typing import TypeAlias

from bot.chat.incoming import Quote, Said, WakeReason
from bot.chat.session import Turn
from bot.prompting.lorebook.keys import compile_key, is_regex
from bot.prompting.presets.preset import Preset
from bot.prompting.text.words import find_word
from bot.texts.stored import StoredPattern
from bot.texts.text import marked

Dice: TypeAlias = Callable[[], float]
"""Returns a random number from 0 up to 1."""

_MARKUP = "*_~` :"
_LINK = re.compile(r"https?://[!-~]+")  # Chinese goes on behind one without a space
_SHORTEST_QUOTE_CHARS = 8
_WORD = StoredPattern(marked("wakes at {word}"))
DREW_BELOW = StoredPattern(marked("chance: drew {drawn}, below {limit}"))


_MAX_PATTERN_SECONDS = 0.05  # of CPU time: a message must not keep the others waiting


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


def own_rule(incoming: Said, preset: Preset, dice: Dice) -> str | None:
    """Return which of the preset's own rules makes it answer, in words; None if none does."""
    if preset.wake.always:
        return marked("answers everything here")
    word = next((one for one in preset.wake.words if _has_word(one, incoming.own_text)), None)
    if word is not None:
        return _WORD.with_values(word=word)
    drawn = dice()
    if drawn < preset.wake.chance:
        return DREW_BELOW.with_values(drawn=f"{drawn:.2f}", limit=f"{preset.wake.chance:.2f}")
    return None


def is_for_others(incoming: Said, recent: Sequence[Turn], presets: Sequence[Preset]) -> bool:
    """Return whether a message talks to another person or bot: it replies to them or names them.

    A message that begins with a character's name talks to that one, whoever else it mentions.
    """
    if incoming.wake is not None:
        return False
    if any(preset.wake.names and name_position(preset, incoming.text) == 0 for preset in presets):
        return False
    quote = incoming.quote
    is_reply_to_others = (
        quote is not None
        and quote.author is not None
        and not quote.is_ours
        and quoted_preset(quote, recent, presets) is None
    )
    return is_reply_to_others or bool(incoming.mentions)


def continues_thread(incoming: Said, recent: Sequence[Turn], preset: Preset) -> bool:
    """Return whether the message stands in a thread in which the character has answered."""
    if not (incoming.in_thread and preset.wake.sticky):
        return False
    return any(turn.preset == preset.name for turn in recent)


def _has_word(word: str, text: str) -> bool:
    if not is_regex(word):
        return find_word(_normalized(word), _normalized(text)) is not None
    pattern = compile_key(word)
    if isinstance(pattern, str):
        return False
    try:
        return pattern.search(text, timeout=_MAX_PATTERN_SECONDS) is not None
    except TimeoutError:
        return False


def name_position(preset: Preset, text: str) -> int | None:
    """Return where one of the character's names first stands in a text as a word of its own.

    What is part of a link calls nobody.
    """
    text = _LINK.sub(lambda link: " " * len(link[0]), text)
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

"""What a message asks for: a command to carry out, an answer, to be remembered, or nothing."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bot.chat.command import Command
from bot.chat.incoming import Incoming, WakeReason
from bot.prompting.presets.preset import Preset
from bot.prompting.prompters.form_fields import is_ask_command
from bot.routing.command_specs import parse


@dataclass(frozen=True, slots=True)
class Answer:
    """Somebody wants the character to say something."""


@dataclass(frozen=True, slots=True)
class Observe:
    """Said near the character: remembered, not answered."""


@dataclass(frozen=True, slots=True)
class Ignore:
    """Nothing to do, and nothing to keep."""


Decision = Command | Answer | Observe | Ignore


def decide(incoming: Incoming, preset: Preset, dice: Callable[[], float]) -> Decision:
    """`dice` gives a number from 0 up to 1, for presets that chime in by chance."""
    settled = _settled(incoming, [preset])
    if settled is not None:
        return settled
    return Answer() if wakes(incoming, preset, dice) else _unanswered([preset])


def decide_among(incoming: Incoming, room: Sequence[Preset], *, somebody_speaks: bool) -> Decision:
    """The same where several characters are, of whom the scheduler has chosen who speaks."""
    settled = _settled(incoming, room)
    if settled is not None:
        return settled
    return Answer() if somebody_speaks else _unanswered(room)


def _settled(incoming: Incoming, room: Sequence[Preset]) -> Command | Ignore | None:
    """What is a command, or nothing at all, whoever might feel spoken to."""
    if incoming.author_is_bot or not incoming.text.strip():
        return Ignore()
    asks_a_form = any(preset.prompter for preset in room) and is_ask_command(incoming.text)
    if incoming.wake is None or asks_a_form:
        return None
    return parse(incoming.text)


def _unanswered(room: Sequence[Preset]) -> Observe | Ignore:
    return Observe() if any(preset.context == "all" for preset in room) else Ignore()


def wakes(incoming: Incoming, preset: Preset, dice: Callable[[], float]) -> bool:
    """Whether a character that is alone here answers."""
    return called_by_platform(incoming, preset) or wishes(incoming, preset, dice)


def called_by_platform(incoming: Incoming, preset: Preset) -> bool:
    """Whether it was said to the bot, in a way that the preset listens to."""
    match incoming.wake:
        case WakeReason.DM | WakeReason.COMMAND:
            return True
        case WakeReason.MENTION:
            return preset.wake.mention
        case WakeReason.REPLY:
            return preset.wake.reply
        case None:
            return False


def wishes(incoming: Incoming, preset: Preset, dice: Callable[[], float]) -> bool:
    """Whether the preset's own rules make it speak, whoever was spoken to."""
    said = incoming.text.casefold()
    return (
        preset.wake.always
        or any(word.casefold() in said for word in preset.wake.words)
        or dice() < preset.wake.chance
    )

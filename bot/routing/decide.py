"""What a message asks for: a command to carry out, an answer, to be remembered, or nothing."""

from collections.abc import Callable
from dataclasses import dataclass

from bot.chat.command import Command
from bot.chat.incoming import Incoming, Wake
from bot.prompting.preset import Preset
from bot.prompting.slots import asks
from bot.routing.commands import parse


@dataclass(frozen=True, slots=True)
class Answer:
    """Somebody wants the character to say something."""


@dataclass(frozen=True, slots=True)
class Overhear:
    """Said near the character: remembered, not answered."""


@dataclass(frozen=True, slots=True)
class Ignore:
    """Nothing to do, and nothing to keep."""


Decision = Command | Answer | Overhear | Ignore


def decide(incoming: Incoming, preset: Preset, dice: Callable[[], float]) -> Decision:
    """`dice` gives a number from 0 up to 1, for presets that chime in by chance."""
    if incoming.author_is_bot or not incoming.text.strip():
        return Ignore()
    if incoming.wake is not None and not (preset.prompter and asks(incoming.text)):
        command = parse(incoming.text)
        if command is not None:
            return command
    if wakes(incoming, preset, dice):
        return Answer()
    return Overhear() if preset.context == "all" else Ignore()


def wakes(incoming: Incoming, preset: Preset, dice: Callable[[], float]) -> bool:
    match incoming.wake:
        case Wake.DM | Wake.COMMAND:
            return True
        case Wake.MENTION if preset.wake.mention:
            return True
        case Wake.REPLY if preset.wake.reply:
            return True
        case _:
            said = incoming.text.casefold()
            return (
                preset.wake.always
                or any(word.casefold() in said for word in preset.wake.words)
                or dice() < preset.wake.chance
            )

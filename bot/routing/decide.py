"""Decide what to do with a message."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TypeAlias

from bot.chat.attachments import described_text, has_readable_file
from bot.chat.command import ButtonAction, Command, parse
from bot.chat.incoming import MediaItem, Said
from bot.chat.session import Turn
from bot.prompting.presets.preset import Preset
from bot.prompting.prompters import is_ask_command
from bot.routing.presets import ActiveCharacters, ActivePreset
from bot.routing.speakers import Dice, SpeakerCandidate, select_speakers
from bot.texts.text import LANGUAGES, Text, translatable, translate
from bot.value_class import value_class


@value_class
class Answer:
    """Some characters answer the message."""

    speakers: tuple[ActivePreset, ...]
    """At least one, in the order in which they answer."""
    candidates: tuple[SpeakerCandidate, ...]
    """Every active character with the reasons why it answers or not."""


@value_class
class Observe:
    """The message goes into the history; nobody answers it."""

    candidates: tuple[SpeakerCandidate, ...] = ()


@value_class
class Ignore:
    """The message is neither answered nor kept."""

    candidates: tuple[SpeakerCandidate, ...] = ()


@value_class
class Unreadable:
    """The message is for the bot, but nothing in it can be read; its author is told."""

    attachments: tuple[MediaItem, ...]


Decision: TypeAlias = Command | Answer | Observe | Unreadable | Ignore


def decide(
    incoming: Said,
    active: ActiveCharacters,
    recent: Sequence[Turn],
    *,
    dice: Dice,
    now: datetime,
) -> Decision:
    """Decide what happens to a message.

    Args:
        incoming: the message.
        active: the characters of its channel.
        recent: the turns before it, oldest first; only read in groups of characters.
        dice: draws chances; handed in, so that `/preset who` can explain without side effects.
        now: the time that cooldowns are measured to.
    """
    if incoming.author_is_bot:
        return Ignore()
    if incoming.is_late:
        return _decide_late(incoming, active)
    is_empty = not (incoming.text.strip() or has_readable_file(incoming))
    if is_empty and incoming.wake is None and incoming.attachments and active.reads_all:
        return Observe()
    if is_empty:
        is_meant = incoming.wake is not None and incoming.attachments
        return Unreadable(incoming.attachments) if is_meant else Ignore()
    presets = active.presets
    command = _command(incoming, presets)
    if command is not None:
        return command
    candidates = select_speakers(presets, incoming, recent, dice=dice, now=now)
    speakers = active.pick([one.preset for one in candidates if one.chosen])
    if speakers:
        return Answer(speakers, candidates)
    return Observe(candidates) if active.reads_all else Ignore(candidates)


def _decide_late(incoming: Said, active: ActiveCharacters) -> Decision:
    """Remember a message that came too late to be answered; only deletions are still made."""
    command = _command(incoming, active.presets)
    if command is not None:
        return command if command.name == "forget" else Ignore()
    is_kept = incoming.wake is not None or active.reads_all
    return Observe() if is_kept and described_text(incoming).strip() else Ignore()


def _command(incoming: Said, presets: Sequence[Preset]) -> Command | None:
    """Parse a command that is addressed to the bot; `/ask` belongs to presets with a form."""
    has_form = any(preset.prompter for preset in presets)
    if incoming.wake is None or (has_form and is_ask_command(incoming.text)):
        return None
    return replied_command(incoming) or parse(incoming.text)


QUESTIONS: Mapping[ButtonAction, Text] = {
    ButtonAction.NAME: translatable(
        "Who should answer here? Reply to this message with the name of the preset."
    ),
    ButtonAction.ABOUT: translatable(
        "How do you describe yourself here? Reply to this message; clear deletes it."
    ),
}
"""What a person is asked, by the button that asks for it."""
_COMMANDS = {ButtonAction.NAME: "/preset use", ButtonAction.ABOUT: "/me"}


def replied_command(said: Said) -> Command | None:
    """Return the command that a reply to one of the questions stands for; None: it is no reply."""
    quote = said.quote
    if quote is None or not quote.is_ours:
        return None
    text = " ".join(said.text.split())
    if not text or text.startswith("/"):
        return None
    for action, question in QUESTIONS.items():
        if quote.text in {translate(question, language) for language in LANGUAGES}:
            return parse(f"{_COMMANDS[action]} {text}")
    return None

"""A point in a conversation that a preset is tried on."""

from dataclasses import dataclass

from bot.chat.incoming import Said
from bot.chat.session import Session


@dataclass(frozen=True, slots=True)
class Scene:
    """What was said before a message, and the message."""

    before: Session
    said: Said

"""What a command handler gets and gives."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from bot.chat.command import Command
from bot.chat.incoming import Incoming
from bot.chat.outgoing import Attachment
from bot.chat.session import Turn
from bot.routing.active_presets import ActiveCharacters


@dataclass(frozen=True, slots=True)
class CommandRequest:
    """A command, the message that it came with, and the state of its channel."""

    command: Command
    incoming: Incoming
    active: ActiveCharacters
    recent: Sequence[Turn]
    """The newest turns, oldest first; only loaded in groups of characters."""
    now: datetime

    @property
    def argument(self) -> str:
        return self.command.argument

    @property
    def scope(self) -> str:
        """The narrowest scope of the channel: what is set by a command is set for it."""
        return self.incoming.scopes[0]


@dataclass(frozen=True, slots=True)
class CommandResult:
    """The reply to a command, and what is to happen to the conversation."""

    text: str
    new_session: bool = False
    greeting: str | None = None
    """The first line of the history, or the next one; part of the text already."""
    greeter: str | None = None
    """The preset whose greeting it is."""
    deletes_history: bool = False
    """Whether everything said so far is deleted first; what was deleted is put before the text."""
    file: Attachment | None = None
    """A file that is sent along; the text is then one short line."""

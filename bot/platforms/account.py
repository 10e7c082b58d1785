"""What set-up needs from a platform: the bot behind a token, and the sender of a code."""

from typing import Protocol

from bot.frozen_dataclass import frozen_dataclass
from bot.texts.text import Text


@frozen_dataclass
class BotAccount:
    """The bot that a token belongs to."""

    name: str
    link: str
    """The address that opens a chat with it, or invites it to a server."""
    link_title: Text
    """What the address does, for people: "open a chat with it"."""
    notes: tuple[Text, ...] = ()
    """What it may not do at present, and where that is changed."""
    can_receive: bool = True
    """False: the platform ends its connections; `notes` say why."""


@frozen_dataclass
class CodeRequest:
    """How a person sends a code to the bot."""

    words: Text
    link: str | None = None
    """The address that does it at once."""


class AccountSetup(Protocol):
    """One bot account while it is set up; close it at the end."""

    where_from: Text
    """Where people get a token, as the end of a sentence."""

    async def inspect(self) -> BotAccount:
        """Return whose token it is.

        Raises:
            PlatformFatal: the token is malformed, or not accepted.
            PlatformError: the platform cannot be reached, or does not answer.
        """
        ...

    def request_code(self, account: BotAccount, code: str) -> CodeRequest:
        """Say how the first admin sends the code."""
        ...

    async def wait_for_code(self, code: str) -> str:
        """Wait until somebody sends the code to the bot; return the id of the person.

        No message is taken from the service, which may be started later.

        Raises:
            PlatformError: the bot cannot receive messages now; the text says why.
        """
        ...

    async def close(self) -> None: ...

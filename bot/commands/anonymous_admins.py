"""Decide whether admins who write anonymously count as admins in a group.

Telegram shows what they write as said by the group itself, so nobody can tell which of them it was.
They count where an admin with a name has allowed it, and never for what cannot be undone.
"""

from collections.abc import Sequence

from bot.chat.incoming import Address, Person, Request
from bot.commands.request import CommandRequest, CommandResult
from bot.errors import UserError
from bot.ports import ChatSettings
from bot.texts.text import translatable

ALLOW = translatable("allow admins to write anonymously")
_KEY = "anonymous_admins"
_VALUES = {"on": "on", "off": None}


class AnonymousAdmins:
    """The choice of each group; by default they do not count."""

    def __init__(self, chat_settings: ChatSettings) -> None:
        self._chat_settings = chat_settings

    async def are_accepted(self, scopes: Sequence[str]) -> bool:
        """Return whether they count in a channel with these scopes, narrowest first."""
        return await self._chat_settings.resolve(scopes, _KEY) is not None

    async def choose(self, request: CommandRequest) -> CommandResult:
        """Let them count here, or not any more; the author is an admin with a name.

        Raises:
            UserError: there is no such value.
        """
        value = request.argument.lower()
        if value not in _VALUES:
            raise UserError(translatable("Use /settings anonymous on or /settings anonymous off."))
        by, audited = request.incoming.author.id, request.is_audited
        await self._chat_settings.set(request.scope, _KEY, _VALUES[value], by, audited=audited)
        if await self.are_accepted(request.incoming.scopes):
            text = translatable(
                "Admins who write anonymously now count as admins here, but for what cannot be"
                " undone."
            )
        else:
            text = translatable("Admins who write anonymously do not count as admins here.")
        return CommandResult(text, changes_channel=True)


def writes_as_the_group(incoming: Request) -> bool:
    """Return whether the author is shown as the group itself, as anonymous admins are."""
    return is_the_group(incoming.author, incoming.address) and not incoming.is_private


def is_the_group(author: Person, address: Address) -> bool:
    """Return whether somebody is shown as the group of an address itself."""
    return author.id == f"{address.platform}:{address.chat}"

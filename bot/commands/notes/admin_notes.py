"""Decide who reads notes about failing models: a channel of the admins, everybody, or nobody."""

import asyncio
import secrets
from collections.abc import Mapping

import structlog

from bot.chat.incoming import Said, address_of
from bot.chat.outgoing import MessageContent, OutgoingMessage
from bot.commands.request import CommandRequest, CommandResult
from bot.errors import PlatformError, UserError
from bot.ports import ChatSettings, Surface
from bot.texts.text import Text, joined, language_of, translatable, translate

CHOOSE = translatable("choose who reads notes for admins")
_KEY = "admin_notes"
_OFF = "off"
_SEND_SECONDS = 5.0
_log = structlog.get_logger(__name__)


class AdminNotes:
    """The choice of each server or channel; by default notes stand under the answer."""

    def __init__(self, chat_settings: ChatSettings, surfaces: Mapping[str, Surface]) -> None:
        """Take the settings, and the surfaces by `Address.source`; these must not wait."""
        self._chat_settings = chat_settings
        self._surfaces = surfaces

    async def choose(self, request: CommandRequest) -> CommandResult:
        """Send the notes of the whole server here, or no notes of this channel, or inherit.

        Raises:
            UserError: there is no such value.
        """
        incoming, by = request.incoming, request.incoming.author.id
        match request.argument.lower():
            case "here":
                place = incoming.address.channel
                await self._chat_settings.set(incoming.scopes[-1], _KEY, place, by)
                text = translatable(
                    "Notes for admins, such as of a model that fails, now stand here only: those"
                    " of all channels of this server."
                )
            case "off":
                await self._chat_settings.set(request.scope, _KEY, _OFF, by)
                text = translatable("There are no notes for admins here any more.")
            case "inherit":
                for scope in {request.scope, incoming.scopes[-1]}:
                    await self._chat_settings.set(scope, _KEY, None, by)
                text = translatable("Notes for admins stand under the answers they are about.")
            case _:
                raise UserError(
                    translatable(
                        "Use /settings notes here, /settings notes off or /settings notes inherit."
                    )
                )
        return CommandResult(text, changes_channel=True)

    async def take_over(self, said: Said, note: Text) -> bool:
        """Send a note about a channel to where its admins want it.

        Returns:
            Whether it is dealt with; else it belongs under the answer.
        """
        setting = await self._chat_settings.resolve(said.scopes, _KEY)
        if setting is None:
            return False
        if setting.value == _OFF or setting.value == said.address.channel:
            return setting.value == _OFF
        address = address_of(setting.value)
        surface = self._surfaces.get(address.source)
        if surface is None or address.platform != said.address.platform:
            return False
        about = joined([said.address.channel, note], ": ")
        text = translate(about, language_of(said.locale))
        message = OutgoingMessage(address, MessageContent(text), secrets.token_hex(12))
        try:
            async with asyncio.timeout(_SEND_SECONDS):
                await surface.send(message)
        except (PlatformError, TimeoutError) as error:  # /settings why tells it all the same
            _log.warning("admin_note_not_sent", channel=setting.value, reason=str(error))
        return True

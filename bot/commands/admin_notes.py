"""Decide who reads notes about failing models: admins, in a channel or in private, or nobody."""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import structlog

from bot.chat.incoming import Address, Said, address_of
from bot.chat.outgoing import MessageContent, OutgoingMessage
from bot.commands.authority import writes_as_the_group
from bot.commands.request import CommandRequest, CommandResult
from bot.errors import PlatformError, UserError
from bot.ports import ChatSettings, PrivateChats, Surface
from bot.texts.text import Text, joined, language_of, translatable, translate

CHOOSE = translatable("choose who reads notes for admins")
_KEY = "admin_notes"
_OFF = "off"
_SEND_SECONDS = 5.0
_log = structlog.get_logger(__name__)


NoteReaders: TypeAlias = tuple[str | None, tuple[str, ...]]
"""Who reads a note: a channel, or people in private; neither: nobody."""


@dataclass(eq=False)
class AdminNotes:
    """Where each server or channel wants its notes; by default, operators get them in private."""

    chat_settings: ChatSettings
    surfaces: Mapping[str, Surface]
    """By `Address.source`; these must not wait."""
    private_chats: Mapping[str, PrivateChats] = field(default_factory=dict)
    """By `Address.source` as well, of the platforms that have some."""
    operators: Sequence[str] = ()
    """The ids of the people in TROUPE_ADMINS."""
    is_still_admin: Callable[[str, Said], Awaitable[bool | None]] | None = None
    """Returns whether the person with this id is an admin where something was said, or None if that
    is unknown; None: nobody is asked about."""

    async def choose(self, request: CommandRequest) -> CommandResult:
        """Send notes here, to the author, or nowhere, or inherit; raise `UserError` otherwise."""
        incoming = request.incoming
        match request.argument.lower():
            case "here":
                place = incoming.address.channel
                await self._set(request, incoming.scopes[-1], place)
                text = translatable(
                    "Notes for admins, such as about a failing model, now appear only "
                    "here, for all channels of this server."
                )
            case "private":
                if writes_as_the_group(incoming):
                    raise UserError(
                        translatable(
                            "Only an admin who writes under their own name can {action}.",
                            action=CHOOSE,
                        )
                    )
                place = await self._greet_in_private(incoming)
                await self._set(request, incoming.scopes[-1], f"{place} {incoming.author.id}")
                text = translatable(
                    "Notes for admins, such as about a failing model, now go to {name} in "
                    "private, for all channels of this server.",
                    name=incoming.author.name,
                )
            case "off":
                await self._set(request, request.scope, _OFF)
                text = translatable("There are no notes for admins here any more.")
            case "inherit":
                for scope in {request.scope, incoming.scopes[-1]}:
                    await self._set(request, scope, None)
                text = translatable(
                    "Notes for admins go to the operators of this bot in private; if none "
                    "of them can be reached, they appear under the answers they are about."
                )
            case _:
                raise UserError(
                    translatable(
                        "Use /settings notes here, /settings notes private, /settings notes off or"
                        " /settings notes inherit."
                    )
                )
        return CommandResult(text, changes_channel=True)

    async def _set(self, request: CommandRequest, scope: str, value: str | None) -> None:
        by, audited = request.incoming.author.id, request.is_audited
        await self.chat_settings.set(scope, _KEY, value, by, audited=audited)

    async def readers(self, said: Said) -> NoteReaders | None:
        """Return who reads notes about a channel; None: everybody does, under the answer.

        Somebody who chose to read them in private and is no longer an admin gets none: they go
        where they went before that choice.
        """
        setting = await self.chat_settings.resolve(said.scopes, _KEY)
        if setting is not None:
            place, _, person = setting.value.partition(" ")
            may_read = await self._may_read(person, said)
            if may_read is None or ":" not in place:  # "off", or damaged
                return None, ()
            if may_read:
                address = address_of(place)
                is_reachable = address.platform == said.address.platform
                is_elsewhere = place != said.address.channel
                has_surface = is_reachable and address.source in self.surfaces
                return (place, ()) if is_elsewhere and has_surface else None
        if said.is_private and said.author.id in self.operators:
            return None  # nobody else reads what stands under the answer
        people = [one for one in self.operators if one.startswith(f"{said.address.platform}:")]
        has_private_chats = said.address.source in self.private_chats
        return (None, tuple(people)) if people and has_private_chats else None

    async def send(self, readers: NoteReaders, said: Said, note: Text) -> bool:
        """Send a note about a channel; return whether it was sent, or goes where admins chose.

        What cannot be sent there is only logged; /settings why tells it all the same.
        """
        text = translate(joined([said.address.channel, note], ": "), language_of(said.locale))
        channel, people = readers
        if channel is not None:
            await self._try_to_send(address_of(channel), text)
        sent = [await self._write_to(one, said.address.source, text) for one in people]
        return not sent or any(sent)

    async def _may_read(self, person: str, said: Said) -> bool | None:
        """Return whether a private reader of notes is still an admin; None: unknown."""
        if self.is_still_admin is None or not person or said.is_private:
            return True
        may = await self.is_still_admin(person, said)
        if not may:
            _log.warning("admin_note_not_sent", person=person, reason="not known to be an admin")
        return may

    async def _greet_in_private(self, incoming: Said) -> str:
        """Tell the author in private that notes come there; return that channel, or raise."""
        source, chats = incoming.address.source, self.private_chats
        try:
            if source not in chats:
                raise UserError(translatable("There are no private chats here."))
            async with asyncio.timeout(_SEND_SECONDS):
                address = await chats[source].private_chat(incoming.author.id)
                text = translatable(
                    "Notes for admins of {channel}, such as about a failing model, will come here.",
                    channel=incoming.address.channel,
                )
                await self.surfaces[source].send(
                    _message(address, translate(text, language_of(incoming.locale)))
                )
        except (PlatformError, TimeoutError) as error:
            _log.warning("admin_note_not_sent", person=incoming.author.id, reason=str(error))
            raise UserError(
                translatable(
                    "I cannot write to you in private. Send me a message there first, or allow me"
                    " to send you some, and use the command again."
                )
            ) from None
        return address.channel

    async def _write_to(self, person: str, source: str, text: str) -> bool:
        try:
            async with asyncio.timeout(_SEND_SECONDS):
                address = await self.private_chats[source].private_chat(person)
        except (PlatformError, TimeoutError) as error:
            _log.warning("admin_note_not_sent", person=person, reason=str(error))
            return False
        return await self._try_to_send(address, text)

    async def _try_to_send(self, address: Address, text: str) -> bool:
        try:
            async with asyncio.timeout(_SEND_SECONDS):
                await self.surfaces[address.source].send(_message(address, text))
        except (PlatformError, TimeoutError) as error:
            _log.warning("admin_note_not_sent", channel=address.channel, reason=str(error))
            return False
        return True


def _message(address: Address, text: str) -> OutgoingMessage:
    return OutgoingMessage(address, MessageContent(text), secrets.token_hex(12))

"""Send, edit and delete messages in channels of our own database."""

from collections.abc import Callable, Set
from dataclasses import replace
from datetime import UTC, datetime

from typing_extensions import override

from bot.chat.incoming import Address
from bot.chat.outgoing import Limits, MessageContent, OutgoingMessage
from bot.chat.playground.web_channel import WebMessage
from bot.errors import MessageNotFound
from bot.ports import Clock, Surface, WebChannels

PLAIN = Limits(
    max_units=100_000,
    unit="characters",
    seconds_between_edits=0.25,
    typing_seconds=0,
    has_buttons=True,
    shows_faces=True,
)
"""Of a channel that looks like no other platform."""


class WebSurface(Surface):
    """Writes to the store; a message is named by its nonce, so that it is added once.

    Args:
        channels: the store.
        clock: time.
        limits_of: the limits of the platforms that channels look like.
    """

    def __init__(
        self, channels: WebChannels, clock: Clock, limits_of: Callable[[str], Limits | None]
    ) -> None:
        self._channels = channels
        self._clock = clock
        self._limits_of = limits_of
        self._limits: dict[str, Limits] = {}

    def set_look(self, channel_id: str, look: str) -> None:
        """Note which platform a channel looks like: messages are split where that one splits."""
        imitated = self._limits_of(look) if look else None
        if imitated is None:
            self._limits[channel_id] = PLAIN
            return
        # It splits where that platform does. Nothing else holds it back: nobody limits its calls,
        # and a message can be sent again without appearing twice.
        self._limits[channel_id] = replace(
            imitated,
            seconds_between_edits=PLAIN.seconds_between_edits,
            typing_seconds=0,
            chat_calls=(),
            bot_calls=(),
            route_calls=(),
            can_repeat_sends=True,
            repeats_faces=True,
            has_buttons=True,
            asks_by_replies=False,
        )

    @override
    def limits(self, address: Address) -> Limits:
        return self._limits.get(address.chat, PLAIN)

    @override
    async def send(self, message: OutgoingMessage) -> str:
        content = message.content
        sent = WebMessage(
            message.nonce,
            None,
            content.text,
            datetime.fromtimestamp(self._clock.now(), UTC),
            face=content.face,
            buttons=content.buttons,
            menus=content.menus,
            reply_to=message.reply_to,
            file=message.file,
        )
        await self._channels.add(message.address.chat, [sent])
        return message.nonce

    @override
    async def edit(
        self,
        address: Address,
        message_id: str,
        content: MessageContent,
        *,
        interaction: str | None = None,
    ) -> None:
        found = await self._channels.find(address.chat, message_id)
        if found is None:
            raise MessageNotFound(f"no message {message_id}")
        edited = replace(
            found,
            text=content.text,
            face=content.face,
            buttons=content.buttons,
            menus=content.menus,
        )
        if edited != found and not await self._channels.replace(address.chat, edited):
            raise MessageNotFound(f"no message {message_id}")

    @override
    async def delete(self, address: Address, message_id: str) -> None:
        found = await self._channels.find(address.chat, message_id)
        if found is not None:
            await self._channels.replace(address.chat, found.emptied())

    @override
    async def typing(self, address: Address) -> None:
        """Do nothing: an answer is shown as it grows."""

    @override
    async def find(
        self,
        message: OutgoingMessage,
        *,
        after: str | None,
        known: Set[str],
        duplicate_of: str | None = None,
    ) -> str | None:
        found = await self._channels.find(message.address.chat, message.nonce)
        return None if found is None else found.id

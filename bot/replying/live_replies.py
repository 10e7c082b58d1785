"""Open live replies with a typing indicator, and split final texts into parts."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Self, TypeAlias

import structlog

from bot.chat.incoming import Address
from bot.chat.outgoing import Button, Face, Limits, Menu, MessageContent, OutboxRow, OutgoingPart
from bot.chat.session import Claim, InboxMessage, OpenedPart
from bot.errors import PlatformError, RateLimited
from bot.ports import Clock, Delivery, Surface
from bot.replying.answer_parts import PartPlaces, stop_button
from bot.replying.live_reply import LiveReply
from bot.replying.split import split
from bot.storage.conversations import Conversations
from bot.texts.text import Text, language_of, translate

_log = structlog.get_logger(__name__)
_SECONDS_BEFORE_TYPING = 0.5  # an answer that is shown by then costs no call for the indicator
_TYPING_SHARE = 0.8  # of the time that an indicator lasts; then it is sent again

OpenPart: TypeAlias = Callable[[Claim, InboxMessage, OutgoingPart], Awaitable[OpenedPart]]


def _always(_claim: Claim) -> bool:
    return True


@dataclass(eq=False)
class LiveReplies:
    """Knows the surfaces of all platforms, and how what is queued gets delivered."""

    conversations: Conversations
    surfaces: Mapping[str, Surface]
    """By `Address.source`; best-effort ones, whose edits never delay deliveries."""
    delivery: Delivery
    clock: Clock
    is_held: Callable[[Claim], bool] = _always
    """Whether nobody else can hold a claim by now, so that its answer may be shown."""

    def limits(self, address: Address) -> Limits:
        """Return what the channel's platform supports."""
        return self.surfaces[address.source].limits(address)

    def final_parts(
        self, address: Address, text: str, first_part: int = 0, face: Face | None = None
    ) -> tuple[OutgoingPart, ...]:
        """Split a final text into the parts of an answer; none if nothing of it is visible."""
        return final_parts(text, self.limits(address), first_part, face)

    def notice_parts(
        self, address: Address, text: Text, locale: str | None, first_part: int = 0
    ) -> tuple[OutgoingPart, ...]:
        """Translate a text of the service and split it into parts."""
        return self.final_parts(address, translate(text, language_of(locale)), first_part)

    async def open_notice(self, claim: Claim, message: InboxMessage, text: Text) -> None:
        """Reply to a message that waits, before it is its turn; raises `Fenced`, `StoreError`."""
        address = message.incoming.address
        for part in self.notice_parts(address, text, message.incoming.locale):
            opened = await self.conversations.open(claim, message, part)
            self.deliver(address, opened.row)

    def with_buttons(
        self,
        address: Address,
        parts: Sequence[OutgoingPart],
        buttons: tuple[Button, ...],
        menus: tuple[Menu, ...] = (),
    ) -> tuple[OutgoingPart, ...]:
        """Return parts with buttons and menus under the last one, where the platform has them.

        What stands in a thread has none: they stay in the channel, where they are pressed.
        """
        if not parts or not self.limits(address).has_buttons:
            return tuple(parts)
        last = max(at for at, one in enumerate(parts) if one.thread is None)
        content = replace(parts[last].content, buttons=buttons, menus=menus)
        return (*parts[:last], replace(parts[last], content=content), *parts[last + 1 :])

    def deliver(
        self, address: Address, row: OutboxRow | None, *, is_response: bool = False
    ) -> None:
        """Have what was queued for a channel delivered.

        Args:
            address: the channel.
            row: the first of it, if that was taken already.
            is_response: whether it responds to a native command or a press.
        """
        is_urgent = is_response and not self.limits(address).counts_responses
        self.delivery.deliver(address.lane, row, is_urgent=is_urgent)

    @asynccontextmanager
    async def live(
        self,
        claim: Claim,
        message: InboxMessage,
        places: PartPlaces,
        earlier: LiveReply | None = None,
        face: Face | None = None,
        *,
        can_stop: bool = False,
    ) -> AsyncIterator[LiveReply]:
        """Show live updates of an answer until the block ends, and until the first one: typing.

        Args:
            claim: the conversation.
            message: what is answered.
            places: where the answer's parts are sent.
            earlier: the answer that another character gave before; it is shown whole first.
            face: the character that answers.
            can_stop: whether a button under the growing answer ends it.
        """
        address, locale = message.incoming.address, message.incoming.locale
        surface = self.surfaces[address.source]
        has_button = can_stop and self.limits(address).has_buttons
        buttons = stop_button(message.part_name(places.first_part), locale) if has_button else ()
        typing = TypingIndicator(surface, address, self.clock)

        async def open_part(part: OutgoingPart) -> OpenedPart:
            opened = await self.conversations.open(claim, message, part)
            self.deliver(address, opened.row)
            return opened

        async def wait_until_sent(row_id: int) -> str:
            message_id = await self.delivery.wait_until_sent(row_id)
            typing.stop()
            return message_id

        async with (
            typing,
            LiveReply(
                surface,
                address,
                open_part,
                wait_until_sent,
                self.clock,
                places,
                typing.stop,
                language_of(locale),
                buttons,
                earlier,
                face,
                may_edit=lambda: self.is_held(claim),
            ) as live_reply,
        ):
            yield live_reply


@dataclass(eq=False)
class TypingIndicator:
    """Shows in a channel that an answer is coming, until `stop` or the end of the block."""

    surface: Surface
    address: Address
    clock: Clock

    def __post_init__(self) -> None:
        self._seconds = self.surface.limits(self.address).typing_seconds * _TYPING_SHARE
        self._cancel_start: Callable[[], None] | None = None
        self._typing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        if self._seconds > 0:
            self._cancel_start = self.clock.call_later(_SECONDS_BEFORE_TYPING, self._start)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.stop()
        if self._typing is not None:
            await asyncio.wait([self._typing])

    def stop(self) -> None:
        """Stop sending the indicator."""
        if self._cancel_start is not None:
            self._cancel_start()
        if self._typing is not None:
            self._typing.cancel()

    def _start(self) -> None:
        self._typing = asyncio.create_task(self._repeat(), name=f"type {self.address.lane}")

    async def _repeat(self) -> None:
        """Send the indicator until cancelled, whatever the platform refuses."""
        while True:
            pause = self._seconds
            try:
                await self.surface.typing(self.address)
            except RateLimited as error:
                pause = max(pause, error.retry_after_seconds)
            except PlatformError as error:
                _log.debug("typing_not_shown", lane=self.address.lane, reason=str(error))
            await self.clock.sleep(pause)


def final_parts(
    text: str, limits: Limits, first_part: int = 0, face: Face | None = None
) -> tuple[OutgoingPart, ...]:
    """Split a final text into numbered parts; none if nothing of it is visible."""
    texts = enumerate(split(text, limits.below_name(face)), first_part)
    return tuple(OutgoingPart(part, MessageContent(one, face)) for part, one in texts)

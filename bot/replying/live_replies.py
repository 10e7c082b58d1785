"""Open live replies with a typing indicator, and split final texts into parts."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import structlog

from bot.chat.incoming import Address
from bot.chat.outgoing import Limits, OutboxRow, OutgoingPart
from bot.chat.session import Claim, InboxMessage
from bot.errors import PlatformError, RateLimited
from bot.ports import Clock, Conversations, Delivery, Surface
from bot.replying.live_reply import LiveReply
from bot.replying.splitting.split import split

_log = structlog.get_logger(__name__)
_TYPING_SHARE = 0.8  # of the time that an indicator lasts; then it is sent again


class LiveReplies:
    """Knows the surfaces of all platforms, and how what is queued gets delivered."""

    def __init__(
        self,
        conversations: Conversations,
        surfaces: Mapping[str, Surface],
        delivery: Delivery,
        clock: Clock,
    ) -> None:
        """Take the ways out.

        Args:
            conversations: queues the first message of a part.
            surfaces: by `Address.source`; best-effort ones, whose edits never delay deliveries.
            delivery: sends rows, and says which message a row became.
            clock: time.
        """
        self._conversations = conversations
        self._surfaces = surfaces
        self._delivery = delivery
        self._clock = clock

    def limits(self, address: Address) -> Limits:
        """Return what the channel's platform supports."""
        return self._surfaces[address.source].limits(address)

    def final_parts(
        self, address: Address, text: str, first_part: int = 0
    ) -> tuple[OutgoingPart, ...]:
        """Split a final text into the parts of an answer; none if nothing of it is visible."""
        return final_parts(text, self.limits(address), first_part)

    def deliver(self, address: Address, row: OutboxRow | None) -> None:
        """Have what was queued for a channel delivered; `row` if it was taken already."""
        self._delivery.deliver(address.lane, row)

    @asynccontextmanager
    async def live(
        self, claim: Claim, message: InboxMessage, first_part: int
    ) -> AsyncIterator[LiveReply]:
        """Show the typing indicator and live updates of an answer until the block ends."""
        address = message.incoming.address
        surface = self._surfaces[address.source]

        async def open_part(part: OutgoingPart) -> int:
            opened = await self._conversations.open(claim, message, part)
            self.deliver(address, opened.row)
            return opened.row_id

        typing = asyncio.create_task(keep_typing(surface, address, self._clock))
        try:
            async with LiveReply(
                surface, address, open_part, self._delivery.wait_until_sent, self._clock, first_part
            ) as live_reply:
                yield live_reply
        finally:
            typing.cancel()
            await asyncio.wait([typing])


def final_parts(text: str, limits: Limits, first_part: int = 0) -> tuple[OutgoingPart, ...]:
    """Split a final text into numbered parts; none if nothing of it is visible."""
    texts = enumerate(split(text, limits), first_part)
    return tuple(OutgoingPart(part, one, limits.placeholder) for part, one in texts)


async def keep_typing(surface: Surface, address: Address, clock: Clock) -> None:
    """Repeat the typing indicator until cancelled, whatever the platform refuses."""
    seconds = surface.limits(address).typing_seconds * _TYPING_SHARE
    while seconds > 0:
        pause = seconds
        try:
            await surface.typing(address)
        except RateLimited as error:
            pause = max(pause, error.retry_after_seconds)
        except PlatformError as error:
            _log.debug("typing_not_shown", lane=address.lane, reason=str(error))
        await clock.sleep(pause)

"""Open the live view of an answer: typing until its first words, then a message that grows."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager

from bot.chat.incoming import Address
from bot.chat.outgoing import Limits, OutgoingPart
from bot.chat.session import Claim, InboxMessage
from bot.ports import Clock, Conversations, Surface
from bot.replying.stream import LiveReply, keep_typing


class LiveReplies:
    """`surfaces` are those of live, unhurried edits; `arrival` gives the message of a row."""

    def __init__(
        self,
        conversations: Conversations,
        surfaces: Mapping[str, Surface],
        arrival: Callable[[int], Awaitable[str]],
        wake_lanes: Callable[[Sequence[str]], Awaitable[None]],
        clock: Clock,
    ) -> None:
        self._conversations = conversations
        self._surfaces = surfaces
        self._arrival = arrival
        self._wake_lanes = wake_lanes
        self._clock = clock

    def limits(self, address: Address) -> Limits:
        """What a message there may be."""
        return self._surfaces[address.platform].limits(address)

    async def wake_lane(self, address: Address) -> None:
        """Have what was queued for an address delivered."""
        await self._wake_lanes([address.lane])

    @asynccontextmanager
    async def live(
        self, claim: Claim, heard: InboxMessage, first_part: int
    ) -> AsyncIterator[LiveReply]:
        """Show an answer while it grows. When the block ends, nothing live is under way."""
        address = heard.incoming.address
        surface = self._surfaces[address.platform]

        async def open_part(opening: OutgoingPart) -> int:
            row = await self._conversations.open(claim, heard, opening)
            await self.wake_lane(address)
            return row

        typing = asyncio.create_task(keep_typing(surface, address, self._clock))
        try:
            async with LiveReply(
                surface, address, open_part, self._arrival, self._clock, first_part
            ) as live:
                yield live
        finally:
            typing.cancel()
            await asyncio.wait([typing])

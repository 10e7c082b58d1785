"""Stand-ins that keep the ports' promises: a clock moved by hand, a chat that can be asked."""

import asyncio
import heapq
import itertools
from collections import deque
from collections.abc import Set

from typing_extensions import override

from bot.chat.incoming import Address
from bot.chat.outgoing import Limits
from bot.errors import PlatformError, Vanished
from bot.ports import Clock, Surface

CHAT = Address("discord", "1")
LIMITS = Limits(
    max_units=2000, unit="characters", seconds_between_edits=1.2, typing_seconds=10, burst=5
)
_ROUNDS = 20  # of the event loop, in which whoever was woken goes on to its next wait


class FakeClock(Clock):
    """Time stands still until a test lets it pass."""

    def __init__(self, now: float = 1_700_000_000.0) -> None:
        self._now = now
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._order = itertools.count()

    @override
    def now(self) -> float:
        return self._now

    @override
    def monotonic(self) -> float:
        return self._now

    @override
    async def sleep(self, seconds: float) -> None:
        wake = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._now + seconds, next(self._order), wake))
        await wake

    async def advance(self, seconds: float) -> None:
        """Let time pass; each sleeper wakes at its own moment and goes on before the next."""
        end = self._now + seconds
        await settle()
        while self._sleepers and self._sleepers[0][0] <= end:
            at, _, wake = heapq.heappop(self._sleepers)
            self._now = max(self._now, at)
            if not wake.done():
                wake.set_result(None)
                await settle()
        self._now = end


async def settle() -> None:
    """Let every task go on until it waits for something."""
    for _ in range(_ROUNDS):
        await asyncio.sleep(0)


class FakeSurface(Surface):
    """A chat: messages by id, in order; `calls` says what was asked; `refuse` makes it fail."""

    def __init__(self, limits: Limits = LIMITS) -> None:
        self.messages: dict[str, str] = {}
        self.calls: list[tuple[str, str]] = []  # ("edit", "the text"), ...
        self.hold: asyncio.Event | None = None  # when set: calls wait for it
        self._limits = limits
        self._ids = itertools.count(1)
        self._by_nonce: dict[str, str] = {}
        self._refusals: dict[str, deque[PlatformError]] = {}

    def refuse(self, call: str, *errors: PlatformError) -> None:
        """Fail the next calls of this name with these errors, before anything happened."""
        self._refusals.setdefault(call, deque()).extend(errors)

    @override
    def limits(self, address: Address) -> Limits:
        return self._limits

    @override
    async def send(
        self,
        address: Address,
        text: str,
        *,
        nonce: str,
        reply_to: str | None,
        interaction: str | None,
    ) -> str:
        await self._called("send", text)
        if self._limits.placeholder is None and nonce in self._by_nonce:
            return self._by_nonce[nonce]
        message_id = self._by_nonce[nonce] = str(next(self._ids))
        self.messages[message_id] = text
        return message_id

    @override
    async def edit(self, address: Address, message_id: str, text: str) -> None:
        await self._called("edit", text)
        if message_id not in self.messages:
            raise Vanished(f"no message {message_id}")
        self.messages[message_id] = text

    @override
    async def delete(self, address: Address, message_id: str) -> None:
        await self._called("delete", message_id)
        self.messages.pop(message_id, None)

    @override
    async def typing(self, address: Address) -> None:
        await self._called("typing", "")

    @override
    async def find(
        self, address: Address, text: str, *, after: str | None, known: Set[str]
    ) -> str | None:
        await self._called("find", text)
        ids = [one for one in self.messages if after is None or int(one) > int(after)]
        return next((one for one in ids if self.messages[one] == text and one not in known), None)

    async def _called(self, call: str, text: str) -> None:
        self.calls.append((call, text))
        if self.hold is not None:
            await self.hold.wait()
        if self._refusals.get(call):
            raise self._refusals[call].popleft()

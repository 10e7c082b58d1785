"""Show an answer while it grows: opened once, then edited at the pace of the platform.

A delta costs an append. The text is joined and split only when an edit is due, by time: a reader
does not see more edits than that, and a chat's limit does not allow more.
"""

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self

import structlog

from bot.chat.incoming import Address
from bot.chat.outgoing import Limits, Outgoing
from bot.errors import PlatformError
from bot.ports import Clock, Surface
from bot.replying.split import split

_log = structlog.get_logger(__name__)
_SECONDS_BEFORE_OPENING = 0.8  # at most: an answer that is whole by then is sent whole
_LONGEST_PAUSE_SECONDS = 10.0
_MOST_STRIKES = 3


def final(text: str, limits: Limits) -> tuple[Outgoing, ...]:
    """Give the parts of an answer as they are to read in the end."""
    pieces = split(text, limits)
    return tuple(Outgoing(part, piece, limits.placeholder) for part, piece in enumerate(pieces))


async def keep_typing(surface: Surface, address: Address, clock: Clock) -> None:
    """Show that an answer is being written until cancelled; should it fail, nobody is harmed."""
    seconds = surface.limits(address).typing_seconds
    while seconds > 0:
        try:
            await surface.typing(address)
        except PlatformError as error:
            _log.debug("typing_not_shown", reason=str(error))
        await clock.sleep(seconds)


class LiveReply:
    """Feed it the answer; while its block runs, readers see it grow.

    Live edits are a courtesy: they may fail and fall behind, because the whole text goes out
    through the outbox in the end. When the block is left none is under way any more, so that
    nothing live ever comes after the final text.

    `open_part(opening)` queues the first message of a part and gives its outbox row, `arrival(row)`
    waits for the platform's id of it.
    """

    def __init__(
        self,
        surface: Surface,
        address: Address,
        open_part: Callable[[Outgoing], Awaitable[int]],
        arrival: Callable[[int], Awaitable[str]],
        clock: Clock,
    ) -> None:
        self._surface = surface
        self._address = address
        self._open_part = open_part
        self._arrival = arrival
        self._clock = clock
        self._limits = surface.limits(address)
        self._deltas: list[str] = []
        self._begun = asyncio.Event()
        self._editing = asyncio.Lock()
        self._message_ids: list[str] = []  # of each part that is open
        self._shown: list[str] = []  # the text of each of them
        self._strikes = 0

    def feed(self, text: str) -> None:
        if text:
            self._deltas.append(text)
            self._begun.set()

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._show_growing(), name="live reply")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            async with self._editing:  # an edit under way comes to its end
                self._task.cancel()
        finally:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _show_growing(self) -> None:
        if not self._limits.can_edit:
            return
        await self._begun.wait()
        pause = self._limits.seconds_between_edits
        await self._clock.sleep(min(pause, _SECONDS_BEFORE_OPENING))
        while self._strikes < _MOST_STRIKES:
            try:
                await self._show("".join(self._deltas))
                self._strikes = 0
                pause = self._limits.seconds_between_edits
            except PlatformError as error:
                self._strikes += 1
                pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)
                _log.info("live_edit_failed", reason=str(error), strikes=self._strikes)
            await self._clock.sleep(pause)

    async def _show(self, text: str) -> None:
        for part, piece in enumerate(split(text, self._limits)):
            if part == len(self._message_ids):
                await self._open(part, piece)
            if self._shown[part] != piece:
                async with self._editing:
                    await self._surface.edit(self._address, self._message_ids[part], piece)
                self._shown[part] = piece

    async def _open(self, part: int, piece: str) -> None:
        opening = piece if self._limits.placeholder is None else self._limits.placeholder
        row = await self._open_part(Outgoing(part, opening))
        self._message_ids.append(await self._arrival(row))
        self._shown.append(opening)

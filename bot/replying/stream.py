"""Show an answer while it grows: no work for each delta, edits at the pace of the platform.

Live edits are a courtesy. What the reader has in the end comes from `final`, through the outbox;
so whatever goes wrong here slows down or stops the show and nothing else.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self

import structlog

from bot.chat.incoming import Address
from bot.chat.outgoing import Limits, OutgoingPart
from bot.chat.prompt import QueuePosition
from bot.errors import PlatformError, RateLimited, StoreError
from bot.ports import Clock, Surface
from bot.replying.splitting.split import split

_log = structlog.get_logger(__name__)
_WHOLE_SECONDS = 0.25  # an answer that is whole by then is sent whole: one request, not two
_FIRST_CHARS = 30  # after that a message is opened with so many characters or ...
_FIRST_SECONDS = 1.0  # ... so long after the first of them
_LOOK_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 10.0
_MOST_FAILURES = 3
_TYPING_SHARE = 0.8  # of the time an indicator lasts, after which it is shown again


def final(text: str, limits: Limits, first_part: int = 0) -> tuple[OutgoingPart, ...]:
    """The parts of an answer as they should read in the end; none for a blank text."""
    pieces = enumerate(split(text, limits), first_part)
    return tuple(OutgoingPart(part, piece, limits.placeholder) for part, piece in pieces)


async def keep_typing(surface: Surface, address: Address, clock: Clock) -> None:
    """Show that an answer is being written until cancelled; a refusal is no reason to stop."""
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


def queue_notice(waiting: QueuePosition) -> str:
    """What somebody in line is told."""
    first = (
        "You are next" if waiting.position == 1 else f"You are number {waiting.position} in line"
    )
    if waiting.seconds is None:
        return f"⏳ {first} …"
    return f"⏳ {first}, about {max(1, math.ceil(waiting.seconds))} s …"


class StreamBuffer:
    """What was written so far, and when to show it next, by a clock that never goes back."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._chunks: list[str] = []
        self._chars = 0
        self._notice = ""
        self._since: float | None = None  # when the text that was never shown began
        self._shown = False
        self._fresh = False
        self._pace = limits.seconds_between_edits
        self._not_before = -math.inf

    def feed(self, text: str, now: float) -> None:
        """Add what the model said."""
        self._chunks.append(text)
        self._chars += len(text)
        self._fresh = True
        if self._since is None or self._since == -math.inf:
            self._since = now

    def announce(self, notice: str) -> None:
        """Show this until there is something of the answer."""
        if self._chars == 0 and notice != self._notice:
            self._notice = notice
            self._fresh = True
            self._since = -math.inf

    def seconds_until_due(self, now: float) -> float:
        """How long to wait before the text should be shown: 0 when it should be shown now."""
        if not self._fresh or self._since is None:
            return math.inf
        wait = self._not_before - now
        if not self._shown:
            patience = _WHOLE_SECONDS if self._chars >= _FIRST_CHARS else _FIRST_SECONDS
            patience = min(patience, self._limits.seconds_between_edits)
            wait = max(wait, self._since + patience - now)
        return max(0.0, wait)

    def pieces(self, now: float) -> list[str]:
        """Take the text as messages; the next ones are due one pace later."""
        text = "".join(self._chunks)
        self._chunks = [text]
        text = text or self._notice
        self._fresh = False
        self._shown = True
        self._not_before = now + self._pace
        return split(text, self._limits)

    def slow_down(self, now: float, retry_after_seconds: float = 0.0) -> None:
        """The platform refused: go half as fast, and wait at least so long."""
        self._pace = min(self._pace * 2, max(_LONGEST_PAUSE_SECONDS, self._pace))
        self._not_before = now + max(self._pace, retry_after_seconds)
        self._fresh = True  # what was refused is still to be shown

    def recover(self) -> None:
        """The platform took an edit: back to its normal pace."""
        self._pace = self._limits.seconds_between_edits


class LiveReply:
    """Shows one answer while it is being made; when the block ends, no edit is under way.

    `open_part` queues the first message of a part and gives its row in the outbox; `arrival` waits
    for the row to be sent and gives the message's id. What they raise besides `PlatformError` and
    `StoreError` (`Fenced`: somebody else answers now) is raised by `feed` or at the end. The parts
    are counted from `first_part`: others may have answered the same message before.
    """

    def __init__(
        self,
        surface: Surface,
        address: Address,
        open_part: Callable[[OutgoingPart], Awaitable[int]],
        arrival: Callable[[int], Awaitable[str]],
        clock: Clock,
        first_part: int = 0,
    ) -> None:
        self._first_part = first_part
        self._surface = surface
        self._address = address
        self._open_part = open_part
        self._arrival = arrival
        self._clock = clock
        self._limits = surface.limits(address)
        self._growing = StreamBuffer(self._limits)
        self._rows: list[int] = []
        self._message_ids: list[str] = []
        self._shown: list[str] = []
        self._fresh = asyncio.Event()
        self._request = asyncio.Lock()  # held while something is under way that must end in order
        self._showing: asyncio.Task[None] | None = None

    @property
    def opened(self) -> int:
        """How many parts were queued to be opened."""
        return len(self._rows)

    def feed(self, text: str) -> None:
        """Add what the model said; costs next to nothing."""
        if not text:
            return
        self._growing.feed(text, self._clock.monotonic())
        self._fresh.set()
        if self._showing is not None and self._showing.done():
            self._showing.result()

    def announce(self, waiting: QueuePosition) -> None:
        """Show how one waits until the answer begins, which takes its place."""
        self._growing.announce(queue_notice(waiting))
        self._fresh.set()

    async def __aenter__(self) -> Self:
        if self._limits.can_edit:
            self._showing = asyncio.create_task(self._show(), name=f"show {self._address.lane}")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        showing = self._showing
        if showing is None:
            return
        try:
            # A request is never cancelled under way: it could arrive after the final text.
            async with self._request:
                showing.cancel()
        finally:
            showing.cancel()
            await asyncio.wait([showing])
        failure = None if showing.cancelled() else showing.exception()
        if error is None and failure is not None:
            raise failure

    async def _show(self) -> None:
        failures = 0
        while failures < _MOST_FAILURES:
            await self._fresh.wait()
            wait = self._growing.seconds_until_due(self._clock.monotonic())
            if wait > 0:
                # The first words may become enough to show at any moment.
                await self._clock.sleep(wait if self._rows else min(wait, _LOOK_SECONDS))
                continue
            try:
                await self._show_parts()
            except RateLimited as error:  # no failure: the platform says when to come again
                self._slow_down(error.retry_after_seconds)
            except (PlatformError, StoreError) as error:
                failures += 1
                _log.warning("live_edit_failed", lane=self._address.lane, reason=str(error))
                self._slow_down()
            else:
                failures = 0
                self._growing.recover()
        _log.warning("live_edits_stopped", lane=self._address.lane)

    def _slow_down(self, retry_after_seconds: float = 0.0) -> None:
        self._growing.slow_down(self._clock.monotonic(), retry_after_seconds)
        self._fresh.set()

    async def _show_parts(self) -> None:
        """Bring every part up to date, in order."""
        pieces = self._take()
        part = 0
        while part < len(pieces):
            if part == len(self._message_ids):
                await self._open(part, pieces[part])
                if self._limits.placeholder is not None:
                    pieces = self._take()  # what arrived meanwhile is shown along
                    continue
            elif self._shown[part] != pieces[part]:
                async with self._request:
                    message_id = self._message_ids[part]
                    await self._surface.edit(self._address, message_id, pieces[part])
                self._shown[part] = pieces[part]
            part += 1

    def _take(self) -> list[str]:
        self._fresh.clear()
        return self._growing.pieces(self._clock.monotonic())

    async def _open(self, part: int, piece: str) -> None:
        text = self._limits.placeholder or piece
        if part == len(self._rows):
            async with self._request:
                self._rows.append(
                    await self._open_part(OutgoingPart(self._first_part + part, text))
                )
        self._message_ids.append(await self._arrival(self._rows[part]))
        self._shown.append(text)

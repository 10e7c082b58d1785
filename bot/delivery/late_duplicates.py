"""Delete duplicates: messages that the platform accepted after the sender had retried them.

A send whose outcome is unknown is looked up after the settle time, and retried if the message is
missing. If the platform accepts the first request after that, the chat has two copies. So a minute
later, while nobody else sends to the chat, the sender searches once more. Pending searches are lost
when the process ends (docs/delivery.md#unknown-outcomes).
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import structlog

from bot.chat.outgoing import OutboxRow
from bot.errors import PlatformError, Refused, StoreError
from bot.ports import Clock, Surface
from bot.runtime.http_client import write_only_if
from bot.runtime.in_process import BoundedDict
from bot.storage.outbox import SqlOutbox
from bot.telemetry.logs import BoundTurn
from bot.value_class import value_class

_log = structlog.get_logger(__name__)
_LATE_SECONDS = 60.0
"""How late a platform may accept a message that a search did not find."""
_SEARCH_SECONDS = 15.0
"""No request is made after this time; the lane is held for longer."""
_POLL_SECONDS = 1.0
_RETRY_SECONDS = 30.0  # each search holds the lane
_GIVE_UP_SECONDS = 3600.0
_MAX_REMEMBERED = 1000
_MAX_CHATS = 8  # searched at once


@value_class
class _Repeated:
    """A row that was sent a second time because its message was not found."""

    row: OutboxRow
    """As it was first sent; a growing answer is longer by now."""
    copies: int
    """The number of other requests that may still be accepted."""
    due_at: float
    """When to search, by the monotonic clock."""
    given_up_at: float


@dataclass(eq=False)
class LateDuplicates:
    """Finds and deletes the second copies of retried messages."""

    outbox: SqlOutbox
    surfaces: Mapping[str, Surface]
    clock: Clock
    find: Callable[[OutboxRow, str | None], Awaitable[str | None]]
    """Looks for a copy of a row other than the message with this id."""

    def __post_init__(self) -> None:
        self._repeated = BoundedDict[int, _Repeated](_MAX_REMEMBERED)  # by row
        self._is_expected = asyncio.Event()

    def note_search(self, row: OutboxRow, found: str | None) -> None:
        """Record a search's result: None, or the message that an earlier search missed."""
        known = self._repeated.pop(row.id, None)
        if known is None and found is not None:
            return
        due_at = self.clock.monotonic() + _LATE_SECONDS
        first = known or _Repeated(row, 0, due_at, due_at)
        self._repeated[row.id] = replace(
            first,
            copies=first.copies + (found is None),
            due_at=due_at,
            given_up_at=due_at + _GIVE_UP_SECONDS,
        )
        self._is_expected.set()

    async def run(self, wake: Callable[[Sequence[str]], None]) -> None:
        """Run due searches until cancelled; `wake` resumes the lanes that they held."""
        while True:
            if not self._repeated:
                self._is_expected.clear()
                await self._is_expected.wait()
                continue
            now = self.clock.monotonic()
            due = {
                one.row.address.lane: one for one in self._repeated.values() if one.due_at <= now
            }
            async with asyncio.TaskGroup() as group:
                for repeated in list(due.values())[:_MAX_CHATS]:
                    group.create_task(self._settle(repeated, wake))
            if not due:
                await self.clock.sleep(_POLL_SECONDS)

    async def _settle(self, repeated: _Repeated, wake: Callable[[Sequence[str]], None]) -> None:
        row, is_done = repeated.row, False
        with BoundTurn(row.turn):
            try:
                is_done = await self._search_alone(repeated, wake)
            except Refused as error:
                _log.warning("late_duplicate_not_deleted", row=row.id, reason=str(error))
                is_done = True
            except (PlatformError, StoreError) as error:
                _log.info("late_duplicate_search_postponed", row=row.id, reason=str(error))
        if self._repeated.get(row.id) is not repeated:  # there is something newer to search for
            return
        due_at = self.clock.monotonic() + _RETRY_SECONDS
        if is_done or due_at > repeated.given_up_at:
            del self._repeated[row.id]
        else:
            self._repeated[row.id] = replace(repeated, due_at=due_at)

    async def _search_alone(
        self, repeated: _Repeated, wake: Callable[[Sequence[str]], None]
    ) -> bool:
        """Search while nobody else sends to the chat; return False if it must be retried."""
        # A search would take a message that is being sent for a copy.
        lane = repeated.row.address.lane
        latest = self.clock.monotonic() + _SEARCH_SECONDS
        held = await self.outbox.hold_lane(lane)
        if held is None:
            return False
        try:
            with write_only_if(lambda: self.clock.monotonic() <= latest):
                return await self._delete_copies(repeated)
        finally:
            await self.outbox.release_lane(lane, held)
            wake([lane])

    async def _delete_copies(self, repeated: _Repeated) -> bool:
        row = repeated.row
        sent = await self.outbox.sent_ids([row.id])  # perhaps by another process
        if row.id not in sent:
            return False
        sent_as = sent[row.id]
        for _ in range(repeated.copies if sent_as is not None else 0):
            found = await self.find(row, sent_as)
            if found is None:
                break
            with write_only_if(lambda: True):  # never too late for that
                await self.surfaces[row.address.source].delete(row.address, found)
            _log.warning("late_duplicate_deleted", row=row.id, lane=row.address.lane)
        return True

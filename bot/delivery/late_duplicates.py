"""Delete duplicates: messages that the platform accepted after the sender had retried them.

If the outcome of a request is unknown, the sender waits for the settle time, searches the chat for
the message, and sends it again if it is missing. If the platform then accepts the first request
after all, the chat has two copies. So the sender searches once more a minute later, while nothing
else is sent to the chat. Pending searches are lost when the process ends
(docs/delivery.md#unknown-outcomes).
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import structlog

from bot.chat.outgoing import OutboxRow
from bot.errors import PlatformError, Refused, StoreError
from bot.ports import Clock, Surface
from bot.runtime.http_client import send_only_if
from bot.runtime.in_process import BoundedDict
from bot.storage.outbox import SqlOutbox
from bot.telemetry.logs import TurnLogContext
from bot.value_class import value_class

_log = structlog.get_logger(__name__)
_SECONDS_UNTIL_LATE_SEARCH = 60.0
"""The delay before the second search; a message that the first one missed may appear by then."""
_SEARCH_TIMEOUT_SECONDS = 15.0
"""The time limit for the requests of one search; the lane's lease is longer."""
_POLL_SECONDS = 1.0
_RETRY_SECONDS = 30.0  # not less, because nothing else is sent to the chat during a search
_SECONDS_UNTIL_GIVE_UP = 3600.0
_MAX_RESENT_ROWS = 1000
_MAX_CONCURRENT_SEARCHES = 8


@value_class
class _ResentRow:
    """A row that was sent again because its message was not found in the chat."""

    row: OutboxRow
    """The row as it was first sent; a live answer may be longer now."""
    unsettled_send_count: int
    """The number of earlier requests that the platform may still accept."""
    due_at: float
    """When to search again, by the monotonic clock."""
    give_up_at: float


@dataclass(eq=False)
class LateDuplicateRemover:
    """Finds and deletes duplicates of messages that were sent again."""

    outbox: SqlOutbox
    surfaces: Mapping[str, Surface]
    clock: Clock
    find_message: Callable[[OutboxRow, str | None], Awaitable[str | None]]
    """Searches a row's chat for its message, except for one with this id; returns the id found."""

    def __post_init__(self) -> None:
        self._resent_rows = BoundedDict[int, _ResentRow](_MAX_RESENT_ROWS)  # by row id
        self._has_pending_search = asyncio.Event()

    def record_search(self, row: OutboxRow, message_id: str | None) -> None:
        """Record a search for a row's message; if it was not found, schedule a later search."""
        earlier_resent_row = self._resent_rows.pop(row.id, None)
        if earlier_resent_row is None and message_id is not None:
            return
        due_at = self.clock.monotonic() + _SECONDS_UNTIL_LATE_SEARCH
        resent_row = earlier_resent_row or _ResentRow(row, 0, due_at, due_at)
        self._resent_rows[row.id] = replace(
            resent_row,
            unsettled_send_count=resent_row.unsettled_send_count + (message_id is None),
            due_at=due_at,
            give_up_at=due_at + _SECONDS_UNTIL_GIVE_UP,
        )
        self._has_pending_search.set()

    async def run(self, wake_lanes: Callable[[Sequence[str]], None]) -> None:
        """Run due searches until cancelled. Each pauses its chat; `wake_lanes` resumes it."""
        while True:
            if not self._resent_rows:
                self._has_pending_search.clear()
                await self._has_pending_search.wait()
                continue
            now = self.clock.monotonic()
            due_rows = [one for one in self._resent_rows.values() if one.due_at <= now]
            due_rows_by_lane = {one.row.address.lane: one for one in due_rows}
            async with asyncio.TaskGroup() as group:
                for resent_row in list(due_rows_by_lane.values())[:_MAX_CONCURRENT_SEARCHES]:
                    group.create_task(self._run_due_search(resent_row, wake_lanes))
            if not due_rows:
                await self.clock.sleep(_POLL_SECONDS)

    async def _run_due_search(
        self, resent_row: _ResentRow, wake_lanes: Callable[[Sequence[str]], None]
    ) -> None:
        row, is_done = resent_row.row, False
        with TurnLogContext(row.turn_name):
            try:
                is_done = await self._search_while_lane_is_held(resent_row, wake_lanes)
            except Refused as error:
                _log.warning("late_duplicate_not_deleted", row=row.id, reason=str(error))
                is_done = True
            except (PlatformError, StoreError) as error:
                _log.info("late_duplicate_search_postponed", row=row.id, reason=str(error))
        if self._resent_rows.get(row.id) is not resent_row:  # a newer search is scheduled
            return
        due_at = self.clock.monotonic() + _RETRY_SECONDS
        if is_done or due_at > resent_row.give_up_at:
            del self._resent_rows[row.id]
        else:
            self._resent_rows[row.id] = replace(resent_row, due_at=due_at)

    async def _search_while_lane_is_held(
        self, resent_row: _ResentRow, wake_lanes: Callable[[Sequence[str]], None]
    ) -> bool:
        """Delete duplicates while nothing else is sent to the chat; return whether this worked."""
        # Without holding the lane, a message that is just being sent would look like a duplicate.
        lane = resent_row.row.address.lane
        deadline = self.clock.monotonic() + _SEARCH_TIMEOUT_SECONDS
        lease_end = await self.outbox.hold_lane(lane)
        if lease_end is None:
            return False
        try:
            with send_only_if(lambda: self.clock.monotonic() <= deadline):
                return await self._delete_copies(resent_row)
        finally:
            await self.outbox.release_lane(lane, lease_end)
            wake_lanes([lane])

    async def _delete_copies(self, resent_row: _ResentRow) -> bool:
        row = resent_row.row
        sent_ids = await self.outbox.find_sent_ids([row.id])  # perhaps by another process
        if row.id not in sent_ids:
            return False
        message_id = sent_ids[row.id]
        for _ in range(resent_row.unsettled_send_count if message_id is not None else 0):
            copy_id = await self.find_message(row, message_id)
            if copy_id is None:
                break
            with send_only_if(lambda: True):  # delete even if the process was suspended meanwhile
                await self.surfaces[row.address.source].delete(row.address, copy_id)
            _log.warning("late_duplicate_deleted", row=row.id, lane=row.address.lane)
        return True

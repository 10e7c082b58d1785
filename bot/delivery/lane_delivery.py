"""Have the outbox delivered: by the sender of this process, or by those of other processes."""

from collections.abc import Callable, Sequence

from typing_extensions import override

from bot.chat.outgoing import OutboxRow
from bot.delivery.sender import Sender
from bot.delivery.sent_rows import SentRows
from bot.ports import Delivery
from bot.runtime.keyed_worker_pool import KeyedWorkerPool


class LaneDelivery(Delivery):
    """Hands rows to the sender through its worker pool."""

    def __init__(self, sender: Sender, lanes: KeyedWorkerPool[OutboxRow]) -> None:
        self._sender = sender
        self._lanes = lanes

    @override
    def deliver(self, lane: str, row: OutboxRow | None, *, is_urgent: bool = False) -> None:
        if row is None:
            self._lanes.wake([lane], is_urgent=is_urgent)
        else:
            self._lanes.start(lane, row)

    @override
    async def wait_until_sent(self, row_id: int) -> str:
        return await self._sender.sent_rows.wait(row_id)


class RemoteDelivery(Delivery):
    """Leaves rows to the senders in other processes."""

    def __init__(
        self,
        wake: Callable[[Sequence[str]], None],
        wake_urgent: Callable[[Sequence[str]], None],
        sent_rows: SentRows,
    ) -> None:
        self._wake = wake
        self._wake_urgent = wake_urgent
        self._sent_rows = sent_rows

    @override
    def deliver(self, lane: str, row: OutboxRow | None, *, is_urgent: bool = False) -> None:
        wake = self._wake_urgent if is_urgent else self._wake
        wake([lane])  # no row is taken here

    @override
    async def wait_until_sent(self, row_id: int) -> str:
        return await self._sent_rows.wait(row_id)

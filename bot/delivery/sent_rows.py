"""Wait until a row of the outbox was sent, by this or another process."""

import asyncio
import math
from collections.abc import Sequence

from bot.errors import AnswerRefused
from bot.ports import Signals
from bot.storage.outbox import SqlOutbox

_TOPIC = "sent_rows"
_POLL_SECONDS = 1.0  # a signal may be lost


class SentRows:
    """The rows that somebody waits for.

    The outbox is asked for all of them in one query a second, so a thousand cost as much as one.
    """

    def __init__(self, outbox: SqlOutbox, poll_seconds: float = _POLL_SECONDS) -> None:
        self._outbox = outbox
        self._poll_seconds = poll_seconds
        self._arrivals: dict[int, asyncio.Future[str | None]] = {}
        self._asks_at = -math.inf

    async def wait(self, row_id: int) -> str:
        """Wait until any process has sent a row; return the id of the message.

        Raises:
            AnswerRefused: the row will never be sent.
            StoreError: the outbox cannot be asked.
        """
        loop = asyncio.get_running_loop()
        arrival = self._arrivals.setdefault(row_id, loop.create_future())
        try:
            while not arrival.done():
                await asyncio.wait([arrival], timeout=self._poll_seconds)
                if not arrival.done() and loop.time() >= self._asks_at:
                    self._asks_at = loop.time() + self._poll_seconds
                    await self._ask()
            external_id = arrival.result()
        finally:
            self._arrivals.pop(row_id, None)
        if external_id is None:
            raise AnswerRefused("the first message of the answer was refused")
        return external_id

    async def _ask(self) -> None:
        """Look up every row that is waited for, in one query."""
        for row_id, external_id in (await self._outbox.sent_ids([*self._arrivals])).items():
            self.note(row_id, external_id)

    def note(self, row_id: int, external_id: str | None) -> None:
        """Note the message that a row became; None: it will never be sent."""
        arrival = self._arrivals.get(row_id)
        if arrival is not None and not arrival.done():
            arrival.set_result(external_id)


def publish_sent_row(signals: Signals, row_id: int, external_id: str | None) -> None:
    """Tell the other processes which message a row became."""
    signals.publish(_TOPIC, [f"{row_id}:{external_id or ''}"])


def follow_sent_rows(signals: Signals, rows: SentRows) -> None:
    """Note in `rows` what other processes have sent."""

    def receive(keys: Sequence[str]) -> None:
        for key in keys:
            row_id, _, external_id = key.partition(":")
            rows.note(int(row_id), external_id or None)

    signals.subscribe(_TOPIC, receive)

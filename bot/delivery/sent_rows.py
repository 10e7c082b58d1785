"""Tell who waits for a row of the outbox, here or in another process, which message it became."""

import asyncio
from collections.abc import Sequence, Set

from bot.errors import AnswerRefused
from bot.ports import Outbox, Signals

_TOPIC = "sent_rows"
_POLL_SECONDS = 1.0  # a signal may be lost


class SentRows:
    """The rows that somebody waits for; the outbox is asked as well, every second."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._arrivals: dict[int, asyncio.Future[str | None]] = {}

    @property
    def waited_for(self) -> Set[int]:
        """The ids of the rows that somebody waits for."""
        return self._arrivals.keys()

    async def wait(self, row_id: int) -> str:
        """Wait until this or another process has sent a row; return the message's id.

        Raises:
            AnswerRefused: The row will never be sent.
        """
        arrival = self._arrivals.setdefault(row_id, asyncio.get_running_loop().create_future())
        try:
            while True:
                done, _ = await asyncio.wait([arrival], timeout=_POLL_SECONDS)
                external_id = arrival.result() if done else await self._outbox.external_id(row_id)
                if external_id is not None:
                    return external_id
                if done:
                    raise AnswerRefused("the first message of the answer was refused")
        finally:
            self._arrivals.pop(row_id, None)

    def note(self, row_id: int, external_id: str | None) -> None:
        """Note the message that a row became; None: it never will be one."""
        arrival = self._arrivals.get(row_id)
        if arrival is not None and not arrival.done():
            arrival.set_result(external_id)


class SentRowSignals:
    """Passes on, by signals, which rows were sent: for workers that do not send themselves."""

    def __init__(self, signals: Signals) -> None:
        self._signals = signals

    def publish(self, row_id: int, external_id: str | None) -> None:
        """Tell the other processes which message a row became."""
        self._signals.publish(_TOPIC, [f"{row_id}:{external_id or ''}"])

    def subscribe(self, rows: SentRows) -> None:
        """Note in `rows` what other processes have sent."""

        def receive(keys: Sequence[str]) -> None:
            for key in keys:
                row_id, _, external_id = key.partition(":")
                rows.note(int(row_id), external_id or None)

        self._signals.subscribe(_TOPIC, receive)

"""Where answering is paused: what is asked there becomes background instead of being answered.

A signal tells every process of a change, and a row of the database those that missed it.
"""

import asyncio
import contextlib
from collections.abc import Sequence

import structlog

from bot.chat.console.operation import Pause
from bot.errors import StoreError
from bot.ports import Pauses, Signals

PAUSES_TOPIC = "pauses"
_log = structlog.get_logger(__name__)
_LOOK_SECONDS = 2.0


class AnsweringPauses:
    """What this process knows of the pauses.

    Args:
        pauses: the rows.
        signals: tell of changes.
    """

    def __init__(self, pauses: Pauses, signals: Signals) -> None:
        self._pauses = pauses
        self._current: Sequence[Pause] = ()
        self._changed = asyncio.Event()
        signals.subscribe(PAUSES_TOPIC, lambda _keys: self._changed.set())

    def covers(self, conversation: str) -> bool:
        """Return whether questions in a conversation, by its key, are not answered."""
        return any(one.covers(conversation) for one in self._current)

    async def refresh(self) -> None:
        """Read the rows; raises `StoreError`."""
        before, self._current = self._current, await self._pauses.current()
        scopes = [one.scope for one in self._current]
        if set(self._current) - set(before):
            _log.info("answering_paused", scopes=scopes)
        if set(before) - set(self._current):
            _log.info("answering_resumed", paused=scopes)

    async def run(self) -> None:
        """Follow the rows until cancelled."""
        while True:
            self._changed.clear()
            try:
                await self.refresh()
            except StoreError as error:
                _log.warning("store_failed", reason=str(error))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_SECONDS):
                    await self._changed.wait()

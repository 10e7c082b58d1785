"""Where nothing is answered: pauses, and messages from before a restore."""

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import structlog

from bot.chat.incoming import Incoming, Said, address_of
from bot.chat.operation import Pause, Restore
from bot.chat.session import InboxMessage
from bot.errors import StoreError
from bot.ports import Signals
from bot.storage.operation import Pauses
from bot.storage.restoring import Restores

PAUSES_TOPIC = "pauses"
_log = structlog.get_logger(__name__)
_LOOK_SECONDS = 2.0


@dataclass(eq=False)
class AnsweringPauses:
    """What this process knows of the pauses."""

    pauses: Pauses
    signals: Signals

    def __post_init__(self) -> None:
        self._current: Sequence[Pause] = ()
        self._changed = asyncio.Event()
        self.signals.subscribe(PAUSES_TOPIC, lambda _keys: self._changed.set())

    def covers(self, conversation: str) -> bool:
        """Return whether questions in a conversation, by its key, are not answered."""
        return any(one.covers(conversation) for one in self._current)

    async def refresh(self) -> None:
        """Read the rows; raises `StoreError`."""
        before, self._current = self._current, await self.pauses.current()
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


@dataclass(eq=False)
class RestoredMessages:
    """Knows which messages are from before the restore."""

    restores: Restores

    def __post_init__(self) -> None:
        self._newest: Restore | None = None

    async def load(self) -> None:
        """Read whether the database was restored; raises `StoreError`."""
        newest = await self.restores.newest()
        if newest is not None:  # histories of one channel share its messages
            forgotten = {(address_of(key).channel, name) for key, name in newest.forgotten}
            newest = replace(newest, forgotten=frozenset(forgotten))
        self._newest = newest

    def is_context(self, message: InboxMessage) -> bool:
        """Return whether a message has been answered before, as far as anybody knows."""
        newest = self._newest
        return newest is not None and message.incoming.at.timestamp() <= newest.answered_until

    def is_void(self, said: Said) -> bool:
        """Return whether a message was followed or forgotten before, so that nothing is done."""
        newest = self._newest
        if newest is None or (at := said.at.timestamp()) > newest.answered_until:
            return False
        if said.wake is not None and said.text.startswith("/"):
            return True  # its effect is in the backup or in the tombstones, or is nothing to repeat
        channel, key = said.address.channel, said.address.conversation
        until = max(newest.forgotten_until.get(one, 0.0) for one in (key, channel))
        return at <= until or self._is_forgotten(channel, said.message_id)

    def keep(self, event: Incoming) -> Incoming | None:
        """Return what to store of an event that a platform delivers; None: nothing of it."""
        if self._newest is None or not isinstance(event, Said):
            return event
        if self.is_void(event):
            return None
        quote = event.quote
        if quote is not None and self._is_forgotten(event.address.channel, quote.message_id):
            quote = replace(quote, text="", attachments=())
        return replace(event, quote=quote)

    def _is_forgotten(self, channel: str, message_id: str | None) -> bool:
        newest = self._newest
        return newest is not None and (channel, message_id or "") in newest.forgotten

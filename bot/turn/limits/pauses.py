"""Pauses of answering: which conversations wait, who is told, and what is too old afterwards.

A signal tells every process of a change, and a row of the database those that missed it.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Sequence

import structlog

from bot.chat.console.operation import CONTEXT_AFTER_SECONDS, Pause
from bot.chat.session import InboxMessage
from bot.errors import StoreError
from bot.ports import Pauses, Signals
from bot.texts.text import language_of, translatable, translate
from bot.turn.arrivals import CONVERSATIONS

PAUSES_TOPIC = "pauses"
_log = structlog.get_logger(__name__)
_LOOK_SECONDS = 2.0
_LOOKS_BETWEEN_CLAIMS = 15
_MESSAGES_PER_LOOK = 500
_NOTICE = translatable(
    "⏸ I am paused at the moment. I keep what you write: when I go on, I answer what is younger"
    " than 5 minutes, and remember the rest."
)


class AnsweringPauses:
    """What this process knows of the pauses.

    Args:
        pauses: the rows.
        signals: tell of changes.
        go_on: called when a pause has ended; wakes what has waited.
    """

    def __init__(
        self, pauses: Pauses, signals: Signals, go_on: Callable[[], Awaitable[None]]
    ) -> None:
        self._pauses = pauses
        self._go_on = go_on
        self._current: Sequence[Pause] = ()
        self._ended: Sequence[Pause] = ()
        self._changed = asyncio.Event()
        self._told: set[str] = set()
        self._told_to = 0
        """The number of the last message whose author needs no notice any more."""
        self._looked_at: set[str] = set()
        self._looks = 0
        signals.subscribe(PAUSES_TOPIC, lambda _keys: self._changed.set())
        signals.subscribe(CONVERSATIONS, self._looked_at.difference_update)

    def covers(self, conversation: str) -> bool:
        """Return whether a conversation, by its key, has to wait."""
        return any(one.covers(conversation) for one in self._current)

    def may_claim(self, conversation: str) -> bool:
        """Return whether to claim a conversation: during a pause, to look for what deletes."""
        return conversation not in self._looked_at or not self.covers(conversation)

    def note_claims(self, conversations: Iterable[str]) -> None:
        """Note which of these, if they are paused, were looked at and need no look before long."""
        self._looked_at.update(key for key in conversations if self.covers(key))

    @property
    def is_any(self) -> bool:
        """Whether anything is paused."""
        return bool(self._current)

    def is_context(self, message: InboxMessage) -> bool:
        """Return whether a message waited for the end of a pause for too long to be answered."""
        return any(
            one.covers(message.incoming.address.conversation)
            and one.ended_at is not None
            and one.ended_at - message.received_at > CONTEXT_AFTER_SECONDS
            for one in self._ended
        )

    async def refresh(self) -> None:
        """Read the rows; raises `StoreError`."""
        before = {one.id for one in self._current}
        recent = await self._pauses.recent()
        self._current = [one for one in recent if one.ended_at is None]
        self._ended = [one for one in recent if one.ended_at is not None]
        now = {one.id for one in self._current}
        if now - before:
            self._told_to = 0
            self._looked_at.clear()
            _log.info("answering_paused", scopes=[one.scope for one in self._current])
        if before - now:
            self._told = {name for name in self._told if _pause_of(name) in now}
            _log.info("answering_resumed", paused=[one.scope for one in self._current])
            await self._go_on()

    async def run(self) -> None:
        """Follow the rows and tell who waits, until cancelled."""
        while True:
            self._changed.clear()
            self._looks += 1
            if self._looks % _LOOKS_BETWEEN_CLAIMS == 0:  # the signal of a deletion may be lost
                self._looked_at.clear()
            try:
                await self.refresh()
                if self._current:
                    await self.tell_waiting()
            except StoreError as error:
                _log.warning("store_failed", reason=str(error))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_SECONDS):
                    await self._changed.wait()

    async def tell_waiting(self) -> None:
        """Send one notice for each pause and channel in which somebody has asked something."""
        waiting = await self._pauses.waiting(self._told_to, _MESSAGES_PER_LOOK)
        for one in waiting:
            said = one.said
            if said.wake is None or said.author_is_bot or one.is_in_progress:
                continue
            covering = [each for each in self._current if each.covers(said.address.conversation)]
            name = f"pause-{covering[0].id}:{said.address.channel}" if covering else None
            if name is not None and name not in self._told:
                text = translate(_NOTICE, language_of(said.locale))
                await self._pauses.queue_notice(name, said.address, text, said.message_id)
                self._told.add(name)
        held = [one.number for one in waiting if one.is_in_progress]
        if waiting:
            self._told_to = min(held) - 1 if held else waiting[-1].number


def _pause_of(notice: str) -> int:
    """Return the number of the pause that a notice is about, from its name."""
    return int(notice.partition(":")[0].removeprefix("pause-"))

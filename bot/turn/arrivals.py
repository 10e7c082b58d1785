"""Signals about new messages, and polling where signals may be missed."""

from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import structlog

from bot.chat.incoming import Incoming
from bot.errors import StoreError
from bot.ports import Clock, Signals
from bot.storage.inbox import SqlInbox
from bot.turn.stops import StopRequests

CONVERSATIONS = "conversations"
"""The topic of the signals that wake conversations."""


class ArrivalSignals:
    """Watches the conversations that are in progress here."""

    def __init__(self, signals: Signals) -> None:
        self._watched: dict[str, bool] = {}  # whether something arrived
        self._listeners: defaultdict[str, list[Callable[[], None]]] = defaultdict(list)
        signals.subscribe(CONVERSATIONS, self.note)

    def watch(self, conversations: Collection[str]) -> None:
        """Watch from now on; called before the database is read."""
        for key in conversations:
            self._watched[key] = False

    def unwatch(self, conversations: Collection[str]) -> None:
        """Stop watching."""
        for key in conversations:
            self._watched.pop(key, None)

    def has_arrived(self, conversation: str) -> bool:
        """Return whether something was received since the conversation is watched."""
        return self._watched.get(conversation, False)

    def subscribe(self, conversation: str, on_arrival: Callable[[], None]) -> Callable[[], None]:
        """Call `on_arrival` from now on, at once if something arrived before.

        It must not block or raise.

        Returns:
            What ends that.
        """
        listeners = self._listeners[conversation]
        listeners.append(on_arrival)
        if self.has_arrived(conversation):
            on_arrival()

        def unsubscribe() -> None:
            listeners.remove(on_arrival)
            if not listeners:
                del self._listeners[conversation]

        return unsubscribe

    def note(self, conversations: Sequence[str]) -> None:
        """Note that something was received for these conversations."""
        for key in conversations:
            if key in self._watched:
                self._watched[key] = True
            for on_arrival in self._listeners.get(key, ()):
                on_arrival()


_log = structlog.get_logger(__name__)
_LOOK_SECONDS = 2.0
_MAX_EVENTS = 500
_MAX_OF_CONVERSATION = 20
"""A long queue in one of them hides no stop in another one."""


@dataclass(eq=False)
class MissedSignals:
    """Reads the inbox of all answers in progress, every two seconds, in one query."""

    inbox: SqlInbox
    stops: StopRequests
    arrivals: ArrivalSignals
    clock: Clock

    def __post_init__(self) -> None:
        self._seen: frozenset[tuple[str, str]] = frozenset()

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await self.clock.sleep(_LOOK_SECONDS)
            try:
                await self.look()
            except StoreError as error:
                _log.warning("store_failed", reason=str(error))

    async def look(self) -> None:
        """Act on stops, edits and further messages that nobody told this process of."""
        conversations = list(self.stops.in_progress)
        events: Sequence[Incoming] = ()
        if conversations:
            events = await self.inbox.waiting(conversations, _MAX_EVENTS, _MAX_OF_CONVERSATION)
        missed = [
            one
            for one in events
            if _key(one) not in self._seen and not self.stops.is_being_answered(one)
        ]
        self._seen = frozenset(map(_key, events))
        self.stops.consider(missed)
        self.arrivals.note([one.address.conversation for one in missed])


def _key(event: Incoming) -> tuple[str, str]:
    return event.address.source, event.external_key

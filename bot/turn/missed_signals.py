"""Find what arrived for the answers in progress although its signal was lost."""

from collections.abc import Sequence

import structlog

from bot.chat.incoming import Incoming
from bot.errors import StoreError
from bot.ports import Clock, Inbox
from bot.turn.arrivals import ArrivalSignals
from bot.turn.stops import StopRequests

_log = structlog.get_logger(__name__)
_LOOK_SECONDS = 2.0
_MAX_EVENTS = 500
_MAX_OF_CONVERSATION = 20
"""A long queue in one of them hides no stop in another one."""


class MissedSignals:
    """Reads the inbox of all answers in progress, every two seconds, in one query."""

    def __init__(
        self, inbox: Inbox, stops: StopRequests, arrivals: ArrivalSignals, clock: Clock
    ) -> None:
        self._inbox = inbox
        self._stops = stops
        self._arrivals = arrivals
        self._clock = clock
        self._seen: frozenset[tuple[str, str]] = frozenset()

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await self._clock.sleep(_LOOK_SECONDS)
            try:
                await self.look()
            except StoreError as error:
                _log.warning("store_failed", reason=str(error))

    async def look(self) -> None:
        """Act on stops, edits and further messages that nobody told this process of."""
        conversations = list(self._stops.in_progress)
        events: Sequence[Incoming] = ()
        if conversations:
            events = await self._inbox.waiting(conversations, _MAX_EVENTS, _MAX_OF_CONVERSATION)
        missed = [
            one
            for one in events
            if _key(one) not in self._seen and not self._stops.is_being_answered(one)
        ]
        self._seen = frozenset(map(_key, events))
        self._stops.consider(missed)
        self._arrivals.note([one.address.conversation for one in missed])


def _key(event: Incoming) -> tuple[str, str]:
    return event.address.source, event.external_key

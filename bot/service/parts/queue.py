"""What comes before answering: arrivals, stops, pauses, a restore."""

from collections.abc import Mapping, Sequence
from functools import cached_property

from bot.chat.button import ANSWERING_ACTIONS, read_button
from bot.chat.command import parse
from bot.chat.incoming import Incoming, Pressed, Said, source_of
from bot.intake.intake import InboxIntake
from bot.ports import Platform
from bot.runtime.keyed_worker_pool import urgent_topic
from bot.service.parts.requests import RequestParts
from bot.service.parts.run_context import RunContext
from bot.service.parts.stored import StoredParts
from bot.storage.restoring.restores import SqlRestores
from bot.turn.arrivals import CONVERSATIONS, ArrivalSignals
from bot.turn.limits.pauses import AnsweringPauses
from bot.turn.limits.restored_messages import RestoredMessages
from bot.turn.stops import StopRequests


class QueueParts:
    """What says which conversations this process is to answer."""

    def __init__(
        self,
        context: RunContext,
        stored: StoredParts,
        requests: RequestParts,
        platforms: Mapping[str, Platform],
    ) -> None:
        self._context = context
        self._stored = stored
        self._requests = requests
        self._platforms = platforms

    @cached_property
    def stops(self) -> StopRequests:
        signals = self._context.resources.signals
        admins = self._requests.admins
        return StopRequests(signals, admins.is_known_admin, admins.note)

    @cached_property
    def arrivals(self) -> ArrivalSignals:
        return ArrivalSignals(self._context.resources.signals)

    @cached_property
    def pauses(self) -> AnsweringPauses:
        signals = self._context.resources.signals
        return AnsweringPauses(self._stored.pauses, signals)

    @cached_property
    def restored(self) -> RestoredMessages:
        database = self._context.resources.database
        return RestoredMessages(SqlRestores(database, self._context.clock))

    def wake(self, keys: Sequence[str]) -> None:
        """Tell all processes that conversations have unanswered messages."""
        self._context.resources.signals.publish(CONVERSATIONS, keys)

    def announce(self, messages: Sequence[Incoming]) -> None:
        """Tell all processes what overtakes other messages, before it is woken.

        A stop ends an answer at once, and commands and most buttons ask for no place among the
        answers.
        """
        self.stops.announce(messages)
        keys = [one.address.conversation for one in messages if _is_urgent(one)]
        if keys:
            self._context.resources.signals.publish(urgent_topic(CONVERSATIONS), keys)

    async def receive(self, events: Sequence[Incoming]) -> None:
        """Store what this process itself makes for other conversations."""
        router = self._requests.history_router
        intake = InboxIntake(self._stored.inbox, self.wake, router=router)
        await intake.receive(events, {})

    async def find_ready(self, limit: int) -> Sequence[str]:
        """Return conversations with unanswered messages on the platforms of this process."""
        return await self._stored.conversations.ready(limit, self._platforms.keys())

    def answerable(self, keys: Sequence[str]) -> Sequence[str]:
        """Return those that this process can answer, of conversations that were signalled.

        The signals of all processes arrive here, also those for bots that only others serve.
        """
        return [key for key in keys if source_of(key) in self._platforms]


def _is_urgent(event: Incoming) -> bool:
    match event:
        case Said(text=text):
            return parse(text) is not None
        case Pressed():
            button = read_button(event)
            return button is not None and button.action not in ANSWERING_ACTIONS
        case _:
            return False

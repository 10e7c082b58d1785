"""Tell who works on a conversation that something was received for it meanwhile.

The signal that wakes conversations says so; where it is lost, what arrived is found afterwards.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Sequence

from bot.ports import Signals

CONVERSATIONS = "conversations"
"""The topic of the signals that wake conversations."""


class ArrivalSignals:
    """Watches the conversations that are in progress here."""

    def __init__(self, signals: Signals) -> None:
        self._watched: dict[str, bool] = {}  # whether something arrived
        self._listeners: defaultdict[str, list[Callable[[], None]]] = defaultdict(list)
        signals.subscribe(CONVERSATIONS, self.note)

    def watch(self, conversations: Collection[str]) -> None:
        """Watch from now on, before what is there is read from the database."""
        for key in conversations:
            self._watched[key] = False

    def unwatch(self, conversations: Collection[str]) -> None:
        """Do not watch any more."""
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

"""How far each channel was heard: a cursor never passes a message that is not stored."""

from collections.abc import Iterable, Mapping, Set

PREFIX = "discord:"
CONNECTED = "discord:connected"


class ChannelCursors:
    """What is stored, and what may be stored along with the next messages."""

    def __init__(self) -> None:
        self._stored: dict[int, int] = {}
        self._passed: dict[int, int] = {}
        self._held: set[int] = set()
        self.connected: int | None = None  # when the last session began that missed nothing

    @property
    def stored(self) -> Mapping[int, int]:
        """The channels that something was ever kept of, and the newest message of each."""
        return self._stored

    def learn(self, stored: Mapping[str, str]) -> None:
        """Take over what the store knows, by its own names."""
        for name, value in stored.items():
            if name == CONNECTED:
                self.connected = int(value)
            else:
                self._stored[int(name.removeprefix(PREFIX))] = int(value)
        self._held.clear()

    def hold(self, channels: Iterable[int]) -> None:
        """Leave these where they are until the next `learn`: older messages are missing."""
        self._held.update(channels)

    def due(self, heard: Iterable[tuple[int, int]], kept: Set[int]) -> dict[int, int]:
        """Give the cursors to store along with these messages, as (channel, message) in `heard`.

        A channel that nothing was ever kept of has none: a server full of bots costs no rows.
        """
        due = dict(self._passed)
        for channel, message in heard:
            if channel in kept or channel in self._stored:
                due[channel] = max(message, due.get(channel, 0))
        return {
            channel: message
            for channel, message in due.items()
            if channel not in self._held and message > self._stored.get(channel, 0)
        }

    def passed(self, due: Mapping[int, int]) -> None:
        """Nothing had to be kept: store these with whatever comes next."""
        self._passed.update(due)

    def kept(self, due: Mapping[int, int]) -> None:
        """These are stored."""
        for channel, message in due.items():
            self._stored[channel] = message
            if self._passed.get(channel, 0) <= message:
                self._passed.pop(channel, None)


def to_stored_names(due: Mapping[int, int]) -> dict[str, str]:
    """Name cursors as the store does."""
    return {f"{PREFIX}{channel}": str(message) for channel, message in due.items()}

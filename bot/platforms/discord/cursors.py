"""A cursor per channel: the newest message up to which everything is stored."""

from collections.abc import Iterable, Mapping, Set

from bot.chat.incoming import source_name


class ChannelCursors:
    """The stored cursors, and those to store together with the next messages.

    Args:
        bot_id: what the addresses of the bot carry; each bot has cursors of its own.
    """

    def __init__(self, bot_id: str = "") -> None:
        self.prefix = f"{source_name('discord', bot_id)}:"
        self.connected_name = f"{self.prefix}connected"
        self._stored: dict[int, int] = {}
        self._pending: dict[int, int] = {}
        self._frozen: set[int] = set()
        self.connected: int | None = None
        """The snowflake at which the last session started that missed nothing."""

    @property
    def stored(self) -> Mapping[int, int]:
        """The newest stored message of each channel that anything was stored of."""
        return self._stored

    def load(self, stored: Mapping[str, str]) -> None:
        """Replace all cursors with those of the store, given by their stored names."""
        for name, value in stored.items():
            if name == self.connected_name:
                self.connected = int(value)
            else:
                self._stored[int(name.removeprefix(self.prefix))] = int(value)
        self._frozen.clear()

    def freeze(self, channels: Iterable[int]) -> None:
        """Keep these cursors where they are until the next `load`: messages are missing there."""
        self._frozen.update(channels)

    def due(self, received: Iterable[tuple[int, int]], kept: Set[int]) -> dict[int, int]:
        """Return the cursors to store together with a batch of messages.

        A channel of which nothing was ever stored has none: a server full of bots costs no rows.

        Args:
            received: the channel and id of every message, ours to store or not.
            kept: the channels of those that will be stored.
        """
        due = dict(self._pending)
        for channel, message in received:
            if channel in kept or channel in self._stored:
                due[channel] = max(message, due.get(channel, 0))
        return {
            channel: message
            for channel, message in due.items()
            if channel not in self._frozen and message > self._stored.get(channel, 0)
        }

    def postpone(self, due: Mapping[int, int]) -> None:
        """Store these cursors with the next batch: this one had nothing to store."""
        self._pending.update(due)

    def mark_stored(self, due: Mapping[int, int]) -> None:
        """Note that these cursors are stored."""
        for channel, message in due.items():
            self._stored[channel] = message
            if self._pending.get(channel, 0) <= message:
                self._pending.pop(channel, None)

    def to_stored_names(self, due: Mapping[int, int]) -> dict[str, str]:
        """Return cursors by the names that they are stored under."""
        return {f"{self.prefix}{channel}": str(message) for channel, message in due.items()}

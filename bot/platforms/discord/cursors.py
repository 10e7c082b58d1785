"""A cursor per channel: the newest message up to which everything is stored."""

from collections.abc import Iterable, Mapping, Set
from datetime import datetime, timedelta

from discord.utils import snowflake_time, time_snowflake

from bot.chat.incoming import source_name

_MAX_REORDERING = timedelta(seconds=60)  # of messages in different channels


class ChannelCursors:
    """The stored cursors, and those to store together with the next messages.

    Args:
        bot_id: what the addresses of the bot carry; each bot has cursors of its own.
    """

    def __init__(self, bot_id: str = "") -> None:
        self.prefix = f"{source_name('discord', bot_id)}:"
        self._connected_name = f"{self.prefix}connected"
        self._catching_up_name = f"{self.prefix}catching_up"
        self._stored: dict[int, int] = {}
        self._pending: dict[int, int] = {}
        self._frozen: set[int] = set()
        self._connected: int | None = None  # when the last session started that missed nothing
        self._catching_up = 0  # since when messages may be missing, while not all were fetched

    @property
    def stored(self) -> Mapping[int, int]:
        """The newest stored message of each channel that anything was stored of."""
        return self._stored

    def load(self, stored: Mapping[str, str]) -> None:
        """Replace all cursors with those of the store, given by their stored names."""
        for name, value in stored.items():
            if name == self._connected_name:
                self._connected = int(value)
            elif name == self._catching_up_name:
                self._catching_up = int(value)
            else:
                self._stored[int(name.removeprefix(self.prefix))] = int(value)
        self._frozen.clear()

    def fully_received_until(self) -> int | None:
        """Return the snowflake before which no channel misses a message; None at the first start.

        While messages were missing, the newest stored one says nothing of other channels.
        """
        if self._catching_up:
            return self._catching_up
        marks = [self._connected] if self._connected else []
        if self._stored:
            newest = snowflake_time(max(self._stored.values()))
            marks.append(time_snowflake(newest - _MAX_REORDERING))
        return max(marks, default=None)

    def catch_up_begins(self) -> dict[str, str]:
        """Note that messages may be missing, and return what to store before any is fetched."""
        self._catching_up = self.fully_received_until() or 0
        return {self._catching_up_name: str(self._catching_up)}

    def catch_up_ended(self, session_at: datetime) -> dict[str, str]:
        """Note that none is missing up to this session, and return what to store."""
        self._catching_up, self._connected = 0, time_snowflake(session_at)
        return {self._catching_up_name: "0", self._connected_name: str(self._connected)}

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

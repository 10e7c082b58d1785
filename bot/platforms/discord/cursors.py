"""A cursor per channel: the newest message up to which everything is stored.

Several shards of a bot keep rows of their own, which name the guild of each channel: the newest
message of one shard says nothing about the channels of another.
"""

from collections.abc import Iterable, Mapping, Set
from datetime import datetime, timedelta

from discord.utils import snowflake_time, time_snowflake

from bot.chat.incoming import source_name
from bot.platforms.discord.shards.shard import Shard
from bot.platforms.stored_cursors import read_cursors, read_number, to_number

_MAX_REORDERING = timedelta(seconds=60)  # of messages in different channels
_ONLY = Shard()


class ChannelCursors:
    """The stored cursors, and those to store together with the next messages.

    Args:
        bot_id: what the addresses of the bot carry; each bot has cursors of its own.
        shard: whose channels these are.
    """

    def __init__(self, bot_id: str = "", shard: Shard = _ONLY) -> None:
        source = source_name("discord", bot_id)
        self.prefix = f"{source}:"
        """Of the rows of a bot with one shard."""
        self.shards_prefix = f"shards {source}:"
        """Of the rows of a bot with several shards, and of sessions."""
        self._shard = shard
        self._marks = self.prefix if shard.is_alone else f"{self.shards_prefix}{shard.name} "
        self.session_name = f"{self.shards_prefix}{shard.name} session"
        self.identified_name = f"{self.shards_prefix}{shard.name} identified"
        self._stored: dict[int, int] = {}
        self._guilds: dict[int, int] = {}
        self._pending: dict[int, int] = {}
        self._frozen: set[int] = set()
        self._connected: int | None = None  # when the last session started that missed nothing
        self._catching_up = 0  # since when messages may be missing, while not all were fetched

    @property
    def stored(self) -> Mapping[int, int]:
        """The newest stored message of each channel that anything was stored of."""
        return self._stored

    @property
    def misses_nothing(self) -> bool:
        """Whether everything up to the stored session was fetched, so that it can be resumed."""
        return self._connected is not None and not self._catching_up

    def load(self, stored: Mapping[str, str]) -> None:
        """Replace all cursors with those of the store, given by their stored names."""
        alone = self._shard.is_alone
        channels = {
            name: value
            for name, value in stored.items()
            if name.startswith(self.prefix) and name.removeprefix(self.prefix).isdecimal()
        }
        # Rows without a guild are from before there were shards: the first one goes through them.
        if not (alone or self._shard.number == 0):
            channels = {}
        self._stored = dict(
            read_cursors(
                channels,
                lambda name, value: (to_number(name.removeprefix(self.prefix)), to_number(value)),
            )
        )
        if not alone:
            self._load_of_shard(stored)
        names = [f"{self._marks}{one}" for one in ("connected", "catching_up")]
        connected, catching_up = (read_number(stored, name) for name in names)
        if not alone and not stored.keys() & set(names):
            connected = self._oldest_mark(stored)
        self._connected = self._connected if connected is None else connected
        self._catching_up = catching_up or 0
        self._frozen.clear()

    def _load_of_shard(self, stored: Mapping[str, str]) -> None:
        prefix = f"{self.shards_prefix}channel "
        rows = {name: value for name, value in stored.items() if name.startswith(prefix)}

        def read(name: str, value: str) -> tuple[int, int, int]:
            message, _, guild = value.partition(" ")
            return to_number(name.removeprefix(prefix)), to_number(message), to_number(guild)

        for channel, message, guild in read_cursors(rows, read):
            if self._shard.has_guild(guild):
                self._stored[channel], self._guilds[channel] = message, guild

    def _oldest_mark(self, stored: Mapping[str, str]) -> int | None:
        """Return when the other numbers of shards were connected: the channels moved from them."""
        of_bot = (self.prefix, self.shards_prefix)
        marks = {
            name: value
            for name, value in stored.items()
            if name.startswith(of_bot) and name.endswith(("connected", "catching_up"))
        }
        numbers = read_cursors(marks, lambda _, value: to_number(value))
        return min((mark for mark in numbers if mark), default=None)

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
        return {f"{self._marks}catching_up": str(self._catching_up)}

    def catch_up_ended(self, session_at: datetime) -> dict[str, str]:
        """Note that none is missing up to this session, and return what to store."""
        self._catching_up, self._connected = 0, time_snowflake(session_at)
        return {
            f"{self._marks}catching_up": "0",
            f"{self._marks}connected": str(self._connected),
        }

    def freeze(self, channels: Iterable[int]) -> None:
        """Keep these cursors where they are until the next `load`: messages are missing there."""
        self._frozen.update(channels)

    def due(self, received: Iterable[tuple[int, int, int]], kept: Set[int]) -> dict[int, int]:
        """Return the cursors to store together with a batch of messages.

        A channel of which nothing was ever stored has none: a server full of bots costs no rows.

        Args:
            received: channel, id and guild of every message, ours to store or not; 0: no guild.
            kept: the channels of those that will be stored.
        """
        due = dict(self._pending)
        for channel, message, guild in received:
            if channel in kept or channel in self._stored:
                due[channel] = max(message, due.get(channel, 0))
                self._guilds[channel] = guild
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
        if self._shard.is_alone:
            return {f"{self.prefix}{channel}": str(message) for channel, message in due.items()}
        return {
            f"{self.shards_prefix}channel {channel}": f"{message} {self._guilds.get(channel, 0)}"
            for channel, message in due.items()
        }

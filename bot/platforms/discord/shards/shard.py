"""A shard, and what is stored of it so that another process can RESUME its session.

See https://discord.com/developers/docs/events/gateway#sharding and #resuming.
"""

import msgspec

from bot.frozen_dataclass import frozen_dataclass


@frozen_dataclass
class Shard:
    """One of the gateway connections that a bot's guilds are divided among."""

    number: int = 0
    count: int = 1

    @property
    def name(self) -> str:
        """Its name in logs, leases and stored rows: "0/2"."""
        return f"{self.number}/{self.count}"

    @classmethod
    def from_name(cls, name: str) -> "Shard":
        number, _, count = name.partition("/")
        return cls(int(number), int(count))

    @property
    def is_alone(self) -> bool:
        """Whether the bot has no other shard."""
        return self.count == 1

    def has_guild(self, guild_id: int) -> bool:
        """Return whether events of a guild arrive on this shard; 0: those of direct messages."""
        return (guild_id >> 22) % self.count == self.number


class GatewaySession(msgspec.Struct, frozen=True):
    """A session that can be resumed: everything up to its sequence number is stored."""

    id: str
    sequence: int
    resume_url: str

    def to_stored(self) -> str:
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_stored(cls, stored: str) -> "GatewaySession | None":
        """Return the session of a stored value; None if there is none."""
        try:
            return msgspec.json.decode(stored, type=cls)
        except msgspec.DecodeError:
            return None

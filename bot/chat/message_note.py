"""A note about a message that every process may read."""

from bot.frozen_dataclass import frozen_dataclass


@frozen_dataclass
class MessageNote:
    key: str
    content: str
    person: str | None = None
    """The id of the person whose words it quotes."""

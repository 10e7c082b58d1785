"""Which sequences of messages a chat template accepts."""

from typing import Final

from bot.value_class import value_class


@value_class
class Capabilities:
    """The conversations that a template renders without losing a text."""

    accepts_system: bool
    """A system message at the beginning."""

    accepts_late_system: bool
    """System messages between the turns."""

    accepts_repeated_roles: bool
    """Two messages of the same role in a row."""

    accepts_assistant_first: bool
    """An assistant message before the first user message."""

    accepts_text_content: bool = True
    """A content that is a string, and not only a list of parts."""


ALL_CAPABILITIES: Final = Capabilities(True, True, True, True)

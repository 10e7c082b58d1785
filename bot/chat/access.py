"""Access to the console and its API, and the log of changes by admins."""

from enum import StrEnum

from bot.value_class import value_class

COMMAND_LINE = "command line"
"""The author of changes made with the command `troupe`."""


class Scope(StrEnum):
    """The scopes of API tokens; a logged-in person has all of them."""

    READ = "read"
    """Read answers, prompts, settings, usage."""
    PRESETS = "presets"
    """Change presets and characters."""
    OPERATE = "operate"
    """Change what channels use, and what the service does."""
    SAY = "say"
    """Send messages to channels as the bot."""


@value_class
class ApiToken:
    """An API token's description, without the token itself."""

    name: str
    scopes: tuple[Scope, ...]
    """Sorted."""
    created_at: float
    """In Unix seconds."""
    channels: tuple[str, ...] = ()
    """The channels that its scope `say` is limited to, such as "discord:123"; empty: all."""


@value_class
class AuditEntry:
    """One change: who made it, and what it replaced."""

    at: float
    """In Unix seconds."""
    who: str
    """"session", "token" and its name, `COMMAND_LINE`, or the id of an admin in a chat."""
    action: str
    """A verb and a noun, such as "set preset"."""
    subject: str
    before: str = ""
    after: str = ""

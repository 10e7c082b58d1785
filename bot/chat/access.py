"""The console's API tokens, and audit log entries for changes by admins."""

from enum import StrEnum

from bot.value_class import value_class

COMMAND_LINE_ACTOR = "command line"
"""The author of changes made with the command `troupe`."""


class ApiScope(StrEnum):
    """The permissions of an API token. A person who is logged in has all of them."""

    READ = "read"
    """Read answers, prompts, settings, usage."""
    PRESETS = "presets"
    """Change presets and characters."""
    OPERATE = "operate"
    """Change channel settings and control the service."""
    SAY = "say"
    """Send messages to channels as the bot."""


@value_class
class ApiToken:
    """An API token's description, without the token itself."""

    name: str
    scopes: tuple[ApiScope, ...]
    """Sorted."""
    created_at: float
    """In Unix seconds."""
    channels: tuple[str, ...] = ()
    """The channels where the scope `say` is valid, such as "discord:123"; empty: all."""


@value_class
class AuditEntry:
    """A change by an admin, with the values before and after."""

    at: float
    """In Unix seconds."""
    who: str
    """"session", "token" and its name, `COMMAND_LINE_ACTOR`, or the id of an admin in a chat."""
    action: str
    """A verb and a noun, such as "set preset"."""
    subject: str
    before: str = ""
    after: str = ""

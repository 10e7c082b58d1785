"""Commands as data: each platform registers them in its native form."""

from bot.frozen_dataclass import frozen_dataclass


@frozen_dataclass
class CommandOption:
    """A parameter of a command."""

    name: str
    summary: str
    required: bool = True
    completes: bool = False
    """Whether the platform may ask for suggestions while a person types."""
    choices: tuple[str, ...] = ()
    """The only values that are allowed; empty: any."""


@frozen_dataclass
class CommandSpec:
    """A command or, with `actions`, a group of subcommands: `/preset use nova`."""

    name: str
    summary: str
    options: tuple[CommandOption, ...] = ()
    actions: tuple["CommandSpec", ...] = ()
    is_for_admins: bool = False
    """Whether platforms offer it to admins first; who may do what is checked when it runs."""
    is_private: bool = False
    """Whether groups are not offered it, because everybody there would read the answer."""
    changes_channel: bool = False
    """Whether it changes something for everybody in the channel, who read the answer as well."""
    needs_admin: bool = False
    """Whether it is refused to everybody but admins; the refusal is for the author alone."""
    default_action: str = ""
    """The action of a group that is called without one."""


@frozen_dataclass
class MessageCommandSpec:
    """A command in the menu of a message; the same as a command that replies to that message."""

    name: str
    """What people read there; in English, and translated where the platform can."""
    command: str
    """The name of the command."""
    has_form: bool = False
    """Whether a form asks for the argument, with the text of the message in it."""


@frozen_dataclass
class Command:
    """A command as it was called: name "preset", text "use nova"."""

    name: str
    text: str = ""
    """The rest of the line. Handlers of actions get the rest after the action."""


def parse(text: str) -> Command | None:
    """Parse a line like `/preset use nova`; return None if it is not a command.

    An unknown name is parsed as well, so that the reply can say that there is no such command.
    """
    if not text.startswith("/") or len(text) < 2 or not text[1].isalnum():
        return None
    name, _, rest = text[1:].partition(" ")
    return Command(name.lower(), rest.strip())

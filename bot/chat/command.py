"""What people can command, as data: each platform shows it in its own native way."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CommandOption:
    """A value that a command takes."""

    name: str
    summary: str
    required: bool = True
    completes: bool = False  # the platform may ask for suggestions while somebody types
    choices: tuple[str, ...] = ()  # the only values there are; none: any


@dataclass(frozen=True, slots=True)
class CommandSpec:
    """A command or, with `actions`, a family of them: `/preset use nova`."""

    name: str
    summary: str
    options: tuple[CommandOption, ...] = ()
    actions: tuple["CommandSpec", ...] = ()


@dataclass(frozen=True, slots=True)
class Command:
    """What somebody commanded: name "preset", action "use", argument "nova"."""

    name: str
    action: str | None = None
    argument: str = ""

"""A command request, its result, and the registry of handlers."""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from enum import Enum, auto
from typing import Any, TypeAlias, TypeVar

from bot.chat.command import Command, CommandOption, CommandSpec
from bot.chat.incoming import IncomingMessage
from bot.chat.outgoing import Attachment, Button, Menu
from bot.chat.session import StoredTurn, Turn, TurnRange
from bot.routing.presets import ActiveCharacters, ActivePreset
from bot.texts.text import Text
from bot.value_class import value_class


class StopOutcome(Enum):
    NOTHING = auto()
    """No answer was in progress."""
    STOPPED = auto()
    REFUSED = auto()
    """Somebody else had asked, and the author is not an admin."""
    UNKNOWN = auto()
    """Somebody else had asked, and the platform could not be asked whether the author is admin."""


@value_class
class CommandRequest:
    """A command, the message that contains it, and the state of its channel."""

    command: Command
    incoming: IncomingMessage
    active: ActiveCharacters
    recent: Sequence[Turn]
    """The newest turns, oldest first; only loaded for `READS_HISTORY` and groups of characters."""
    now: datetime
    failed: Sequence[StoredTurn] = ()
    """See `Conversations.load_failed`; only loaded for `READS_HISTORY`."""
    stop: StopOutcome = StopOutcome.NOTHING
    decisions: Sequence[str] = ()
    """Why the newest messages were answered or not, a line for each."""
    answered_at: datetime | None = None
    """When the answer was given that the command replies to."""
    is_asker: bool = False
    """Whether the command replies to the answer to a question of its author."""
    quoted: Turn | None = None
    """The turn of the message that /memory replies to, if it is in the history."""
    part: str = ""
    """The name of the part that the reply is sent as; buttons under it carry it."""
    page: int = 0
    """The page of a list that a button asks for; 0: the command was typed."""

    @property
    def argument(self) -> str:
        return self.command.text

    @property
    def is_audited(self) -> bool:
        """Whether changes are recorded in the audit log, which excludes private chats."""
        return not self.incoming.is_private

    @property
    def scope(self) -> str:
        """The narrowest scope of the channel, where commands store their settings."""
        return self.incoming.scopes[0]


@value_class
class AskedQuestion:
    """A question to answer, whether new or retried, and the characters that answer it."""

    incoming: IncomingMessage
    speakers: tuple[ActivePreset, ...]
    in_place_of: tuple[str, ...] = ()
    """Names of parts that were sent before: the answer takes their messages."""
    earlier: tuple[Turn, ...] = ()
    """What was gathered with it and is kept before it, oldest first."""


@value_class
class CommandResult:
    """The reply to a command, and its effects on the conversation."""

    text: str
    new_session: bool = False
    greeting: str | None = None
    """What a character says to begin; it follows the text."""
    greeter: str | None = None
    """The preset whose greeting it is."""
    deletes_history: bool = False
    """Whether the history is deleted first; the text then begins with what was deleted."""
    forgets: str | None = None
    """The platform's id of a message that is deleted from the history for good."""
    forgets_answers: bool = False
    asks_to_forget: bool = False
    """Whether the text asks for a confirmation of /forget me."""
    asks_age: bool = False
    """Whether the text asks the author to confirm that they are an adult."""
    turns: tuple[Turn, ...] = ()
    """What is added to the history: an imported conversation."""
    removes: TurnRange | None = None
    deletes: tuple[int, ...] = ()
    """The ids of other stored turns that are deleted."""
    repeats: "AskedQuestion | None" = None
    """A question that is answered again, instead of the text."""
    file: Attachment | None = None
    """A file that is sent along; the text is then one short line."""
    told: Sequence[tuple[str, Text]] = ()
    """What others are told in private, each by their id."""
    changes_channel: bool = False
    """Whether it changes something for everybody in the channel, so that they should know."""
    is_private: bool = False
    """Whether only the author may read it, in groups as well."""
    menus: tuple[Menu, ...] = ()
    """What can be chosen under the text, by the person who asked."""
    buttons: tuple[Button, ...] = ()
    in_place_of: tuple[str, ...] = ()
    """The part with the menu that was used: the text and its menus take its place."""
    keeps_unanswered: bool = False
    """Whether a session without answers continues although a new one is wanted."""


Handler: TypeAlias = Callable[[CommandRequest], Awaitable[CommandResult]]
Method = TypeVar("Method", bound=Callable[..., Awaitable[CommandResult]])


def command(
    name: str,
    summary: str = "",
    *options: CommandOption,
    is_private: bool = False,
    changes_channel: bool = False,
    needs_admin: bool = False,
) -> Callable[[Method], Method]:
    """Register a method as the handler of a command, or of a group's action: "preset use".

    The summary is one line of help text from `marked`; without it, the command is unlisted.
    `needs_admin` implies `changes_channel`; for the other arguments, see `CommandSpec`.
    """

    def register(method: Method) -> Method:
        vars(method)["command_spec"] = CommandSpec(
            name,
            summary,
            options,
            is_private=is_private,
            changes_channel=changes_channel or needs_admin,
            needs_admin=needs_admin,
        )
        return method

    return register


def specs_of(owner: type) -> Iterator[CommandSpec]:
    """Yield the commands that a class's methods handle, in order."""
    for method in vars(owner).values():
        spec = getattr(method, "command_spec", None)
        if isinstance(spec, CommandSpec):
            yield spec


def listed_commands(
    owners: tuple[type, ...], groups: tuple[CommandSpec, ...], order: Sequence[str]
) -> tuple[CommandSpec, ...]:
    """Return the commands with a summary; actions are nested in their groups."""
    found = {group.name: group for group in groups}
    ordered: dict[str, CommandSpec] = {}
    for spec in (each for owner in owners for each in specs_of(owner) if each.summary):
        name, _, action = spec.name.partition(" ")
        if action:
            group = ordered.get(name, found[name])
            spec = replace(group, actions=(*group.actions, replace(spec, name=action)))
        ordered[name] = spec
    first = {name: place for place, name in enumerate(order)}
    return tuple(sorted(ordered.values(), key=lambda spec: first.get(spec.name, len(first))))


def handlers_of(*owners: Any) -> dict[str, Handler]:
    """Return the objects' handlers by command name."""
    return {
        spec.name: method.__get__(owner)
        for owner in owners
        for method in vars(type(owner)).values()
        if (spec := getattr(method, "command_spec", None)) is not None
    }

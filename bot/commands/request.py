"""A command request, its result, and the registry of handlers."""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from enum import Enum, auto
from functools import partial
from itertools import chain
from typing import Any, TypeAlias, TypeVar

from bot.chat.command import Command, CommandOption, CommandSpec
from bot.chat.incoming import IncomingMessage
from bot.chat.outgoing import Attachment, Button, Menu
from bot.chat.session import StoredTurn, Turn, TurnRange
from bot.ports import ChatSettings
from bot.routing.presets import INSTALLATION, ActiveCharacters, ActivePreset
from bot.texts.text import Text
from bot.value_class import value_class


class StopOutcome(Enum):
    NO_ANSWER = auto()
    """No answer was in progress."""
    STOPPED = auto()
    REFUSED = auto()
    """Somebody else asked the question, and the command's author is not an admin."""
    UNKNOWN = auto()
    """Somebody else asked, and the platform could not say whether the author is an admin."""


@value_class
class CommandRequest:
    """A command, the message that contains it, and the state of its channel."""

    command: Command
    incoming: IncomingMessage
    active: ActiveCharacters
    recent_turns: Sequence[Turn]
    """The newest turns, oldest first; loaded only for groups and `COMMANDS_THAT_READ_HISTORY`."""
    now: datetime
    failed_questions: Sequence[StoredTurn] = ()
    """The newest unanswered questions; loaded only for `COMMANDS_THAT_READ_HISTORY`."""
    stop_outcome: StopOutcome = StopOutcome.NO_ANSWER
    answered_at: datetime | None = None
    """The time of the answer that the command replies to."""
    is_asker: bool = False
    """Whether the command replies to an answer to its author's own question."""
    quoted_turn: Turn | None = None
    """The turn of the message that /memory replies to, if it is in the history."""
    part_name: str = ""
    """The part name under which the reply is sent; the reply's buttons contain this name."""
    page: int = 0
    """The page of a list that a button requested; 0 if the command was typed."""

    @property
    def argument(self) -> str:
        return self.command.text

    async def store(self, settings: ChatSettings, scope: str, key: str, value: str | None) -> None:
        """Store a setting that the command's author changed."""
        is_audited = not self.incoming.is_private or scope == INSTALLATION
        await settings.set(scope, key, value, self.incoming.author.id, is_audited=is_audited)

    @property
    def audit_arguments(self) -> dict[str, Any]:
        """The arguments `author` and `is_audited` of the functions that store settings."""
        return {"author": self.incoming.author.id, "is_audited": not self.incoming.is_private}

    @property
    def scope(self) -> str:
        """The narrowest scope of the channel, where commands store their settings."""
        return self.incoming.scopes[0]


@value_class
class OpenQuestion:
    """A question to answer, whether new or retried, and the characters that answer it."""

    incoming: IncomingMessage
    speakers: tuple[ActivePreset, ...]
    replaced_part_names: tuple[str, ...] = ()
    """Names of parts that were sent before; the answer replaces their messages."""
    earlier_turns: tuple[Turn, ...] = ()
    """Messages gathered with the question, stored before it, oldest first."""


@value_class
class CommandResult:
    """The reply to a command, and its effects on the conversation."""

    text: str
    starts_session: bool = False
    greeting: str | None = None
    """The character's first message, sent after the text."""
    greeting_preset: str | None = None
    """The preset that `greeting` belongs to."""
    deletes_history: bool = False
    """Whether to delete the history first; a note on what was deleted is put before the text."""
    forgotten_message_id: str | None = None
    """The platform's id of a message to delete from the history for good."""
    deletes_answers: bool = False
    asks_for_age: bool = False
    """Whether the text asks the author to confirm that they are an adult."""
    turns: tuple[Turn, ...] = ()
    """Turns to add to the history, from an imported conversation."""
    removed_range: TurnRange | None = None
    deleted_ids: tuple[int, ...] = ()
    """The ids of other stored turns to delete."""
    question: "OpenQuestion | None" = None
    """A question to answer again, instead of sending the text."""
    file: Attachment | None = None
    """A file to send with the text, which is then one short line."""
    private_notices: Sequence[tuple[str, Text]] = ()
    """Private messages to other people: each person's id, and the text."""
    changes_channel: bool = False
    """Whether the command affects everybody in the channel, who should therefore see it."""
    is_private: bool = False
    """Whether only the author may read the reply, even in groups."""
    menus: tuple[Menu, ...] = ()
    """Menus under the text, for the person who sent the command."""
    buttons: tuple[Button, ...] = ()
    replaced_part_names: tuple[str, ...] = ()
    """The name of the part whose menu was used; the text and its menus replace that part."""
    keeps_unanswered_session: bool = False
    """Whether `starts_session` keeps a current session that has no answers yet."""


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
    """Register a method as a command's handler; without a `summary`, help does not list it.

    A method with several of these decorators handles several commands.
    """

    def register(method: Method) -> Method:
        spec = CommandSpec(
            name,
            summary,
            options,
            is_private=is_private,
            changes_channel=changes_channel or needs_admin,
            needs_admin=needs_admin,
        )
        vars(method)["command_specs"] = (spec, *vars(method).get("command_specs", ()))
        return method

    return register


admin_command = partial(command, needs_admin=True)
private_command = partial(command, is_private=True)


def command_specs(handler_class: type) -> Iterator[CommandSpec]:
    """Yield the commands that the methods of a class handle, in order."""
    for method in vars(handler_class).values():
        yield from getattr(method, "command_specs", ())


def list_commands(
    handler_classes: tuple[type, ...], groups: tuple[CommandSpec, ...], command_order: Sequence[str]
) -> tuple[CommandSpec, ...]:
    """Return the commands that have a summary; actions are nested in their groups."""
    groups_by_name = {group.name: group for group in groups}
    specs_by_name: dict[str, CommandSpec] = {}
    specs = chain.from_iterable(map(command_specs, handler_classes))
    for spec in (one for one in specs if one.summary):
        name, _, action = spec.name.partition(" ")
        if action:
            group = specs_by_name.get(name, groups_by_name[name])
            spec = replace(group, actions=(*group.actions, replace(spec, name=action)))
        specs_by_name[name] = spec
    ranks = {name: rank for rank, name in enumerate(command_order)}
    return tuple(sorted(specs_by_name.values(), key=lambda spec: ranks.get(spec.name, len(ranks))))


def collect_handlers(*instances: Any) -> dict[str, Handler]:
    """Return the objects' handlers by command name."""
    return {
        spec.name: method.__get__(instance)
        for instance in instances
        for method in vars(type(instance)).values()
        for spec in getattr(method, "command_specs", ())
    }

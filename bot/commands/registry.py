"""Register chat commands beside their handlers.

    @command("preset use", marked("make this preset answer here"), CommandOption("name", ...))
    async def _use(self, request: CommandRequest) -> CommandResult: ...

Help, the table in README.md and what platforms offer are made from these specs.
"""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeAlias, TypeVar

from bot.chat.command import CommandOption, CommandSpec
from bot.commands.request import CommandRequest, CommandResult

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
    """Make a method the handler of a command, or of an action of a group: "preset use".

    Args:
        name: the name of the command, or of the group and the action.
        summary: one line for people, from `marked`; without one, the command works unlisted.
        options: its parameters.
        is_private: see `CommandSpec`, as for the others.
        changes_channel: see there.
        needs_admin: see there.
    """

    def register(method: Method) -> Method:
        vars(method)["command_spec"] = CommandSpec(
            name,
            summary,
            options,
            is_private=is_private,
            changes_channel=changes_channel,
            needs_admin=needs_admin,
        )
        return method

    return register


def specs_of(owner: type) -> Iterator[CommandSpec]:
    """Yield the commands whose handlers are methods of a class, in order."""
    for method in vars(owner).values():
        spec = getattr(method, "command_spec", None)
        if isinstance(spec, CommandSpec):
            yield spec


def listed_commands(
    owners: tuple[type, ...], groups: tuple[CommandSpec, ...], order: Sequence[str]
) -> tuple[CommandSpec, ...]:
    """Return the commands that are offered to people; actions stand in their groups.

    Args:
        owners: the classes with handlers.
        groups: the commands that have actions.
        order: the names that come first.
    """
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
    """Return the handlers that objects have, by the names of their commands."""
    return {
        spec.name: method.__get__(owner)
        for owner in owners
        for method in vars(type(owner)).values()
        if (spec := getattr(method, "command_spec", None)) is not None
    }

"""Make Typer apps: one for the commands of a module, one for a group that imports them late."""

import gc
from collections.abc import Mapping
from importlib import import_module  # noqa: TID251 # the registry of the commands
from typing import Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command
from typing_extensions import override

from bot.value_class import value_class


@value_class
class LazyCommand:
    """A command, or a group of them, that is known by name before its module is imported."""

    module: str
    """Where it is: the Typer app `app`, or a command of that app."""
    summary: str

    def load(self, name: str) -> Any:
        """Import the module and return the command of this name in its app, or the app itself."""
        command = get_command(import_module(self.module).app)
        return getattr(command, "commands", {}).get(name, command)


class LazyGroup(TyperGroup):
    """A group that lists commands from a table and imports one only to run it."""

    table: ClassVar[Mapping[str, LazyCommand]] = {}

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        for name, command in self.table.items():
            self.add_command(TyperCommand(name, help=command.summary))

    # Typer does not export the copy of click that the context is from.
    @override
    def get_help_option(self, ctx: Any) -> Any:
        option = super().get_help_option(ctx)
        if option is not None:
            option.default = False  # None would be converted, and Typer imports pydantic for that
        return option

    @override
    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        if name is not None and name in self.table:
            gc.disable()  # nothing that is imported becomes garbage
            try:
                command = self.table[name].load(name)
            finally:
                gc.enable()
        return name, command, rest


def command_app(group_help: str | None = None) -> typer.Typer:
    """Make the app of a module: a single command, or with a help text a group of several.

    Help is plain text: rich's tables take longer to import than most commands to run.
    """
    app = typer.Typer(
        help=group_help,
        add_completion=False,
        no_args_is_help=group_help is not None,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    if group_help is not None:
        app.callback()(_nothing)
    return app


def lazy_app(group_help: str, commands: Mapping[str, LazyCommand]) -> typer.Typer:
    """Make a group whose commands' modules are imported only to run them or to show their help."""
    app = command_app(group_help)
    app.info.cls = type("LazyGroup", (LazyGroup,), {"table": commands})
    return app


def _nothing() -> None:
    """Be the callback that makes a Typer app a group, however many commands it has."""

"""Create the Typer app of a command's module."""

import typer


def create_command_app(group_help: str | None = None) -> typer.Typer:
    """Create an app: a single command or, with `group_help`, a group of commands.

    Help is plain text, because importing rich takes longer than most commands.
    """
    app = typer.Typer(
        help=group_help,
        add_completion=False,
        no_args_is_help=group_help is not None,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    if group_help is not None:
        app.callback()(_group_callback)
    return app


def _group_callback() -> None:
    """Do nothing; an app with a callback is a group even if it has only one command."""

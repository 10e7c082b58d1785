"""Create a module's Typer app."""

import typer


def command_app(group_help: str | None = None) -> typer.Typer:
    """Create a module's app: a single command or, with a help text, a group.

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
        app.callback()(_group_callback)
    return app


def _group_callback() -> None:
    """The callback that makes a Typer app a group, even with a single command."""

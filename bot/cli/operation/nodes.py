"""`troupe nodes`: the processes of the installation."""

from collections.abc import Sequence

from bot.chat.operation import Node
from bot.cli.operation.installation import format_age, format_table, use_installation
from bot.cli.text_io import print_line
from bot.cli.typer_apps import command_app
from bot.runtime.clock import SystemClock
from bot.storage.operation import NodeRegistry

app = command_app()
_HEAD = ("process", "roles", "version", "up", "seen", "answering", "holds")


@app.command()
def show_nodes() -> None:
    """Show the processes of the installation.

    With their roles, version, last report, and what only one of them holds.

    A process reports every 10 seconds. One that ended by itself is not listed; one that died is,
    as "silent", for a week.
    """
    nodes = use_installation(lambda database: NodeRegistry(database, SystemClock()).nodes())
    for line in format_nodes(nodes):
        print_line(line)


def format_nodes(nodes: Sequence[Node]) -> list[str]:
    """Write a line for each process."""
    if not nodes:
        return ["no process has reported itself; is the service running on this database?"]
    rows = [
        (
            *(one.owner, one.roles, one.version, format_age(one.started_seconds)),
            f"{format_age(one.seen_seconds)} ago{' (silent)' if one.is_silent else ''}",
            *(str(one.conversations), ", ".join(one.leases) or "-"),
        )
        for one in nodes
    ]
    return format_table(_HEAD, rows)

"""`troupe jobs`: what only one process does at a time, and the work that waits."""

from collections.abc import Sequence

from bot.chat.operation import BackgroundWork, HeldJob
from bot.cli.operation.installation import format_age, format_table, use_installation
from bot.cli.text_io import print_line
from bot.cli.typer_apps import command_app
from bot.runtime.clock import SystemClock
from bot.storage.database import Database
from bot.storage.operation import NodeRegistry

app = command_app()


@app.command()
def show_jobs() -> None:
    """Show what is done and what waits.

    Which process does what only one may do, and since when; how much work waits, and how old it is.
    """
    held, work = use_installation(_read)
    for line in [*format_held(held), "", *format_work(work)]:
        print_line(line)


async def _read(database: Database) -> tuple[Sequence[HeldJob], Sequence[BackgroundWork]]:
    nodes = NodeRegistry(database, SystemClock())
    return await nodes.held_jobs(), await nodes.background_work()


def format_held(jobs: Sequence[HeldJob]) -> list[str]:
    """Write a line for each role that one process has at a time."""
    if not jobs:
        return ["no role is leased: on SQLite one process does everything"]
    rows = [
        (one.role, one.owner, format_age(one.held_seconds), f"{one.lease_seconds:.0f} s")
        if one.lease_seconds > 0
        else (one.role, "nobody", "-", "-")
        for one in jobs
    ]
    return format_table(("job", "process", "for", "lease"), rows)


def format_work(work: Sequence[BackgroundWork]) -> list[str]:
    """Write a line for each kind of work."""
    rows = [(one.name, str(one.count), format_age(one.oldest_seconds)) for one in work]
    return format_table(("work", "count", "oldest"), rows)

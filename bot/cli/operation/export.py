"""`troupe export`: write what is stored of a person's own words."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from bot.cli.operation.installation import record_change, use_installation
from bot.cli.operation.pause import checked_key
from bot.cli.text_io import print_exactly, print_line, write_private_text
from bot.cli.typer_apps import command_app
from bot.commands.privacy import ExportedWords, export_words
from bot.errors import UserError
from bot.runtime.clock import SystemClock
from bot.storage.database import Database
from bot.storage.forgetting import PersonalData

app = command_app()


@app.command()
def export(
    person: Annotated[
        str | None, typer.Argument(help="What this person said, such as telegram:123456789.")
    ] = None,
    user: Annotated[str | None, typer.Option(help="The same.")] = None,
    to: Annotated[
        Path | None, typer.Option(help="The new file to write; otherwise standard output.")
    ] = None,
) -> None:
    """Write what a person said, and said of themselves, as JSON.

    The file that `/export` sends to that person: the own words of every channel, nobody else's. The
    service may run meanwhile. A file of `--to` is readable by its owner only.
    """
    person = checked_key(person or user or "", "--user", "telegram:123456789")
    if to is not None and to.exists():
        raise UserError(f"{to} exists; give the file another name")

    async def read(database: Database) -> ExportedWords:
        clock = SystemClock()
        at = datetime.fromtimestamp(clock.now(), UTC)
        words = await export_words(PersonalData(database, clock), person, at)
        if words.messages or words.descriptions:
            await record_change(database, "export person", person)
        return words

    found = use_installation(read)
    if not (found.messages or found.descriptions):
        raise UserError(f"nothing is stored of {person}")
    if to is None:
        print_exactly(found.file.text)
    else:
        write_private_text(to, found.file.text)
        print_line(f"{to} holds messages of {person}: {found.messages}")

"""`troupe export` and `troupe forget`: what is stored of a person, a channel or a server."""

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from bot.chat.outgoing import Attachment
from bot.cli.installation import checked_key, record_change, scope_of, signal_all, use_installation
from bot.cli.text_io import print_exactly, print_line, write_private_text
from bot.cli.typer_apps import command_app
from bot.commands.personas import UserPersonas
from bot.commands.privacy import export_words
from bot.errors import UserError
from bot.runtime.clock import SystemClock
from bot.settings import read_settings
from bot.storage.chat_settings import SqlChatSettings
from bot.storage.database import Database
from bot.storage.forgetting import (
    FILE_NAME,
    PersonalData,
    conversations_of_channel,
    conversations_of_server,
    record_tombstone,
    request_deletion,
)
from bot.turn.signals import CONVERSATIONS

_Person = Annotated[
    str | None, typer.Argument(help="What this person said, such as telegram:123456789.")
]
_User = Annotated[str | None, typer.Option(help="The same.")]
_PERSON = "telegram:123456789"

app = command_app()


@app.command()
def export(
    person: _Person = None,
    user: _User = None,
    to: Annotated[
        Path | None, typer.Option(help="The new file to write; otherwise standard output.")
    ] = None,
) -> None:
    """Write what a person said, and said of themselves, as JSON.

    The file that `/export` sends to that person: the own words of every channel, nobody else's. The
    service may run meanwhile. A file of `--to` is readable by its owner only.
    """
    person = checked_key(person or user or "", "--user", _PERSON)
    if to is not None and to.exists():
        raise UserError(f"{to} exists; give the file another name")

    async def read(database: Database) -> tuple[Attachment, int, int]:
        clock = SystemClock()
        at = datetime.fromtimestamp(clock.now(), UTC)
        exported = await export_words(PersonalData(database, clock), person, at)
        if any(exported[1:]):
            await record_change(database, "export person", person)
        return exported

    file, messages, descriptions = use_installation(read)
    if not (messages or descriptions):
        raise UserError(f"nothing is stored of {person}")
    if to is None:
        print_exactly(file.text)
    else:
        write_private_text(to, file.text)
        print_line(f"{to} holds messages of {person}: {messages}")


@app.command()
def forget(
    person: _Person = None,
    user: _User = None,
    channel: Annotated[
        str | None,
        typer.Option(help="This channel with its topics, such as discord:81384788765712384."),
    ] = None,
    server: Annotated[
        str | None,
        typer.Option(help="This server, such as discord:guild:81384788765712384."),
    ] = None,
) -> None:
    """Delete what is stored of a person, a channel or a server.

    As `/forget me` and `/forget channel` do, also where the bot was removed. The service deletes
    each conversation in its turn; while it is stopped, at its next start. Of a server, those
    conversations are found in which something was answered in the last 400 days.
    """
    given = [one for one in (person, user, channel, server) if one]
    if len(given) != 1:
        raise UserError("name one of --user, --channel and --server")
    [subject] = given
    user = person or user
    if user:
        checked_key(user, "--user", _PERSON)
    elif server:
        checked_key(server, "--server", "discord:guild:81384788765712384")
    in_channel = scope_of(None, channel)

    async def request(database: Database) -> Sequence[str]:
        if user:
            keys = await _forget_person(database, user)
        elif channel:
            keys = await conversations_of_channel(database, in_channel)
        else:
            keys = await conversations_of_server(database, subject)
        await request_deletion(database, SystemClock(), keys, user)
        await record_change(database, "forget", subject)
        await signal_all(CONVERSATIONS, keys)
        return keys

    keys = use_installation(request)
    print_line(f"{subject} is forgotten in conversations: {len(keys)}")


async def _forget_person(database: Database, person: str) -> Sequence[str]:
    clock = SystemClock()
    record = partial(record_tombstone, read_settings().data_dir / FILE_NAME)
    data = PersonalData(database, clock, record)
    keys = await data.conversations(person)
    await data.forget_outside_histories(person)
    personas = UserPersonas(SqlChatSettings(database, clock))
    await personas.forget(person, await data.descriptions(person))
    return keys

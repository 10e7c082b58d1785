"""`troupe forget`: delete what is stored of a person, a channel or a server."""

from collections.abc import Sequence
from typing import Annotated

import typer

from bot.cli.operation.installation import record_change, signal_all, use_installation
from bot.cli.operation.pause import checked_key, scope_of
from bot.cli.text_io import print_line
from bot.cli.typer_apps import command_app
from bot.commands.personas import UserPersonas
from bot.errors import UserError
from bot.runtime.clock import SystemClock
from bot.settings import read_settings
from bot.storage.chat_settings import SqlChatSettings
from bot.storage.database import Database
from bot.storage.forgetting import (
    FILE_NAME,
    PersonalData,
    TombstoneFile,
    conversations_of_channel,
    conversations_of_server,
    request_deletion,
)
from bot.turn.arrivals import CONVERSATIONS

app = command_app()


@app.command()
def forget(
    person: Annotated[
        str | None, typer.Argument(help="What this person said, such as telegram:123456789.")
    ] = None,
    user: Annotated[str | None, typer.Option(help="The same.")] = None,
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
    user = person or user
    if user:
        checked_key(user, "--user", "telegram:123456789")
    elif server:
        checked_key(server, "--server", "discord:guild:81384788765712384")
    in_channel = scope_of(None, channel)

    async def request(database: Database) -> Sequence[str]:
        if user:
            keys = await _forget_person(database, user)
        elif channel:
            keys = await conversations_of_channel(database, in_channel)
        else:
            keys = await conversations_of_server(database, given[0])
        await request_deletion(database, SystemClock(), keys, user)
        await record_change(database, "forget", given[0])
        await signal_all(CONVERSATIONS, keys)
        return keys

    keys = use_installation(request)
    print_line(f"{given[0]} is forgotten in conversations: {len(keys)}")


async def _forget_person(database: Database, person: str) -> Sequence[str]:
    clock = SystemClock()
    tombstones = TombstoneFile(read_settings().data_dir / FILE_NAME)
    data = PersonalData(database, clock, tombstones.record)
    keys = await data.conversations(person)
    await data.drop_set_aside(person)
    await data.note_forgotten(person)
    personas = UserPersonas(SqlChatSettings(database, clock))
    await personas.forget(person, await data.descriptions(person))
    return keys

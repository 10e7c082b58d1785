"""`troupe pause`: remember what people write, and answer nobody."""

from typing import Annotated

import typer

from bot.chat.access import COMMAND_LINE
from bot.chat.incoming import address_of
from bot.chat.operation import EVERYWHERE
from bot.cli.operation.installation import record_change, signal_all, use_installation
from bot.cli.text_io import print_line
from bot.cli.typer_apps import command_app
from bot.errors import UserError
from bot.platforms.registry import platform_specs
from bot.runtime.clock import SystemClock
from bot.storage.database import Database
from bot.storage.operation import Pauses
from bot.turn.limits.pauses import PAUSES_TOPIC

app = command_app()
_SERVER = "guild:"
Platform = Annotated[
    str | None, typer.Option(help="Only this platform, such as telegram, or telegram@77.")
]
Channel = Annotated[
    str | None,
    typer.Option(help="Only this channel with its topics, such as discord:81384788765712384."),
]


@app.command()
def pause(platform: Platform = None, channel: Channel = None) -> None:
    """Answer nobody until `troupe resume`.

    In the whole installation, on a platform, or in a channel.

    Answers in progress are finished. Questions get a notice, at most every ten minutes in each
    channel, and become context. Commands, edits, and deletions work as always.
    """
    scope = scope_of(platform, channel)

    async def begin(database: Database) -> bool:
        is_new = await Pauses(database, SystemClock()).begin(scope, COMMAND_LINE)
        if is_new:
            await record_change(database, "pause answering", scope)
            await signal_all(PAUSES_TOPIC, [scope])
        return is_new

    if not use_installation(begin):
        raise UserError(f"{scope} is paused already; `troupe resume` ends that")
    print_line(f"paused: {scope}; every process obeys within 2 seconds")


def scope_of(platform: str | None, channel: str | None) -> str:
    """Return the scope that the options name.

    Raises:
        UserError: they name two, or what cannot exist.
    """
    if platform and channel:
        raise UserError("name either --platform or --channel")
    if channel:
        found = checked_key(channel, "--channel", "telegram:-1001234")
        if found.partition(":")[2].startswith(_SERVER):
            raise UserError(f"{channel} is a server; name one of its channels")
        return address_of(found).channel
    if platform:
        _require_known(platform)
    return platform or EVERYWHERE


def checked_key(key: str, option: str, example: str) -> str:
    """Return what an option names, if it is an id of a platform that there is.

    Raises:
        UserError: it cannot exist; nothing would be found, and nobody would know.
    """
    platform, _, rest = key.partition(":")
    _require_known(platform)
    if not rest:
        raise UserError(f"{option} is a platform and an id, such as {example}")
    return key


def _require_known(platform: str) -> None:
    known = [spec.kind for spec in platform_specs()]
    named = platform.partition("@")[0]
    if named not in known:
        raise UserError(f"{named!r} is no platform; there are: {', '.join(known)}")

"""`troupe resume`: answer again."""

from collections.abc import Sequence

from bot.cli.operation.installation import record_change, signal_all, use_installation
from bot.cli.operation.pause import Channel, Platform, scope_of
from bot.cli.text_io import print_line
from bot.cli.typer_apps import command_app
from bot.errors import UserError
from bot.runtime.clock import SystemClock
from bot.storage.database import Database
from bot.storage.operation import Pauses
from bot.turn.limits.pauses import PAUSES_TOPIC

app = command_app()


@app.command()
def resume(platform: Platform = None, channel: Channel = None) -> None:
    """Answer again after `troupe pause`.

    It ends the pause of the same scope: everything, a platform, or a channel.
    """
    scope = scope_of(platform, channel)

    async def end(database: Database) -> tuple[bool, Sequence[str]]:
        pauses = Pauses(database, SystemClock())
        is_ended = await pauses.end(scope)
        if is_ended:
            await record_change(database, "resume answering", scope)
            await signal_all(PAUSES_TOPIC, [scope])
        left = [one.scope for one in await pauses.current()]
        return is_ended, left

    is_ended, left = use_installation(end)
    still = f"; still paused: {', '.join(left)}" if left else ""
    if not is_ended:
        raise UserError(f"{scope} is not paused{still}")
    print_line(f"resumed: {scope}{still}")

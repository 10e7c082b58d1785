"""`troupe policy`: describe what is stored about people, and test its deletion."""

from typing import Annotated

import typer

from bot.cli.installation import require_database
from bot.cli.text_io import print_line
from bot.cli.typer_apps import create_command_app
from bot.errors import StoreError
from bot.importers.character_files import read_character_folder
from bot.runtime.shipped_files import presets_folder
from bot.runtime.tasks import run_async
from bot.service.drill import run_drill
from bot.service.policy import describe_policy
from bot.settings import read_settings
from bot.storage.data_kinds import KEPT_ID_REASONS
from bot.telemetry.logs import log_only_warnings

app = create_command_app()


@app.command()
def policy(
    drill: Annotated[
        bool,
        typer.Option(
            "--drill", help="Store a made-up person's data, delete it, then search for traces."
        ),
    ] = False,
) -> None:
    """Describe what is stored about people, and test deleting it.

    Prints Markdown: what is stored where and why, for how long, and who receives it. With --drill,
    stores data of a made-up person in the configured database and Redis, forgets them as
    `/forget me` does, and searches everywhere for traces; the exit code is 1 if any are left.
    Nothing is sent to chats or models, and the drill cleans up. The service may keep running.
    """
    settings = read_settings()
    if not drill:
        presets = read_character_folder(presets_folder(settings.presets_dir)).presets.values()
        for section in describe_policy(settings, presets):
            print_line(f"## {section.name}\n")
            for name, text in section.lines.items():
                print_line(f"- {name}: {text}")
            print_line("")
        return
    require_database(settings)
    with log_only_warnings():
        result = run_async(run_drill(settings))
    for place in sorted({*result.mentions_before, *result.mentions_after}):
        before, after = result.mentions_before.get(place, 0), result.mentions_after.get(place, 0)
        print_line(f"{place:<36}{before:>4} before the deletion, {after:>4} after")
    for place, count in sorted(result.retained_id_counts.items()):
        print_line(f"{place:<36}{count:>4} ids retained: {KEPT_ID_REASONS[place]}")
    if result.mentions_after:
        raise StoreError(
            f"after the deletion, data is still stored: {', '.join(sorted(result.mentions_after))}"
        )
    print_line("no traces left")

"""`troupe preset show`: a preset as strict JSON, and its version."""

import uvloop

from bot.cli.text_io import print_exactly, print_progress
from bot.cli.typer_apps import command_app
from bot.prompting.presets.files import export_preset, preset_version, read_presets
from bot.prompting.presets.preset import Preset
from bot.runtime.clock import SystemClock
from bot.runtime.shipped_files import presets_folder
from bot.settings import Settings, read_settings
from bot.storage.database import database_exists, open_database
from bot.storage.presets import PresetVersions

_NO_VERSION = "no version yet: the service has not started with it"

app = command_app()


@app.command("show")
def show_preset(name: str) -> None:
    """Print a preset as strict JSON, and its version.

    The version is printed to stderr, so that the JSON can be piped.
    """
    settings = read_settings()
    preset = read_presets(presets_folder(settings.presets_dir)).find(name)
    print_exactly(export_preset(preset))
    print_progress(uvloop.run(describe_version(preset, settings)))


async def describe_version(preset: Preset, settings: Settings) -> str:
    """Read from the database which version of a preset the service last started with.

    A database that does not exist is not created.
    """
    if not database_exists(settings.sqlalchemy_url):
        return _NO_VERSION
    async with open_database(settings.sqlalchemy_url, settings.text_encryption) as database:
        newest = await PresetVersions(database, SystemClock()).newest(preset.name)
    if newest is None:
        return _NO_VERSION
    if newest.content == preset_version(preset).content:
        return f"version {newest.version}"
    return f"edited since version {newest.version}; the next start makes it a new one"

"""Say which version of a preset the service last started with."""

from bot.prompting.presets.files import edition
from bot.prompting.presets.preset import Preset
from bot.runtime.clock import SystemClock
from bot.settings import Settings
from bot.storage.sql.database import database_exists, open_database
from bot.storage.sql.preset_versions import SqlPresetVersions

_NEW = "no version yet: the service has not started with it"


async def version_of(preset: Preset, settings: Settings) -> str:
    """Read it from the database, which is not made for that if there is none."""
    if not database_exists(settings.sqlalchemy_url):
        return _NEW
    async with open_database(settings.sqlalchemy_url) as database:
        newest = await SqlPresetVersions(database, SystemClock()).newest(preset.name)
    if newest is None:
        return _NEW
    if newest.content == edition(preset).content:
        return f"version {newest.version}"
    return f"edited since version {newest.version}; the next start makes it a new one"

"""`troupe db`: upgrade the database, or show its revision."""

import uvloop

from bot.cli.text_io import print_line
from bot.cli.typer_apps import command_app
from bot.settings import Settings, read_settings
from bot.storage.data_dir import create_data_dir
from bot.storage.sql.database import open_database, read_revision
from bot.storage.sql.tables import NEWEST_REVISION

app = command_app("Upgrade the database, or show its revision.")


@app.command("upgrade")
def upgrade_database() -> None:
    """Upgrade the tables to the newest revision; `troupe run` does this by itself."""
    uvloop.run(_open_and_close(read_settings()))
    print_line(f"the database is at {NEWEST_REVISION}")


@app.command("current")
def show_revision() -> None:
    """Show the revision of the tables, and the one that this version of Troupe needs."""
    found = uvloop.run(read_revision(read_settings().sqlalchemy_url)) or "no tables yet"
    needed = f"{found}; this version of Troupe needs {NEWEST_REVISION} (`troupe db upgrade`)"
    print_line(found if found == NEWEST_REVISION else needed)


async def _open_and_close(settings: Settings) -> None:
    create_data_dir(settings.data_dir)
    async with open_database(settings.sqlalchemy_url):
        pass

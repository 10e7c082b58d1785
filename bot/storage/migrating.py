"""Bring the tables to their newest form; the only part that needs Alembic to run."""

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.util import CommandError
from sqlalchemy import Connection

from bot.errors import SettingsError

MIGRATIONS = Path(__file__).parents[2] / "migrations"


def alembic_config() -> Config:
    """The configuration of the migrations beside the package."""
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    return config


def upgrade(connection: Connection) -> None:
    """Raise SettingsError for tables of a form that is unknown here."""
    config = alembic_config()
    config.attributes["connection"] = connection
    try:
        command.upgrade(config, "head")
    except CommandError as error:
        raise SettingsError(
            f"the database was made by a newer Troupe, start that one: {error}"
        ) from error

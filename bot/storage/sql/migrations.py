"""Bring the tables to their newest form; the only part that needs Alembic to run."""

from alembic import command
from alembic.config import Config
from alembic.util import CommandError
from sqlalchemy import Connection

from bot.errors import SettingsError
from bot.runtime.shipped_files import shipped_folder

_LOCK = 0x7472_6F75_7065  # "troupe": any number that nobody else takes


def alembic_config() -> Config:
    """Return the configuration for the migrations that came with Troupe."""
    config = Config()
    config.set_main_option("script_location", str(shipped_folder("migrations")))
    return config


def upgrade(connection: Connection) -> None:
    """Upgrade in the transaction of this connection; who comes second finds it done.

    Raises:
        SettingsError: the tables have a form that is unknown here.
    """
    if connection.dialect.name == "postgresql":  # SQLite's writer has locked the file already
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_LOCK})")
    config = alembic_config()
    config.attributes["connection"] = connection
    try:
        command.upgrade(config, "head")
    except CommandError as error:
        raise SettingsError(
            f"the database was made by a newer Troupe, start that one: {error}"
        ) from error

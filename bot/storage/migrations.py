"""Upgrade the tables with Alembic; the only module that imports Alembic."""

from alembic import command
from alembic.config import Config
from alembic.util import CommandError
from sqlalchemy import Connection

from bot.errors import SettingsError
from bot.runtime.shipped_files import find_shipped_folder

_ADVISORY_LOCK_ID = 0x7472_6F75_7065  # "troupe" in ASCII


def build_alembic_config() -> Config:
    """Return Alembic's configuration for Troupe's migrations."""
    config = Config()
    config.set_main_option("script_location", str(find_shipped_folder("migrations")))
    return config


def upgrade(connection: Connection) -> None:
    """Upgrade tables within a transaction; raises `SettingsError` on an unknown revision."""
    if connection.dialect.name == "postgresql":  # on SQLite, BEGIN IMMEDIATE has locked the file
        # wait as long as another process is migrating
        connection.exec_driver_sql("SET LOCAL lock_timeout = 0")
        connection.exec_driver_sql("SET LOCAL statement_timeout = 0")
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_ADVISORY_LOCK_ID})")
    config = build_alembic_config()
    config.attributes["connection"] = connection
    try:
        command.upgrade(config, "head")
    except CommandError as error:
        raise SettingsError(
            f"the database belongs to another version of Troupe; start that version: {error}"
        ) from error

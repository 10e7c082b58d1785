"""The revision of the tables, and which versions of Troupe may use them.

While processes are replaced one after the other, two versions share the tables of the newer one. So
an upgrade only adds to them (CONTRIBUTING.md): an older version goes on, and may be started again,
as long as its own revision is not below the oldest one that the upgrade wrote down.
"""

from dataclasses import dataclass

from sqlalchemy import Connection, MetaData, String, Table, delete, insert, inspect, select
from sqlalchemy.schema import Column

from bot.errors import SettingsError
from bot.storage.sql.tables import metadata, supported_revision

NEWEST_REVISION = "0100"
"""The revision in migrations/ that creates exactly the tables of `bot.storage.sql.tables`."""

OLDEST_REVISION = "0100"
"""The oldest revision whose version of Troupe works with these tables.

Raised by the migration that removes or changes what that version uses.
"""

_FIRST_REVISION = "0100"
"""Of the first release; the versions before it had lower ones."""

_alembic_version = Table(
    "alembic_version", MetaData(), Column("version_num", String(32), primary_key=True)
)


@dataclass(frozen=True)
class TableRevisions:
    """What a database says of its tables; None: there are none, or they do not say it."""

    newest: str | None
    oldest: str | None

    @property
    def is_newer(self) -> bool:
        """Whether a newer version of Troupe has upgraded them."""
        return self.newest is not None and self.newest > NEWEST_REVISION

    def check_supported(self) -> None:
        """Raise `SettingsError` if this version of Troupe cannot use them."""
        if self.newest is not None and self.newest < _FIRST_REVISION:
            raise SettingsError(
                f"the database is of an unreleased version of Troupe (revision {self.newest}) and "
                "cannot be upgraded: set TROUPE_DATA_DIR or TROUPE_DATABASE_URL to a new one"
            )
        if self.is_newer and (self.oldest is None or self.oldest > NEWEST_REVISION):
            raise SettingsError(
                f"the database was upgraded by a newer version of Troupe, to revision "
                f"{self.newest}, which needs {self.oldest or self.newest} or newer; this version "
                f"has {NEWEST_REVISION}: start the newer version"
            )


def read_revisions(connection: Connection) -> TableRevisions:
    tables = inspect(connection)
    if not tables.has_table(_alembic_version.name):
        return TableRevisions(None, None)
    newest = connection.execute(select(_alembic_version.c.version_num)).scalar_one_or_none()
    oldest = None
    if tables.has_table(supported_revision.name):
        oldest = connection.execute(select(supported_revision.c.oldest)).scalar_one_or_none()
    return TableRevisions(newest, oldest)


def write_oldest_revision(connection: Connection) -> None:
    """Write down which versions may use the tables; at the end of an upgrade."""
    connection.execute(delete(supported_revision))
    connection.execute(insert(supported_revision).values(oldest=OLDEST_REVISION))


def create_tables(connection: Connection) -> bool:
    """Create all tables of a new SQLite file as they are now; return False if it has some already.

    Running every migration would import Alembic, which costs a first start a third of a second and
    eight megabytes.
    """
    if inspect(connection).get_table_names():
        return False
    metadata.create_all(connection, checkfirst=False)
    _alembic_version.create(connection, checkfirst=False)
    connection.execute(insert(_alembic_version).values(version_num=NEWEST_REVISION))
    write_oldest_revision(connection)
    return True

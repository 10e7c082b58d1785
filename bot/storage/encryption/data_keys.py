"""The rows with data keys, which are encrypted with the operator's key.

None is ever deleted, so that no text becomes unreadable: one that encrypts nothing any more is
retired.
"""

from collections.abc import Callable, Sequence

from sqlalchemy import Connection, insert, select, update

from bot.frozen_dataclass import frozen_dataclass
from bot.storage.sql.tables import data_key

_ROWS = select(data_key.c.id, data_key.c.token, data_key.c.retired_at).order_by(data_key.c.id)


@frozen_dataclass
class DataKeyRow:
    """An encrypted data key."""

    number: int
    token: str
    is_retired: bool


def read_data_keys(connection: Connection) -> Sequence[DataKeyRow]:
    """Return all data keys, the oldest first."""
    rows = connection.execute(_ROWS)
    return [DataKeyRow(row.id, row.token, row.retired_at is not None) for row in rows]


def add_data_key(connection: Connection, token: str, now: float) -> None:
    """Store a data key, unless another process has stored one meanwhile."""
    if all(row.is_retired for row in read_data_keys(connection)):
        connection.execute(insert(data_key), {"token": token, "created_at": now})


def add_newer_data_key(connection: Connection, token: str, now: float) -> None:
    """Store a data key that replaces the one in use; one that was added before goes on with it."""
    if sum(not row.is_retired for row in read_data_keys(connection)) <= 1:
        connection.execute(insert(data_key), {"token": token, "created_at": now})


def retire_older_data_keys(connection: Connection, now: float) -> None:
    """Note that no row is encrypted with another data key than the newest."""
    newest = max((row.number for row in read_data_keys(connection)), default=0)
    older = update(data_key).where(data_key.c.retired_at.is_(None), data_key.c.id < newest)
    connection.execute(older.values(retired_at=now))


def replace_data_keys(connection: Connection, renew: Callable[[DataKeyRow], str]) -> int:
    """Replace every token, or none if `renew` raises; return their number."""
    rows = read_data_keys(connection)
    for row in rows:
        renewed = update(data_key).where(data_key.c.id == row.number)
        connection.execute(renewed.values(token=renew(row)))
    return len(rows)


def retire_data_keys(connection: Connection, now: float) -> None:
    """Note that no row is encrypted with any of the data keys."""
    in_use = update(data_key).where(data_key.c.retired_at.is_(None))
    connection.execute(in_use.values(retired_at=now))

"""The rows with the encrypted keys of providers."""

from collections.abc import Callable, Sequence

from sqlalchemy import Connection, delete, insert, inspect, select, update

from bot.ports import Clock
from bot.storage.database import Database
from bot.storage.tables import provider_key
from bot.value_class import value_class


@value_class
class StoredKey:
    """An encrypted key."""

    number: int
    provider: str
    token: str
    """The key, encrypted."""
    added_at: float
    """Unix seconds."""


class SqlProviderKeys:
    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def add(self, provider: str, token: str) -> None:
        row = {"provider": provider, "token": token, "added_at": self._clock.now()}
        await self._database.write(lambda c: c.execute(insert(provider_key), row))

    async def read(self) -> Sequence[StoredKey]:
        """Return all keys, oldest first; none where the tables are older than these keys."""
        return await self._database.read(_read)

    async def remove(self, number: int) -> bool:
        """Remove a key; return False if there is none of this number."""
        statement = delete(provider_key).where(provider_key.c.id == number)
        return await self._database.write(lambda c: c.execute(statement).rowcount > 0)


def _read(connection: Connection) -> list[StoredKey]:
    if not inspect(connection).has_table(provider_key.name):
        return []
    rows = connection.execute(select(provider_key).order_by(provider_key.c.id))
    return [StoredKey(row.id, row.provider, row.token, row.added_at) for row in rows]


def replace_provider_keys(connection: Connection, renew: Callable[[str, str], str]) -> int:
    """Replace every token, or none if `renew` raises; return their number."""
    keys = _read(connection)
    for key in keys:
        renewed = update(provider_key).where(provider_key.c.id == key.number)
        connection.execute(renewed.values(token=renew(key.provider, key.token)))
    return len(keys)

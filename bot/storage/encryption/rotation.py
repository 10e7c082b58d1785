"""Encrypt stored keys again with the newest of the operator's keys."""

from collections.abc import Sequence

from sqlalchemy import Connection

from bot.storage.encryption.cipher import DataKeys
from bot.storage.encryption.data_keys import replace_data_keys
from bot.storage.provider_keys.cipher import KeyCipher
from bot.storage.provider_keys.rows import StoredKey, replace_provider_keys
from bot.storage.sql.database import Database


async def rotate_keys(database: Database, encryption_keys: Sequence[str]) -> int:
    """Encrypt the keys of providers and the data keys again; return their number.

    All are replaced in one transaction: a process that is killed has replaced none of them.

    Raises:
        SettingsError: one was encrypted with a key that is not among these; none was replaced.
    """
    provider_keys, data_keys = KeyCipher(encryption_keys), DataKeys(encryption_keys)

    def renew(one: StoredKey) -> str:
        return provider_keys.rotate(one.provider, one.token)

    def unit(connection: Connection) -> int:
        count = replace_provider_keys(connection, renew)
        return count + replace_data_keys(connection, data_keys.rotate)

    return await database.write(unit)

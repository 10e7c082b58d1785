"""Encrypt stored keys again with the operator's newest, and texts with another data key."""

from collections.abc import Sequence

from sqlalchemy import Connection

from bot.storage.encryption.cipher import DataKeys
from bot.storage.encryption.codec import TextEncryption
from bot.storage.encryption.conversion import Report, convert_texts
from bot.storage.encryption.data_keys import (
    add_newer_data_key,
    replace_data_keys,
    retire_older_data_keys,
)
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


async def replace_data_key(
    database: Database, encryption: TextEncryption, report: Report, now: float
) -> int:
    """Make a new data key and encrypt every text with it; return how many rows were changed.

    The service may run meanwhile: a process takes the new key over with the first text that needs
    it. A run that was interrupted goes on. The old key is retired and not deleted, for backups.

    Raises:
        SettingsError: the data keys cannot be decrypted.
        StoreError: others keep storing texts with the old key, or the database failed.
    """
    token = DataKeys(encryption.encryption_keys).make()
    await database.write(lambda connection: add_newer_data_key(connection, token, now))
    await database.load_data_keys(encryption)
    changed = await convert_texts(database, report)
    await database.write(lambda connection: retire_older_data_keys(connection, now))
    return changed

"""Envelope encryption: texts with data keys (AES-256-GCM), data keys with the operator's (Fernet).

So a change of the operator's key encrypts the data keys again, and no text.
"""

import os
from collections.abc import Mapping, Sequence

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.fernet import InvalidToken
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from typing_extensions import override

from bot.errors import SettingsError, Undecodable
from bot.storage.encryption.codec import DataCipher
from bot.storage.encryption.data_keys import DataKeyRow
from bot.storage.encryption.operator_keys import make_fernets

_KEY_BITS = 256
_NONCE_BYTES = 12


class _DataKey(msgspec.Struct):
    text_key: bytes
    """Named, so that no other token of these keys is taken for a data key."""


class AesGcmCipher(DataCipher):
    """Each value has a random nonce, and is bound to the column that it belongs to."""

    def __init__(self, key: bytes) -> None:
        self._aes = AESGCM(key)

    @override
    def encrypt(self, column: str, plain: bytes) -> bytes:
        nonce = os.urandom(_NONCE_BYTES)
        return nonce + self._aes.encrypt(nonce, plain, column.encode())

    @override
    def decrypt(self, column: str, encrypted: bytes) -> bytes:
        nonce, sealed = encrypted[:_NONCE_BYTES], encrypted[_NONCE_BYTES:]
        try:
            return self._aes.decrypt(nonce, sealed, column.encode())
        except (InvalidTag, ValueError):
            raise Undecodable(
                f"an encrypted text in the database ({column}) is damaged, or was moved there from"
                " another column"
            ) from None


class DataKeys:
    """Encrypts and decrypts data keys with those of TROUPE_ENCRYPTION_KEYS."""

    def __init__(self, encryption_keys: Sequence[str]) -> None:
        """Take the operator's keys; raises `SettingsError` if they are missing or malformed."""
        self._fernets = make_fernets(encryption_keys, needed_by="texts in the database need")

    def make(self) -> str:
        """Return a new data key, encrypted."""
        return self._wrap(_DataKey(AESGCM.generate_key(_KEY_BITS)))

    def rotate(self, row: DataKeyRow) -> str:
        """Encrypt a data key again with the operator's newest key; raises `SettingsError`."""
        try:
            return self._wrap(self._unwrap(row))
        except SettingsError:
            if row.is_retired:
                return row.token
            raise

    def ciphers(self, rows: Sequence[DataKeyRow]) -> Mapping[int, DataCipher]:
        """Return what decrypts with each data key; one that is retired may be missing.

        Raises:
            SettingsError: one that is in use was encrypted with another key.
        """
        found: dict[int, DataCipher] = {}
        for row in rows:
            try:
                found[row.number] = AesGcmCipher(self._unwrap(row).text_key)
            except SettingsError:
                if not row.is_retired:
                    raise
        return found

    def _wrap(self, key: _DataKey) -> str:
        return self._fernets.encrypt(msgspec.json.encode(key)).decode()

    def _unwrap(self, row: DataKeyRow) -> _DataKey:
        try:
            return msgspec.json.decode(self._fernets.decrypt(row.token), type=_DataKey)
        except (InvalidToken, msgspec.DecodeError):
            raise SettingsError(
                "texts in the database are encrypted with a key that is not in"
                " TROUPE_ENCRYPTION_KEYS; put that key back there (or into"
                " TROUPE_ENCRYPTION_KEYS_FILE), beside newer ones. Nothing was changed"
            ) from None

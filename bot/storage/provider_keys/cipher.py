"""Encrypt the keys of providers: the first encryption key encrypts, each of them decrypts."""

from collections.abc import Sequence

import msgspec
from cryptography.fernet import Fernet, InvalidToken, MultiFernet

from bot.errors import SettingsError
from bot.storage.encryption.fernets import make_fernets


class _Secret(msgspec.Struct):
    provider: str
    """So that a row that was moved to another provider, at another address, is refused."""
    key: str


class KeyCipher:
    """Encrypts and decrypts with the keys of TROUPE_ENCRYPTION_KEYS, the newest first."""

    def __init__(self, encryption_keys: Sequence[str]) -> None:
        """Take the keys.

        Raises:
            SettingsError: there is none, or one is not of the form that `troupe keys new` prints.
        """
        made = make_fernets(encryption_keys, needed_by="keys in the database need")
        self._fernets = MultiFernet(made)

    def encrypt(self, provider: str, key: str) -> str:
        """Encrypt the key of a provider."""
        return self._fernets.encrypt(msgspec.json.encode(_Secret(provider, key))).decode()

    def decrypt(self, provider: str, token: str) -> str:
        """Return the key of a provider; raises `SettingsError` if it cannot be read."""
        try:
            secret = msgspec.json.decode(self._fernets.decrypt(token), type=_Secret)
        except InvalidToken:
            raise SettingsError(
                f"a stored key of provider {provider!r} was encrypted with a key that is not in"
                " TROUPE_ENCRYPTION_KEYS; add it there, or remove the key with `troupe keys remove`"
            ) from None
        if secret.provider != provider:
            raise SettingsError(
                f"a stored key of provider {provider!r} belongs to {secret.provider!r}; somebody"
                " has changed the database"
            )
        return secret.key

    def rotate(self, provider: str, token: str) -> str:
        """Encrypt a key again with the newest encryption key; raises as `decrypt`."""
        return self.encrypt(provider, self.decrypt(provider, token))


def new_encryption_key() -> str:
    """Return a random key for TROUPE_ENCRYPTION_KEYS."""
    return Fernet.generate_key().decode()

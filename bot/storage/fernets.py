"""Encrypt with the keys of TROUPE_ENCRYPTION_KEYS: the first one encrypts, each decrypts.

Loaded only where there are such keys: cryptography takes nine megabytes.
"""

import contextlib
import hashlib
import re
from collections.abc import Sequence

import msgspec
from cryptography.fernet import Fernet, InvalidToken, MultiFernet
from typing_extensions import override

from bot.errors import SettingsError, Undecodable
from bot.storage.codec import TextEncryption, TextKeys

_KEY_ID = re.compile("[0-9a-f]{8}")


def make_fernets(encryption_keys: Sequence[str], *, needed_by: str) -> list[Fernet]:
    """Return a Fernet for each of the keys.

    Args:
        encryption_keys: as `troupe keys new` prints them, the newest first.
        needed_by: what needs them, for the error.

    Raises:
        SettingsError: there is none, or one is not of that form.
    """
    if not encryption_keys:
        raise SettingsError(
            f"{needed_by} a key to encrypt them; set TROUPE_ENCRYPTION_KEYS to"
            " what `troupe keys new` prints, and keep a copy of it outside of the database"
        )
    try:
        return [Fernet(key) for key in encryption_keys]
    except ValueError:
        raise SettingsError(
            "TROUPE_ENCRYPTION_KEYS has something else than keys as `troupe keys new` prints"
            " them, separated by commas"
        ) from None


class FernetKeys(TextKeys):
    """Each text names the key that it was encrypted with."""

    def __init__(self, encryption: TextEncryption) -> None:
        """Take the keys; raises `SettingsError` if they are missing or malformed."""
        self._use(encryption)

    @property
    @override
    def newest(self) -> str:
        return next(iter(self._fernets))

    @override
    def encrypt(self, plain: bytes) -> str:
        return f"{self.newest}:{self._fernets[self.newest].encrypt(plain).decode()}"

    @override
    def decrypt(self, stored: str) -> bytes:
        key, _, token = stored.partition(":")
        if key not in self._fernets and _KEY_ID.fullmatch(key):
            with contextlib.suppress(SettingsError):  # the file is just being replaced
                self._use(self._encryption.with_newest_keys())
            if key not in self._fernets:
                return super().decrypt(stored)
        try:
            return self._fernets[key].decrypt(token.encode())
        except (KeyError, InvalidToken):
            raise Undecodable("an encrypted text in the database is damaged") from None

    def _use(self, encryption: TextEncryption) -> None:
        keys = encryption.encryption_keys
        made = make_fernets(keys, needed_by="texts in the database need")
        ids = (hashlib.sha256(key.encode()).hexdigest()[:8] for key in keys)
        self._fernets = dict(zip(ids, made, strict=True))
        self._encryption = encryption


class _Secret(msgspec.Struct):
    provider: str
    """Binds a key to its provider and address; a row moved to another one is refused."""
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

"""Encrypt and decrypt with `TROUPE_ENCRYPTION_KEYS`: the first key encrypts, all keys decrypt.

Imported only if there are keys, because cryptography takes 9 MB of memory.
"""

import hashlib
import re
from collections.abc import Sequence

import msgspec
import structlog
from cryptography.fernet import Fernet, InvalidToken, MultiFernet
from typing_extensions import override

from bot.errors import SettingsError, Undecodable
from bot.runtime.secret_file import read_secrets
from bot.storage.codec import TextCodec, TextEncryption
from bot.telemetry.secret_masker import register_secrets

_log = structlog.get_logger(__name__)
_KEY_ID = re.compile("[0-9a-f]{8}")


def create_fernets(encryption_keys: Sequence[str], *, purpose: str) -> list[Fernet]:
    """Return a Fernet per key, newest first; raises `SettingsError` that mentions `purpose`."""
    if not encryption_keys:
        raise SettingsError(
            f"{purpose} in the database need an encryption key; set TROUPE_ENCRYPTION_KEYS to"
            " the output of `troupe keys new`, and keep a copy outside the database"
        )
    try:
        return [Fernet(key) for key in encryption_keys]
    except ValueError:
        raise SettingsError(
            "TROUPE_ENCRYPTION_KEYS must be a comma-separated list of keys as printed by"
            " `troupe keys new`"
        ) from None


class FernetCodec(TextCodec):
    """Encrypts texts, and prefixes each with the id of its key."""

    def __init__(self, encryption: TextEncryption) -> None:
        self._encrypts_new_texts = encryption.encrypts_new_texts
        self._keys_file = encryption.keys_file
        self._set_keys(encryption.encryption_keys)

    @override
    def encrypt(self, plain_bytes: bytes) -> str:
        key_id = self.encrypting_key_id
        return f"{key_id}:{self._fernets[key_id].encrypt(plain_bytes).decode()}"

    @override
    def decrypt(self, stored_text: str) -> bytes:
        key_id, _, token = stored_text.partition(":")
        if key_id not in self._fernets and _KEY_ID.fullmatch(key_id):
            self._read_keys_file()
            if key_id not in self._fernets:
                return super().decrypt(stored_text)
        try:
            return self._fernets[key_id].decrypt(token.encode())
        except (KeyError, InvalidToken):
            raise Undecodable("an encrypted text in the database is damaged") from None

    def _set_keys(self, keys: Sequence[str]) -> None:
        fernets = create_fernets(keys, purpose="texts")
        key_ids = (hashlib.sha256(key.encode()).hexdigest()[:8] for key in keys)
        self._fernets = dict(zip(key_ids, fernets, strict=True))
        self.encrypting_key_id = next(iter(self._fernets)) if self._encrypts_new_texts else ""
        self._known_keys = keys

    def _read_keys_file(self) -> None:
        """Add new keys from the file; ignore an unreadable file, because it may be half-written."""
        if self._keys_file is None:
            return
        try:
            new_keys = [key for key in read_secrets(self._keys_file) if key not in self._known_keys]
            register_secrets(new_keys)
            self._set_keys([*new_keys, *self._known_keys])
        except (OSError, UnicodeDecodeError, SettingsError) as error:
            _log.warning("secret_file_not_read", reason=type(error).__name__)


class KeyCipher:
    """Encrypts API keys with the newest of `TROUPE_ENCRYPTION_KEYS`, and decrypts with all.

    An encrypted key contains its provider, so that a row moved to another provider is rejected.
    """

    def __init__(self, encryption_keys: Sequence[str]) -> None:
        self._fernets = MultiFernet(create_fernets(encryption_keys, purpose="API keys"))

    def encrypt(self, provider: str, key: str) -> str:
        """Return the provider's API key in encrypted form, to be stored."""
        return self._fernets.encrypt(msgspec.json.encode((provider, key))).decode()

    def decrypt(self, provider: str, token: str) -> str:
        """Return a provider's decrypted API key; raises `SettingsError` if decryption fails."""
        try:
            plain_bytes = self._fernets.decrypt(token)
        except InvalidToken:
            raise SettingsError(
                f"the API key stored for {provider!r} was encrypted with a key that is not in"
                " TROUPE_ENCRYPTION_KEYS; add that encryption key, or delete the API key with"
                " `troupe keys remove`"
            ) from None
        key_provider, key = msgspec.json.decode(plain_bytes, type=tuple[str, str])
        if key_provider != provider:
            raise SettingsError(
                f"the API key stored for {provider!r} was encrypted for {key_provider!r}; somebody"
                " changed the database. Delete the key with `troupe keys remove`"
            )
        return key

    def rotate(self, provider: str, token: str) -> str:
        """Re-encrypt an API key with the newest encryption key; for errors, see `decrypt`."""
        return self.encrypt(provider, self.decrypt(provider, token))


def generate_encryption_key() -> str:
    """Return a random key for `TROUPE_ENCRYPTION_KEYS`."""
    return Fernet.generate_key().decode()

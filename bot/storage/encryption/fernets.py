"""The keys of TROUPE_ENCRYPTION_KEYS: the first one encrypts, each decrypts."""

import contextlib
import hashlib
import re
from collections.abc import Sequence

from cryptography.fernet import Fernet, InvalidToken
from typing_extensions import override

from bot.errors import SettingsError, Undecodable
from bot.storage.encryption.codec import TextEncryption, TextKeys

_KEY_ID = re.compile("[0-9a-f]{8}")


def make_fernets(encryption_keys: Sequence[str], *, needed_by: str) -> list[Fernet]:
    """Return what encrypts and decrypts with each of the keys.

    Args:
        encryption_keys: as `troupe keys new` prints them, the newest first.
        needed_by: what cannot do without them, for the error.

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

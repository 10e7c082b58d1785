"""Encode columns with people's and characters' words: plain, or encrypted and marked.

A mark distinguishes the two, so rows of both kinds can coexist while encryption is turned on or
off::

    Hello                                as it is
    <mark>3f9c0a71:gAAAAABpKZ1...        the id of the key, and what Fernet made of the text
    <mark><mark>...                      a text that itself begins like the mark
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import structlog
from typing_extensions import override

from bot.errors import UnknownEncryptionKey
from bot.runtime.secret_file import read_secrets
from bot.telemetry.secret_masker import mask_from_now_on
from bot.value_class import value_class

_log = structlog.get_logger(__name__)

_MARK = "\x02troupe:"
_MARK_BYTES = _MARK.encode()


@value_class
class TextEncryption:
    """What the settings say about texts in the database."""

    encryption_keys: Sequence[str] = ()
    """The newest first."""
    is_on: bool = False
    """Whether new texts are encrypted; encrypted texts can be read in any case."""
    keys_file: Path | None = None
    """A file with some of the keys, which may be replaced while the service runs."""

    def with_newest_keys(self) -> Self:
        """Add the keys that its file has now, in front of those that were known.

        A file that cannot be read adds none: it is just being replaced.
        """
        if self.keys_file is None:
            return self
        try:
            found = read_secrets(self.keys_file)
        except (OSError, UnicodeDecodeError) as error:
            _log.warning("secret_file_not_read", reason=type(error).__name__)
            return self
        new = [key for key in found if key not in self.encryption_keys]
        mask_from_now_on(new)
        return replace(self, encryption_keys=(*new, *self.encryption_keys))


class TextKeys:
    """No keys: nothing is encrypted, and nothing that is can be read."""

    @property
    def newest(self) -> str:
        """The id of the key that encrypts."""
        return ""

    def encrypt(self, _plain: bytes) -> str:
        """Return the id of the newest key, a colon, and the encrypted text."""
        raise UnknownEncryptionKey

    def decrypt(self, _stored: str) -> bytes:
        """Return what was encrypted.

        Raises:
            UnknownEncryptionKey: its key is not there, nor in the file of the keys as it is now.
            Undecodable: it is damaged.
        """
        raise UnknownEncryptionKey


class TextCodec:
    """Encodes texts for storage and decodes them; encrypts nothing until `use` is called."""

    def __init__(self) -> None:
        self._keys = TextKeys()
        self._is_on = False

    def use(self, keys: TextKeys, *, is_on: bool) -> None:
        """Read with these keys from now on; if it is on, encrypt with the newest."""
        self._keys, self._is_on = keys, is_on

    def encode_text(self, text: str | None) -> str | None:
        """Encode a text for storage; None and "" are stored unchanged."""
        if not text:
            return text
        if self._is_on:
            return _MARK + self._keys.encrypt(text.encode())
        return _MARK + text if text.startswith(_MARK) else text

    def decode_text(self, stored: str | None) -> str | None:
        """Decode a stored text; raises what `TextKeys.decrypt` raises."""
        if not isinstance(stored, str) or not stored.startswith(_MARK):
            return stored
        rest = stored.removeprefix(_MARK)
        return rest if rest.startswith(_MARK) else self._keys.decrypt(rest).decode()

    def encode_bytes(self, plain: bytes | None) -> bytes | None:
        """Encode bytes for storage; None and b"" are stored unchanged."""
        if not plain:
            return plain
        if self._is_on:
            return _MARK_BYTES + self._keys.encrypt(plain).encode()
        return _MARK_BYTES + plain if plain.startswith(_MARK_BYTES) else plain

    def decode_bytes(self, stored: bytes | None) -> bytes | None:
        """Decode stored bytes; raises what `TextKeys.decrypt` raises."""
        if not isinstance(stored, bytes) or not stored.startswith(_MARK_BYTES):
            return stored  # SQLite may hold any type
        rest = stored.removeprefix(_MARK_BYTES)
        if rest.startswith(_MARK_BYTES):
            return rest
        return self._keys.decrypt(rest.decode("ascii", "replace"))

    def renewed(self, stored: Any) -> Any:
        """Encode a stored value again, with today's key."""
        if not stored or _key_of(stored) == (self._keys.newest if self._is_on else ""):
            return stored
        if isinstance(stored, str):
            return self.encode_text(self.decode_text(stored))
        return self.encode_bytes(self.decode_bytes(stored))


class StoredAsIs(TextCodec):
    """Leaves every value as it is stored: for copies of whole rows."""

    @override
    def encode_text(self, text: str | None) -> str | None:
        return text

    @override
    def decode_text(self, stored: str | None) -> str | None:
        return stored

    @override
    def encode_bytes(self, plain: bytes | None) -> bytes | None:
        return plain

    @override
    def decode_bytes(self, stored: bytes | None) -> bytes | None:
        return stored


def _key_of(stored: str | bytes) -> str:
    """Return the id of the key of a stored value, "" if it is not encrypted."""
    begin = stored if isinstance(stored, str) else stored[:32].decode("latin-1")
    return begin.removeprefix(_MARK).partition(":")[0] if begin.startswith(_MARK) else ""

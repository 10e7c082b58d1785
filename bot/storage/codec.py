"""Encode columns with people's or characters' texts: as plain text, or encrypted and marked.

A mark distinguishes the two, so that both kinds can coexist while encryption is turned on or off::

    Hello                                plain text
    <mark>3f9c0a71:gAAAAABpKZ1...        encrypted: the key's id, and the Fernet token
    <mark><mark>...                      plain text that itself starts with the mark
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from typing_extensions import override

from bot.errors import UnknownEncryptionKey
from bot.value_class import value_class

_ENCRYPTED_MARK = "\x02troupe:"
_ENCRYPTED_MARK_BYTES = _ENCRYPTED_MARK.encode()


@value_class
class TextEncryption:
    """The settings for encrypting texts in the database."""

    encryption_keys: Sequence[str] = ()
    """The encryption keys, newest first."""
    encrypts_new_texts: bool = False
    """Whether new texts are encrypted; texts that are already encrypted stay readable."""
    keys_file: Path | None = None
    """A file with some of the keys, which may be replaced while the service runs."""


class TextCodec:
    """Encodes texts and bytes for storage. This base class has no key and encrypts nothing."""

    encrypting_key_id = ""
    """The id of the key that encrypts new texts; "" if new texts are not encrypted."""

    def encrypt(self, _plain_bytes: bytes) -> str:
        """Return the encrypted text, prefixed with the newest key's id and a colon."""
        raise UnknownEncryptionKey

    def decrypt(self, _stored_text: str) -> bytes:
        """Return the decrypted text; raises `UnknownEncryptionKey` or `Undecodable`."""
        raise UnknownEncryptionKey

    def encode(self, value: Any) -> Any:
        """Encode a text or bytes for storage; None and empty values stay unchanged."""
        if not value:
            return value
        if isinstance(value, str):
            if self.encrypting_key_id:
                return _ENCRYPTED_MARK + self.encrypt(value.encode())
            return _ENCRYPTED_MARK + value if value.startswith(_ENCRYPTED_MARK) else value
        if self.encrypting_key_id:
            return _ENCRYPTED_MARK_BYTES + self.encrypt(value).encode()
        return _ENCRYPTED_MARK_BYTES + value if value.startswith(_ENCRYPTED_MARK_BYTES) else value

    def decode(self, stored_value: Any) -> Any:
        """Decode a stored value; raises the same errors as `decrypt`."""
        if isinstance(stored_value, str) and stored_value.startswith(_ENCRYPTED_MARK):
            text = stored_value.removeprefix(_ENCRYPTED_MARK)
            return text if text.startswith(_ENCRYPTED_MARK) else self.decrypt(text).decode()
        if isinstance(stored_value, bytes) and stored_value.startswith(_ENCRYPTED_MARK_BYTES):
            unmarked_bytes = stored_value.removeprefix(_ENCRYPTED_MARK_BYTES)
            if unmarked_bytes.startswith(_ENCRYPTED_MARK_BYTES):
                return unmarked_bytes
            return self.decrypt(unmarked_bytes.decode("ascii", "replace"))
        return stored_value  # SQLite may hold any type

    def reencode(self, stored_value: Any) -> Any:
        """Return a stored value, re-encoded with the newest key."""
        if not stored_value or _extract_key_id(stored_value) == self.encrypting_key_id:
            return stored_value
        return self.encode(self.decode(stored_value))


class PassThroughCodec(TextCodec):
    """Leaves stored values unchanged, to copy whole rows."""

    @override
    def encode(self, value: Any) -> Any:
        return value

    @override
    def decode(self, stored_value: Any) -> Any:
        return stored_value


def _extract_key_id(stored_value: str | bytes) -> str:
    """Return the id of a stored value's key; "" if it is not encrypted."""
    prefix = stored_value if isinstance(stored_value, str) else stored_value[:32].decode("latin-1")
    return (
        prefix.removeprefix(_ENCRYPTED_MARK).partition(":")[0]
        if prefix.startswith(_ENCRYPTED_MARK)
        else ""
    )

"""What columns with people's and characters' words hold: a text as it is, or encrypted and marked.

A mark tells the two apart, so that rows of both kinds stand side by side while the option is turned
on or off. The mark is followed by the number of the data key, 0 for a text that itself begins like
the mark, and by what was encrypted::

    Hello                       as it is
    <mark>3:q83vEjRWeJ...       encrypted with data key 3; in a column of bytes without base64
"""

import binascii
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol, Self

import structlog
from typing_extensions import override

from bot.errors import Undecodable, UnknownDataKey
from bot.frozen_dataclass import frozen_dataclass
from bot.runtime.secret_file import read_secrets
from bot.telemetry.secret_masker import mask_from_now_on

_log = structlog.get_logger(__name__)

_MARK = "\x02troupe:"
_MARK_BYTES = _MARK.encode()
_AS_IT_IS = 0


@frozen_dataclass
class TextEncryption:
    """What the settings say about texts in the database."""

    encryption_keys: Sequence[str] = ()
    """What encrypts data keys, the newest first."""
    is_on: bool = False
    """Whether new texts are encrypted; those that are can be read in any case."""
    keys_file: Path | None = None
    """Where some of the keys are from, which may be replaced while the service runs."""

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


class DataCipher(Protocol):
    """Encrypts with one data key."""

    def encrypt(self, column: str, plain: bytes) -> bytes:
        """Encrypt a value for a column, which must be the same when it is decrypted."""
        ...

    def decrypt(self, column: str, encrypted: bytes) -> bytes:
        """Return what was encrypted; raises `Undecodable` for anything else."""
        ...


class TextCodec:
    """Encodes what is written and decodes what is read; without data keys, nothing is encrypted."""

    def __init__(self) -> None:
        self._ciphers: Mapping[int, DataCipher] = {}
        self._newest = _AS_IT_IS

    def use(self, ciphers: Mapping[int, DataCipher], *, is_on: bool) -> None:
        """Read with these data keys from now on; if it is on, encrypt with the newest."""
        self._ciphers = ciphers
        self._newest = max(ciphers) if is_on else _AS_IT_IS

    def encode_text(self, column: str, text: str | None) -> str | None:
        """Return what is stored of a text; nothing and an empty one stay what they are."""
        if not text:
            return text
        if self._newest == _AS_IT_IS:
            return f"{_MARK}0:{text}" if text.startswith(_MARK) else text
        encrypted = self._ciphers[self._newest].encrypt(column, text.encode())
        encoded = binascii.b2a_base64(encrypted, newline=False).decode("ascii")
        return f"{_MARK}{self._newest}:{encoded}"

    def decode_text(self, column: str, stored: str | None) -> str | None:
        """Return the text of what is stored.

        Raises:
            UnknownDataKey: this process has no key for it.
            Undecodable: it is damaged.
        """
        if not isinstance(stored, str) or not stored.startswith(_MARK):
            return stored
        number, _, rest = stored[len(_MARK) :].partition(":")
        if number == "0":
            return rest
        try:
            encrypted = binascii.a2b_base64(rest, strict_mode=True)
        except ValueError:
            raise _damaged(column) from None
        return self._cipher(column, number).decrypt(column, encrypted).decode()

    def encode_bytes(self, column: str, plain: bytes | None) -> bytes | None:
        """Return what is stored of bytes; nothing and empty ones stay what they are."""
        if not plain:
            return plain
        if self._newest == _AS_IT_IS:
            return b"%b0:%b" % (_MARK_BYTES, plain) if plain.startswith(_MARK_BYTES) else plain
        encrypted = self._ciphers[self._newest].encrypt(column, plain)
        return b"%b%d:%b" % (_MARK_BYTES, self._newest, encrypted)

    def decode_bytes(self, column: str, stored: bytes | None) -> bytes | None:
        """Return the bytes of what is stored; raises as `decode_text` does."""
        if not isinstance(stored, bytes) or not stored.startswith(_MARK_BYTES):
            return stored  # SQLite also gives what is no bytes
        number, _, rest = stored[len(_MARK_BYTES) :].partition(b":")
        if number == b"0":
            return rest
        return self._cipher(column, number.decode("ascii", "replace")).decrypt(column, rest)

    def renewed(self, column: str, stored: str | bytes | None) -> str | bytes | None:
        """Return how a stored value would be stored now; the same value if it need not change."""
        if not stored or _key_number(stored) == self._newest:
            return stored
        if isinstance(stored, str):
            return self.encode_text(column, self.decode_text(column, stored))
        return self.encode_bytes(column, self.decode_bytes(column, stored))

    def _cipher(self, column: str, number: str) -> DataCipher:
        if not number.isdecimal():
            raise _damaged(column)
        try:
            return self._ciphers[int(number)]
        except KeyError:
            raise UnknownDataKey(
                f"a text in the database ({column}) is encrypted, and this process has no key for"
                " it; add the key that it was encrypted with to TROUPE_ENCRYPTION_KEYS and start"
                " anew"
            ) from None


class StoredAsIs(TextCodec):
    """Leaves every value as it is stored: for copies of whole rows."""

    @override
    def encode_text(self, column: str, text: str | None) -> str | None:
        return text

    @override
    def decode_text(self, column: str, stored: str | None) -> str | None:
        return stored

    @override
    def encode_bytes(self, column: str, plain: bytes | None) -> bytes | None:
        return plain

    @override
    def decode_bytes(self, column: str, stored: bytes | None) -> bytes | None:
        return stored


def _key_number(stored: str | bytes) -> int:
    """Return the number of the data key of a stored value, 0 if it is not encrypted."""
    mark: str | bytes = _MARK if isinstance(stored, str) else _MARK_BYTES
    if not stored.startswith(mark):  # type: ignore[arg-type] # both are texts, or both are bytes
        return _AS_IT_IS
    head = stored[len(mark) : len(mark) + 20]
    number = (head if isinstance(head, str) else head.decode("latin-1")).partition(":")[0]
    return int(number) if number.isdecimal() else -1


def _damaged(column: str) -> Undecodable:
    return Undecodable(f"an encrypted text in the database ({column}) is damaged")

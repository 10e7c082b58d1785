"""The types of columns with people's and characters' words, which can be encrypted.

SQLAlchemy encodes and decodes them where it runs a statement; statements.py does the same for units
of work. The codec of a database hangs on the dialects of its engines.
"""

from typing import Any

from sqlalchemy import Column, Engine, LargeBinary, Table, Text
from sqlalchemy.engine.interfaces import Dialect
from sqlalchemy.types import TypeDecorator
from typing_extensions import override

from bot.errors import Undecodable
from bot.storage.codec import TextCodec

_UNENCRYPTED = TextCodec()
_ATTRIBUTE = "troupe_text_codec"


def attach_codec(engine: Engine, codec: TextCodec) -> None:
    """Let an engine encode and decode with a codec; before its first statement."""
    setattr(engine.dialect, _ATTRIBUTE, codec)


def _codec_of(dialect: Dialect) -> TextCodec:
    codec: TextCodec = getattr(dialect, _ATTRIBUTE, _UNENCRYPTED)
    return codec


class EncryptableText(TypeDecorator[str]):
    """A text that can be encrypted."""

    impl = Text
    cache_ok = True

    @property
    @override
    def python_type(self) -> type[str]:
        return str

    def encode(self, codec: TextCodec, value: str | None) -> str | None:
        return codec.encode_text(value)

    def decode(self, codec: TextCodec, stored: str | None) -> str | None:
        return codec.decode_text(stored)

    @override
    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        return self.encode(_codec_of(dialect), value)

    @override
    def process_result_value(self, value: Any, dialect: Dialect) -> str | None:
        return self.decode(_codec_of(dialect), value)


class EncryptableBytes(TypeDecorator[bytes]):
    """Bytes that can be encrypted, such as a receipt."""

    impl = LargeBinary
    cache_ok = True

    @property
    @override
    def python_type(self) -> type[bytes]:
        return bytes

    def encode(self, codec: TextCodec, value: bytes | None) -> bytes | None:
        return codec.encode_bytes(value)

    def decode(self, codec: TextCodec, stored: bytes | None) -> bytes | Undecodable | None:
        """Return the bytes, or why they cannot be decrypted: `decode_all` leaves out that row."""
        try:
            return codec.decode_bytes(stored)
        except Undecodable as error:
            return error

    @override
    def process_bind_param(self, value: bytes | None, dialect: Dialect) -> bytes | None:
        return self.encode(_codec_of(dialect), value)

    @override
    def process_result_value(self, value: Any, dialect: Dialect) -> Any:
        return self.decode(_codec_of(dialect), value)


def encryptable_columns(table: Table) -> list[Column[Any]]:
    return [
        one for one in table.columns if isinstance(one.type, EncryptableText | EncryptableBytes)
    ]

"""The types of columns with people's and characters' words, which can be encrypted.

SQLAlchemy encodes and decodes them where it runs a statement; statements.py does the same for units
of work. The codec of a database hangs on the dialects of its engines.
"""

from typing import Any

from sqlalchemy import Column, Engine, LargeBinary, Table, Text
from sqlalchemy.engine.interfaces import Dialect
from sqlalchemy.types import TypeDecorator
from typing_extensions import override

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

    @override
    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        return _codec_of(dialect).encode_text(value)

    @override
    def process_result_value(self, value: Any, dialect: Dialect) -> str | None:
        return _codec_of(dialect).decode_text(value)


class EncryptableBytes(TypeDecorator[bytes]):
    """Bytes that can be encrypted, such as a receipt."""

    impl = LargeBinary
    cache_ok = True

    @property
    @override
    def python_type(self) -> type[bytes]:
        return bytes

    @override
    def process_bind_param(self, value: bytes | None, dialect: Dialect) -> bytes | None:
        return _codec_of(dialect).encode_bytes(value)

    @override
    def process_result_value(self, value: Any, dialect: Dialect) -> bytes | None:
        return _codec_of(dialect).decode_bytes(value)


def encryptable_columns(table: Table) -> list[Column[Any]]:
    return [
        one for one in table.columns if isinstance(one.type, EncryptableText | EncryptableBytes)
    ]

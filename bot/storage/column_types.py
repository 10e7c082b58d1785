"""The types of columns with people's and characters' words, which can be encrypted.

SQLAlchemy encodes and decodes them where it runs a statement; engine/encoding.py does the same for
units of work. The codec of a database hangs on the dialects of its engines.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import msgspec
from sqlalchemy import ARRAY, JSON, Column, Engine, LargeBinary, Table, Text
from sqlalchemy.engine.interfaces import Dialect
from sqlalchemy.types import TypeDecorator, TypeEngine
from typing_extensions import override

from bot.errors import Undecodable
from bot.storage.codec import TextCodec

_UNENCRYPTED = TextCodec()
_ATTRIBUTE = "troupe_text_codec"
_encode_json = msgspec.json.Encoder().encode


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


EncryptableType: TypeAlias = EncryptableText | EncryptableBytes


def encryptable_columns(table: Table) -> list[Column[Any]]:
    return [
        one for one in table.columns if isinstance(one.type, EncryptableText | EncryptableBytes)
    ]


class EncodedList(TypeDecorator[Any]):
    """A parameter of a function: one value of a column for each of several rows."""

    impl = ARRAY
    cache_ok = True

    def __init__(self, of: TypeEngine[Any]) -> None:
        assert isinstance(of, EncryptableText | EncryptableBytes)  # noqa: S101
        super().__init__(of.impl)
        self.of = of

    def encode(self, codec: TextCodec, values: Iterable[Any]) -> list[Any]:
        return [self.of.encode(codec, one) for one in values]


class EncodedRows(TypeDecorator[Any]):
    """A parameter of a function: rows, written as JSON once their columns are encoded."""

    impl = JSON
    cache_ok = True

    def __init__(self, columns: Mapping[str, str | TypeEngine[Any]]) -> None:
        super().__init__()
        self.columns = tuple(
            (name, type_) for name, type_ in columns.items() if isinstance(type_, EncryptableText)
        )

    def encode(self, codec: TextCodec, rows: Sequence[Mapping[str, Any]]) -> str:
        encoded = [
            {**row, **{name: type_.encode(codec, row[name]) for name, type_ in self.columns}}
            for row in rows
        ]
        return _encode_json(encoded).decode()


class EncodedValue(Protocol):
    """A type whose values are encoded before the driver gets them."""

    def encode(self, codec: TextCodec, value: Any) -> Any: ...


def encoded_type(type_: TypeEngine[Any]) -> EncodedValue | None:
    """Return the type if its values are encoded."""
    if isinstance(type_, EncryptableText | EncryptableBytes | EncodedList | EncodedRows):
        return type_
    return None

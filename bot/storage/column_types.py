"""Column types for people's and characters' texts, which can be encrypted.

SQLAlchemy encodes and decodes values of these types; statements.py does so for units of work. A
database's codec is attached to the dialects of its engines.
"""

from typing import Any

from sqlalchemy import Column, Engine, LargeBinary, Table, Text
from sqlalchemy.engine.interfaces import Dialect
from sqlalchemy.types import TypeDecorator
from typing_extensions import override

from bot.storage.codec import TextCodec

_PLAIN_CODEC = TextCodec()
_CODEC_ATTRIBUTE = "troupe_text_codec"


def attach_codec(engine: Engine, codec: TextCodec) -> None:
    """Let an engine encode and decode with a codec; call this before the first statement."""
    setattr(engine.dialect, _CODEC_ATTRIBUTE, codec)


class _EncryptableType(TypeDecorator[Any]):
    impl: Any = Text
    cache_ok = True

    @property
    @override
    def python_type(self) -> type[Any]:
        return self.impl_instance.python_type

    @override
    def process_bind_param(self, value: Any, dialect: Dialect) -> Any:
        return getattr(dialect, _CODEC_ATTRIBUTE, _PLAIN_CODEC).encode(value)

    @override
    def process_result_value(self, value: Any, dialect: Dialect) -> Any:
        return getattr(dialect, _CODEC_ATTRIBUTE, _PLAIN_CODEC).decode(value)


class EncryptableText(_EncryptableType):
    cache_ok = True


class EncryptableBytes(_EncryptableType):
    """Encryptable bytes, such as a receipt."""

    impl = LargeBinary
    cache_ok = True


def list_encryptable_columns(table: Table) -> list[Column[Any]]:
    return [one for one in table.columns if isinstance(one.type, _EncryptableType)]

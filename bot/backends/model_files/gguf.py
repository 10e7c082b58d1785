"""Parse the header of a GGUF file: metadata, special tokens, chat template, pooling.

The weights are counted, not read.
"""

import math
import mmap
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from bot.errors import SettingsError
from bot.frozen_dataclass import frozen_dataclass

_MAGIC: Final = b"GGUF"
_MIN_VERSION: Final = 2  # version 1 has 32-bit counts
_NUMBER_FORMATS: Final = dict(enumerate(("B", "b", "H", "h", "I", "i", "f", "?"))) | {
    10: "Q",
    11: "q",
    12: "d",
}
_TEXT: Final = 8
_ARRAY: Final = 9
_POOLING_SUFFIX: Final = ".pooling_type"  # after the name of the architecture
_MAX_DIMENSIONS: Final = 4  # as in ggml
_SKIPPED_KEYS: Final = frozenset({"tokenizer.ggml.merges", "tokenizer.ggml.scores"})  # long
_END_KEYS: Final = ("eos", "eot", "eom")
_CONTROL_TYPE: Final = 3  # as in llama.cpp's llama_token_type
_USER_DEFINED_TYPE: Final = 4


@frozen_dataclass
class SpecialTokens:
    """The tokens that are not ordinary text, and the model's own chat template."""

    chat_template: str | None
    bos_token: str
    eos_token: str
    ends: tuple[str, ...]
    """The end-of-text, end-of-turn and end-of-message tokens."""
    control: Mapping[int, str]
    """Control tokens, which text is tokenized to only on request."""
    added: Mapping[int, str]
    """Added tokens, which any text is tokenized to; some models list their markers here."""

    @property
    def texts(self) -> tuple[str, ...]:
        """The texts of all of them."""
        return (*self.control.values(), *self.added.values())


@frozen_dataclass
class GgufHeader:
    """What precedes the weights."""

    values: Mapping[str, Any]
    """The metadata by GGUF's keys, without long lists."""
    parameters: int
    """How many numbers all tensors hold."""


def read_special_tokens(path: Path) -> SpecialTokens:
    """Read the special tokens; raises `SettingsError` when the file is no valid GGUF."""
    return _tokens(read_header(path).values)


def read_pooling(path: Path) -> int | None:
    """Read llama.cpp's number of the pooling type, if the file has one.

    Raises:
        SettingsError: the file is no valid GGUF.
    """
    values = read_header(path).values
    found = next((value for key, value in values.items() if key.endswith(_POOLING_SUFFIX)), None)
    return found if isinstance(found, int) else None


def read_header(path: Path) -> GgufHeader:
    """Parse the header; raises `SettingsError` when the file is no valid GGUF."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _GgufParser(data).header()
    except (OSError, ValueError, LookupError, OverflowError, RecursionError, struct.error) as error:
        raise SettingsError(f"{path} cannot be read as a GGUF file: {error}") from None


def _tokens(metadata: Mapping[str, Any]) -> SpecialTokens:
    texts = metadata.get("tokenizer.ggml.tokens", ())
    types = metadata.get("tokenizer.ggml.token_type", ())

    def named(key: str) -> str:
        number = metadata.get(f"tokenizer.ggml.{key}_token_id")
        return str(texts[number]) if isinstance(number, int) and number < len(texts) else ""

    def of_type(kind: int) -> dict[int, str]:
        pairs = enumerate(zip(texts, types, strict=False))
        return {number: text for number, (text, its) in pairs if its == kind}

    template = metadata.get("tokenizer.chat_template")
    return SpecialTokens(
        chat_template=template if isinstance(template, str) else None,
        bos_token=named("bos"),
        eos_token=named("eos"),
        ends=tuple(dict.fromkeys(word for each in _END_KEYS if (word := named(each)))),
        control=of_type(_CONTROL_TYPE),
        added=of_type(_USER_DEFINED_TYPE),
    )


class _GgufParser:
    """Parse the metadata at the beginning of a mapped file."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._offset = 0

    def header(self) -> GgufHeader:
        if self._data[: len(_MAGIC)] != _MAGIC:
            raise ValueError("it does not begin with GGUF")
        self._offset = len(_MAGIC)
        version = self._number("I")
        if not isinstance(version, int) or version < _MIN_VERSION:
            raise ValueError(f"version {version} is too old")
        tensors, count = self._number("Q"), self._number("Q")
        found = {}
        for _ in range(count):
            key = self._text()
            value = self._value(self._number("I"), keep=key not in _SKIPPED_KEYS)
            if value is not None:
                found[key] = value
        return GgufHeader(found, sum(self._tensor() for _ in range(tensors)))

    def _tensor(self) -> int:
        """Skip the next tensor's description and return how many numbers it holds."""
        self._text()
        dimensions = self._number("I")
        if dimensions > _MAX_DIMENSIONS:
            raise ValueError(f"a tensor of {dimensions} dimensions")
        size: int = math.prod(self._number("Q") for _ in range(dimensions))
        self._number("I")  # type
        self._number("Q")  # offset
        return size

    def _value(self, kind: int, *, keep: bool) -> Any:
        if kind in _NUMBER_FORMATS:
            return self._number(_NUMBER_FORMATS[kind])
        if kind == _TEXT:
            return self._text()
        if kind == _ARRAY:
            return self._array(keep=keep)
        raise ValueError(f"a value of the unknown kind {kind}")

    def _array(self, *, keep: bool) -> Any:
        kind, count = self._number("I"), self._number("Q")
        if kind in _NUMBER_FORMATS:
            form = f"<{count}{_NUMBER_FORMATS[kind]}"
            begin, self._offset = self._offset, self._offset + struct.calcsize(form)
            return struct.unpack_from(form, self._data, begin) if keep else None
        values = (self._value(kind, keep=keep) for _ in range(count))
        if keep:
            return list(values)
        for _ in values:
            pass
        return None

    def _number(self, form: str) -> Any:
        (value,) = struct.unpack_from(f"<{form}", self._data, self._offset)
        self._offset += struct.calcsize(f"<{form}")
        return value

    def _text(self) -> str:
        begin = self._offset + 8
        self._offset = begin + self._number("Q")
        if self._offset > len(self._data):
            raise ValueError("it ends in the middle of a text")
        return self._data[begin : self._offset].decode(errors="replace")

"""Read what a GGUF file says of itself: of its model, its tokens, its chat template, its pooling.

Its weights are counted, not read.
"""

import math
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bot.errors import SettingsError

_MAGIC: Final = b"GGUF"
_OLDEST_VERSION: Final = 2  # the first one counted in 32 bits
_NUMBERS: Final = dict(enumerate(("B", "b", "H", "h", "I", "i", "f", "?"))) | {
    10: "Q",
    11: "q",
    12: "d",
}
_TEXT: Final = 8
_ARRAY: Final = 9
_POOLING: Final = ".pooling_type"  # behind the name of the architecture
_MOST_DIMENSIONS: Final = 4  # as in ggml
_UNREAD: Final = frozenset({"tokenizer.ggml.merges", "tokenizer.ggml.scores"})  # long, and no use
_ENDS: Final = ("eos", "eot", "eom")
_CONTROL: Final = 3  # as in llama.cpp's llama_token_type
_ADDED: Final = 4


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens that are no ordinary text, and the model's own chat template."""

    chat_template: str | None
    bos_token: str
    eos_token: str
    ends: tuple[str, ...]  # what ends an answer: of a text, of a turn, of a message
    control: Mapping[int, str]  # never read from text, unless one asks for it
    added: Mapping[int, str]  # read from any text: some models have their markers here


@dataclass(frozen=True, slots=True)
class Header:
    """What stands before the weights."""

    values: Mapping[str, Any]  # by GGUF's keys; long lists are left out
    parameters: int  # how many numbers all the tensors hold


def read_tokens(path: Path) -> Tokens:
    """Raise SettingsError when the file cannot be read as GGUF."""
    return _tokens(read_header(path).values)


def read_pooling(path: Path) -> int | None:
    """How the model makes one vector of many, by llama.cpp's number; None if it does not say.

    Raises:
        SettingsError: the file cannot be read as GGUF.
    """
    values = read_header(path).values
    found = next((value for key, value in values.items() if key.endswith(_POOLING)), None)
    return found if isinstance(found, int) else None


def read_header(path: Path) -> Header:
    """Raise SettingsError when the file cannot be read as GGUF."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Reader(data).header()
    except (OSError, ValueError, LookupError, OverflowError, RecursionError, struct.error) as error:
        raise SettingsError(f"{path} cannot be read as a GGUF file: {error}") from None


def _tokens(metadata: Mapping[str, Any]) -> Tokens:
    texts = metadata.get("tokenizer.ggml.tokens", ())
    types = metadata.get("tokenizer.ggml.token_type", ())

    def named(key: str) -> str:
        number = metadata.get(f"tokenizer.ggml.{key}_token_id")
        return str(texts[number]) if isinstance(number, int) and number < len(texts) else ""

    def of(kind: int) -> dict[int, str]:
        pairs = enumerate(zip(texts, types, strict=False))
        return {number: text for number, (text, its) in pairs if its == kind}

    template = metadata.get("tokenizer.chat_template")
    return Tokens(
        chat_template=template if isinstance(template, str) else None,
        bos_token=named("bos"),
        eos_token=named("eos"),
        ends=tuple(dict.fromkeys(word for each in _ENDS if (word := named(each)))),
        control=of(_CONTROL),
        added=of(_ADDED),
    )


class _Reader:
    """Walks through the metadata, which stands at the beginning of the file."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._at = 0

    def header(self) -> Header:
        if self._data[: len(_MAGIC)] != _MAGIC:
            raise ValueError("it does not begin with GGUF")
        self._at = len(_MAGIC)
        version = self._number("I")
        if not isinstance(version, int) or version < _OLDEST_VERSION:
            raise ValueError(f"version {version} is too old")
        tensors, count = self._number("Q"), self._number("Q")
        found = {}
        for _ in range(count):
            key = self._text()
            value = self._value(self._number("I"), keep=key not in _UNREAD)
            if value is not None:
                found[key] = value
        return Header(found, sum(self._tensor() for _ in range(tensors)))

    def _tensor(self) -> int:
        """How many numbers the next tensor holds."""
        self._text()
        dimensions = self._number("I")
        if dimensions > _MOST_DIMENSIONS:
            raise ValueError(f"a tensor of {dimensions} dimensions")
        size: int = math.prod(self._number("Q") for _ in range(dimensions))
        self._number("I")  # its kind
        self._number("Q")  # where it lies
        return size

    def _value(self, kind: int, *, keep: bool) -> Any:
        if kind in _NUMBERS:
            return self._number(_NUMBERS[kind])
        if kind == _TEXT:
            return self._text()
        if kind == _ARRAY:
            return self._array(keep=keep)
        raise ValueError(f"a value of the unknown kind {kind}")

    def _array(self, *, keep: bool) -> Any:
        kind, count = self._number("I"), self._number("Q")
        if kind in _NUMBERS:
            form = f"<{count}{_NUMBERS[kind]}"
            begin, self._at = self._at, self._at + struct.calcsize(form)
            return struct.unpack_from(form, self._data, begin) if keep else None
        values = (self._value(kind, keep=keep) for _ in range(count))
        if keep:
            return list(values)
        for _ in values:
            pass
        return None

    def _number(self, form: str) -> Any:
        (value,) = struct.unpack_from(f"<{form}", self._data, self._at)
        self._at += struct.calcsize(f"<{form}")
        return value

    def _text(self) -> str:
        begin = self._at + 8
        self._at = begin + self._number("Q")
        if self._at > len(self._data):
            raise ValueError("it ends in the middle of a text")
        return self._data[begin : self._at].decode(errors="replace")

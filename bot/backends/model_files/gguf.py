"""Read the header of a GGUF file: metadata, special tokens, template, pooling, and size."""

import mmap
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from bot.backends.spec import ModelFileSettings
from bot.errors import SettingsError
from bot.templates.registry import detect_family
from bot.templates.renderer import ModelTemplate
from bot.value_class import value_class

_GGUF_MAGIC: Final = b"GGUF"
_MIN_GGUF_VERSION: Final = 2  # version 1 has 32-bit counts
_NUMBER_FORMATS: Final = dict(enumerate(("B", "b", "H", "h", "I", "i", "f", "?"))) | {
    10: "Q",
    11: "q",
    12: "d",
}
_TEXT_VALUE_TYPE: Final = 8
_ARRAY_VALUE_TYPE: Final = 9
_POOLING_SUFFIX: Final = ".pooling_type"  # after the architecture's name
_SKIPPED_KEYS: Final = frozenset({"tokenizer.ggml.merges", "tokenizer.ggml.scores"})  # long
_END_TOKEN_KEYS: Final = ("eos", "eot", "eom")
_CONTROL_TOKEN_TYPE: Final = 3  # as in llama.cpp's llama_token_type
_USER_DEFINED_TOKEN_TYPE: Final = 4
PROJECTOR_ONLY_MESSAGE = (
    "a projector, not a model: to let the provider's model see images, set the provider's "
    "PROJECTOR_PATH to this file"
)
_BYTES_PER_CACHE_VALUE = 2  # the KV cache contains 16-bit numbers
_ENGINE_BYTES = 64 * 2**20  # measured with SmolLM2: 63 MiB besides weights and KV cache
_COMPUTE_BUFFER_SHARE = 0.1  # of the weights


@value_class
class SpecialTokens:
    """A model's special tokens and chat template."""

    chat_template: str | None
    bos_token: str
    eos_token: str
    end_tokens: tuple[str, ...]
    control_tokens: Mapping[int, str]
    """By id: tokens that a tokenizer produces from text only on request."""
    added_tokens: Mapping[int, str]
    """By id: tokens that a tokenizer produces from any text; some act as control tokens."""

    @property
    def template(self) -> ModelTemplate:
        return ModelTemplate(self.chat_template, self.bos_token, self.eos_token)

    @property
    def token_texts(self) -> tuple[str, ...]:
        return (*self.control_tokens.values(), *self.added_tokens.values())


def read_special_tokens(path: Path) -> SpecialTokens:
    """Read a model's special tokens; raise `SettingsError` if the file is invalid."""
    metadata = read_header(path)
    texts = metadata.get("tokenizer.ggml.tokens", ())
    types = metadata.get("tokenizer.ggml.token_type", ())

    def find_token_text(key: str) -> str:
        number = metadata.get(f"tokenizer.ggml.{key}_token_id")
        return str(texts[number]) if isinstance(number, int) and number < len(texts) else ""

    def tokens_of_type(type_number: int) -> dict[int, str]:
        pairs = enumerate(zip(texts, types, strict=False))
        return {number: text for number, (text, token_type) in pairs if token_type == type_number}

    template = metadata.get("tokenizer.chat_template")
    return SpecialTokens(
        chat_template=template if isinstance(template, str) else None,
        bos_token=find_token_text("bos"),
        eos_token=find_token_text("eos"),
        end_tokens=tuple(
            dict.fromkeys(word for each in _END_TOKEN_KEYS if (word := find_token_text(each)))
        ),
        control_tokens=tokens_of_type(_CONTROL_TOKEN_TYPE),
        added_tokens=tokens_of_type(_USER_DEFINED_TOKEN_TYPE),
    )


def read_pooling_type(path: Path) -> int | None:
    """Return llama.cpp's number for the pooling type, if set; raise `SettingsError` if not GGUF."""
    values = (value for key, value in read_header(path).items() if key.endswith(_POOLING_SUFFIX))
    pooling_type = next(values, None)
    return pooling_type if isinstance(pooling_type, int) else None


def read_header(path: Path) -> Mapping[str, Any]:
    """Return the metadata without long lists; raise `SettingsError` if the file is invalid."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _GgufParser(data).parse_header()
    except (OSError, ValueError, LookupError, OverflowError, RecursionError, struct.error) as error:
        raise SettingsError(f"{path} cannot be read as a GGUF file: {error}") from None


class _GgufParser:
    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._offset = 0

    def parse_header(self) -> Mapping[str, Any]:
        if self._data[: len(_GGUF_MAGIC)] != _GGUF_MAGIC:
            raise ValueError("it does not start with GGUF")
        self._offset = len(_GGUF_MAGIC)
        version = self._read_number("I")
        if not isinstance(version, int) or version < _MIN_GGUF_VERSION:
            raise ValueError(f"version {version} is too old")
        _, count = self._read_number("Q"), self._read_number("Q")  # the numbers of tensors and keys
        metadata = {}
        for _ in range(count):
            key = self._read_text()
            value = self._read_value(self._read_number("I"), is_needed=key not in _SKIPPED_KEYS)
            if value is not None:
                metadata[key] = value
        return metadata

    def _read_value(self, value_type: int, *, is_needed: bool) -> Any:
        if value_type in _NUMBER_FORMATS:
            return self._read_number(_NUMBER_FORMATS[value_type])
        if value_type == _TEXT_VALUE_TYPE:
            return self._read_text()
        if value_type == _ARRAY_VALUE_TYPE:
            return self._read_array(is_needed=is_needed)
        raise ValueError(f"unknown value type {value_type}")

    def _read_array(self, *, is_needed: bool) -> Any:
        value_type, count = self._read_number("I"), self._read_number("Q")
        if value_type in _NUMBER_FORMATS:
            array_format = f"<{count}{_NUMBER_FORMATS[value_type]}"
            array_start, self._offset = self._offset, self._offset + struct.calcsize(array_format)
            return struct.unpack_from(array_format, self._data, array_start) if is_needed else None
        values = (self._read_value(value_type, is_needed=is_needed) for _ in range(count))
        if is_needed:
            return list(values)
        for _ in values:
            pass
        return None

    def _read_number(self, number_format: str) -> Any:
        (value,) = struct.unpack_from(f"<{number_format}", self._data, self._offset)
        self._offset += struct.calcsize(f"<{number_format}")
        return value

    def _read_text(self) -> str:
        text_start = self._offset + 8
        self._offset = text_start + self._read_number("Q")
        if self._offset > len(self._data):
            raise ValueError("it ends in the middle of a string")
        return self._data[text_start : self._offset].decode(errors="replace")


@value_class
class ModelMetadata:
    """A model's metadata; unknown values are empty or zero."""

    name: str
    architecture: str
    license: str
    template_description: str
    context_tokens: int
    weight_bytes: int
    cache_bytes_per_token: int
    is_projector: bool

    def estimate_memory_bytes(self, settings: ModelFileSettings) -> int:
        tokens = min(settings.context_tokens, self.context_tokens or settings.context_tokens)
        cache_bytes = self.cache_bytes_per_token * tokens * settings.parallel
        return _ENGINE_BYTES + round(self.weight_bytes * (1 + _COMPUTE_BUFFER_SHARE)) + cache_bytes


def read_metadata(path: Path) -> ModelMetadata:
    """Read a model's metadata; raise `SettingsError` if the file is invalid."""
    header = read_header(path)
    architecture = _read_text_value(header, "general.architecture")
    return ModelMetadata(
        name=_read_text_value(header, "general.name"),
        architecture=architecture,
        license=_read_text_value(header, "general.license"),
        template_description=_describe_template_family(header.get("tokenizer.chat_template")),
        context_tokens=_read_int_value(header, f"{architecture}.context_length"),
        weight_bytes=path.stat().st_size,
        cache_bytes_per_token=_read_cache_bytes_per_token(header, architecture),
        is_projector=architecture == "clip",
    )


def _describe_template_family(source: object) -> str:
    if not isinstance(source, str):
        return "none; prompts are rendered as ChatML"
    family = detect_family(source)
    return f"its own, the same as the built-in {family}" if family else "its own"


def _read_cache_bytes_per_token(header: Mapping[str, Any], architecture: str) -> int:
    def read_int(key: str) -> int:
        return _read_int_value(header, f"{architecture}.{key}")

    layer_count, head_count = read_int("block_count"), read_int("attention.head_count")
    head_width = read_int("embedding_length") // head_count if head_count else 0
    key_length = read_int("attention.key_length") or head_width
    value_length = read_int("attention.value_length") or head_width
    kv_head_counts = header.get(f"{architecture}.attention.head_count_kv")
    if isinstance(kv_head_counts, list | tuple):  # some models have one number per layer
        kv_head_count = sum(each for each in kv_head_counts if isinstance(each, int))
    else:
        kv_head_count = layer_count * (
            kv_head_counts if isinstance(kv_head_counts, int) else head_count
        )
    return kv_head_count * (key_length + value_length) * _BYTES_PER_CACHE_VALUE


def _read_int_value(header: Mapping[str, Any], key: str) -> int:
    value = header.get(key)
    if isinstance(value, list | tuple):  # one per layer
        value = max((each for each in value if isinstance(each, int)), default=0)
    return value if isinstance(value, int) else 0


def _read_text_value(header: Mapping[str, Any], key: str) -> str:
    value = header.get(key)
    return value if isinstance(value, str) else ""

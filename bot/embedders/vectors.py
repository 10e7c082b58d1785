"""Truncate and batch texts for embedders, fingerprint model files, and parse responses."""

import hashlib
from bisect import bisect_right
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from bot.errors import SettingsError

MAX_TEXT_TOKENS = 400
"""The maximum tokens per text: the limit of small models, which need 0.5 s for them on one core."""

_BATCH_SIZE = 10  # DashScope's limit
_MAX_TEXT_CHARS = 20 * MAX_TEXT_TOKENS  # only white space has longer tokens
_FINGERPRINT_SAMPLE_BYTES = 1 << 20

T = TypeVar("T")


class EmbeddingItem(msgspec.Struct):
    embedding: list[float]
    index: int = 0


class EmbeddingsResponse(msgspec.Struct):
    data: list[EmbeddingItem]

    @property
    def ordered_vectors(self) -> list[list[float]]:
        return [item.embedding for item in sorted(self.data, key=lambda item: item.index)]


def batched(inputs: list[T]) -> Iterator[list[T]]:
    return (inputs[start : start + _BATCH_SIZE] for start in range(0, len(inputs), _BATCH_SIZE))


def truncate_text(text: str, count_tokens: Callable[[str], int]) -> str:
    """Return the longest prefix of a text that has at most `MAX_TEXT_TOKENS` tokens."""
    text = text[:_MAX_TEXT_CHARS].replace("\0", " ").encode(errors="replace").decode()
    if count_tokens(text) <= MAX_TEXT_TOKENS:
        return text
    prefix_lengths = range(len(text))
    index = bisect_right(prefix_lengths, MAX_TEXT_TOKENS, key=lambda end: count_tokens(text[:end]))
    return text[: index - 1]


def compute_fingerprint(path: Path) -> str:
    """Return an id made from a file's name, size, start, and end; raises `SettingsError`."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(0)
            digest = hashlib.sha256(file.read(_FINGERPRINT_SAMPLE_BYTES))
            file.seek(max(0, size - _FINGERPRINT_SAMPLE_BYTES))
            digest.update(file.read())
    except OSError as error:
        raise SettingsError(f"TROUPE_EMBEDDING__MODEL_PATH: {path}: {error.strerror}") from None
    return f"{path.stem}:{size}:{digest.hexdigest()[:16]}"

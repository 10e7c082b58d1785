"""Conversations' places in a model's memory, as files: kept when others sit there, and restarts.

They hold what was said, in a form that a model reads. Nobody else may read them, they are deleted
when they are old or too many, and their names are hashes: no path has people's words in it.
"""

import hashlib
from array import array
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from bot.ports import Clock

_SAMPLES = 64  # blocks of a model's file that tell it from others: reading 8 GB takes too long
_SAMPLE_BYTES = 65_536
_STATE, _IDS, _PART = _SUFFIXES = (".state", ".ids", ".part")


class Whose(NamedTuple):
    """Each character of a conversation has a place of its own: its prompt begins otherwise."""

    conversation: str
    character: str


@dataclass(frozen=True, slots=True)
class Saved:
    """A state on disk and the prompt that it begins with."""

    file: str
    ids: "array[int]"


class SavedPlaces:
    """The states of one model; `limit_bytes` is for those of all models in the folder."""

    def __init__(
        self, folder: Path, model: str, clock: Clock, *, limit_bytes: int, limit_seconds: float
    ) -> None:
        self._folder = folder
        self._model = model
        self._clock = clock
        self._limit_bytes = limit_bytes
        self._limit_seconds = limit_seconds
        self._saved: dict[str, Saved] = {}

    @property
    def enabled(self) -> bool:
        return self._limit_bytes > 0

    def open(self) -> None:
        """Find what earlier runs left, and delete what no longer counts."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for unfinished in self._folder.glob(f"{self._model}*{_PART}"):
            unfinished.unlink(missing_ok=True)
        self._tidy()
        for state in self._folder.glob(f"{self._model}-*{_STATE}"):
            self._saved[state.stem] = Saved(state.name, _read_ids(state.with_suffix(_IDS)))

    def of(self, whose: Whose) -> Saved | None:
        return self._saved.get(self._name(whose))

    def all(self) -> Sequence[Saved]:
        return list(self._saved.values())

    def part(self, whose: Whose) -> str:
        """The name to save under; `keep` makes it count."""
        return f"{self._name(whose)}{_PART}"

    def keep(self, whose: Whose, ids: Sequence[int]) -> Saved:
        """Count what was saved as `part` says; raises `OSError`."""
        name = self._name(whose)
        known = array("i", ids)
        path = self._folder / f"{name}{_IDS}"
        path.touch(mode=0o600)
        path.write_bytes(known.tobytes())
        state = (self._folder / self.part(whose)).replace(self._folder / f"{name}{_STATE}")
        self._saved[name] = Saved(state.name, known)
        self._tidy()
        return self._saved[name]

    def drop(self, file: str) -> None:
        """Delete one that cannot be read."""
        self._delete(Path(file).stem)

    def forget(self, conversation: str) -> None:
        for name in list(self._saved):
            if name.startswith(f"{self._model}-{_hash(conversation)}-"):
                self._delete(name)

    def _tidy(self) -> None:
        """Delete what is too old, and then the oldest until the rest is small enough."""
        found = []
        for state in self._folder.glob(f"*{_STATE}"):
            with suppress(FileNotFoundError):
                about = state.stat()
                found.append((about.st_mtime, about.st_size, state.stem))
        left = sum(size for _, size, _ in found)
        for changed, size, name in sorted(found):
            too_old = changed < self._clock.now() - self._limit_seconds
            if too_old or left > self._limit_bytes:
                self._delete(name)
                left -= size

    def _delete(self, name: str) -> None:
        self._saved.pop(name, None)
        for suffix in _SUFFIXES:
            (self._folder / f"{name}{suffix}").unlink(missing_ok=True)

    def _name(self, whose: Whose) -> str:
        return f"{self._model}-{_hash(whose.conversation)}-{_hash(whose.character)}"


def folder(data_dir: Path) -> Path:
    return data_dir / "slots"


def forget_saved(where: Path, conversation: str) -> None:
    """Delete all of a conversation in a folder, whatever model made it."""
    for suffix in _SUFFIXES:
        for path in where.glob(f"*-{_hash(conversation)}-*{suffix}"):
            path.unlink(missing_ok=True)


def fingerprint(model: Path, engine: str) -> str:
    """What a saved state belongs to: another model, or another engine, gives another name."""
    about = model.stat()
    digest = hashlib.sha256(f"{engine} {about.st_size} {about.st_mtime_ns}".encode())
    with model.open("rb") as file:
        for number in range(_SAMPLES):
            file.seek(about.st_size * number // _SAMPLES)
            digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()[:16]


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _read_ids(path: Path) -> "array[int]":
    ids = array("i")
    with suppress(OSError, ValueError):  # without them it still serves whose it is
        ids.frombytes(path.read_bytes())
    return ids

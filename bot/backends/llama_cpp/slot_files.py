"""Keep saved KV slots as files: of conversations whose slot another one uses, and over restarts.

The files hold what was said, in the form that the model decoded. Nobody else may read them, they
are deleted when they are too old or too many, and their names are hashes without people's words.
"""

import hashlib
from array import array
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from bot.frozen_dataclass import frozen_dataclass
from bot.ports import Clock

_SAMPLES = 64  # blocks of a model's file that make its fingerprint: to read 8 GB takes too long
_SAMPLE_BYTES = 65_536
_STATE, _IDS, _PART = _SUFFIXES = (".state", ".ids", ".part")


class SlotOwner(NamedTuple):
    """A conversation's character: each has its own slot, as their prompts differ from the start."""

    conversation: str
    character: str


@frozen_dataclass
class SavedSlot:
    """A slot on disk, and the prompt that it holds."""

    file: str
    ids: "array[int]"


class SlotStore:
    """The saved slots of one model.

    Args:
        folder: where the slots of all models are.
        model: the model's fingerprint.
        clock: tells their age.
        limit_bytes: the most that all files in the folder may take; 0 saves nothing.
        limit_seconds: how long a file is kept.
    """

    def __init__(
        self, folder: Path, model: str, clock: Clock, *, limit_bytes: int, limit_seconds: float
    ) -> None:
        self._folder = folder
        self._model = model
        self._clock = clock
        self._limit_bytes = limit_bytes
        self._limit_seconds = limit_seconds
        self._saved: dict[str, SavedSlot] = {}

    @property
    def enabled(self) -> bool:
        return self._limit_bytes > 0

    def open(self) -> None:
        """Load the slots of earlier runs, and delete unfinished and outdated files."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for unfinished in self._folder.glob(f"{self._model}*{_PART}"):
            unfinished.unlink(missing_ok=True)
        self._delete_outdated()
        for state in self._folder.glob(f"{self._model}-*{_STATE}"):
            self._saved[state.stem] = SavedSlot(state.name, _read_ids(state.with_suffix(_IDS)))

    def find(self, owner: SlotOwner) -> SavedSlot | None:
        return self._saved.get(self._name(owner))

    def all(self) -> Sequence[SavedSlot]:
        return list(self._saved.values())

    def part_file(self, owner: SlotOwner) -> str:
        """Return the name of the file to save to, before `commit`."""
        return f"{self._name(owner)}{_PART}"

    def commit(self, owner: SlotOwner, ids: Sequence[int]) -> SavedSlot:
        """Make the file that was saved as `part_file` valid; raises `OSError`."""
        name = self._name(owner)
        prompt = array("i", ids)
        path = self._folder / f"{name}{_IDS}"
        path.touch(mode=0o600)
        path.write_bytes(prompt.tobytes())
        state = (self._folder / self.part_file(owner)).replace(self._folder / f"{name}{_STATE}")
        self._saved[name] = SavedSlot(state.name, prompt)
        self._delete_outdated()
        return self._saved[name]

    def delete_file(self, file: str) -> None:
        """Delete a file that cannot be restored."""
        self._delete(Path(file).stem)

    def delete_conversation(self, conversation: str) -> None:
        for name in list(self._saved):
            if name.startswith(f"{self._model}-{_hash(conversation)}-"):
                self._delete(name)

    def _delete_outdated(self) -> None:
        """Delete what is too old, and then the oldest until the rest is small enough."""
        found = []
        for state in self._folder.glob(f"*{_STATE}"):
            with suppress(FileNotFoundError):
                stat = state.stat()
                found.append((stat.st_mtime, stat.st_size, state.stem))
        total = sum(size for _, size, _ in found)
        for changed, size, name in sorted(found):
            too_old = changed < self._clock.now() - self._limit_seconds
            if too_old or total > self._limit_bytes:
                self._delete(name)
                total -= size

    def _delete(self, name: str) -> None:
        self._saved.pop(name, None)
        for suffix in _SUFFIXES:
            (self._folder / f"{name}{suffix}").unlink(missing_ok=True)

    def _name(self, owner: SlotOwner) -> str:
        return f"{self._model}-{_hash(owner.conversation)}-{_hash(owner.character)}"


def slots_folder(data_dir: Path) -> Path:
    return data_dir / "slots"


def delete_saved_slots(folder: Path, conversation: str) -> None:
    """Delete the files of a conversation, whatever model wrote them."""
    for suffix in _SUFFIXES:
        for path in folder.glob(f"*-{_hash(conversation)}-*{suffix}"):
            path.unlink(missing_ok=True)


def state_fingerprint(model: Path, engine: str) -> str:
    """Return what a saved slot belongs to: another model or engine has another fingerprint."""
    stat = model.stat()
    digest = hashlib.sha256(f"{engine} {stat.st_size} {stat.st_mtime_ns}".encode())
    with model.open("rb") as file:
        for number in range(_SAMPLES):
            file.seek(stat.st_size * number // _SAMPLES)
            digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()[:16]


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _read_ids(path: Path) -> "array[int]":
    ids = array("i")
    with suppress(OSError, ValueError):  # without its ids a slot still serves its owner
        ids.frombytes(path.read_bytes())
    return ids

"""What was forgotten, in a file beside the database: a backup of it brings nothing back.

Each line is a JSON object with ids and a time, without anybody's words. It is written before the
transaction that forgets, so that what is forgotten is in the file in any case.
"""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from bot.errors import StoreError

FILE_NAME = "forgotten.jsonl"


class Tombstone(msgspec.Struct, frozen=True, omit_defaults=True):
    """What was forgotten at a moment; everything that is named of it."""

    at: float
    """In Unix seconds."""
    conversation: str | None = None
    """All of it, unless turns or messages are named."""
    turns: tuple[int, ...] = ()
    """The ids of turns of the conversation."""
    messages: tuple[str, ...] = ()
    """The platform's ids of the messages that were those turns."""
    person: str | None = None
    """Whose descriptions of themselves were deleted."""

    @property
    def is_of_whole_conversation(self) -> bool:
        return self.conversation is not None and not (self.turns or self.messages)


class TombstoneFile:
    """Appends to a file that only its owner can read."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def record(self, tombstone: Tombstone) -> None:
        """Store one before what it names is deleted; raises `StoreError`."""
        line = msgspec.json.encode(tombstone) + b"\n"
        try:
            file = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                size = os.fstat(file).st_size
                is_cut = size > 0 and os.pread(file, 1, size - 1) != b"\n"
                os.write(file, b"\n" + line if is_cut else line)
                os.fsync(file)
            finally:
                os.close(file)
        except OSError as error:
            raise StoreError(f"{self._path} cannot be written: {error.strerror}") from error


def read_tombstones(files: Iterable[Path]) -> list[Tombstone]:
    """Read files of tombstones; a file that does not exist has none.

    Raises:
        StoreError: one cannot be read, or a line of it that is complete is not a tombstone.
    """
    return [one for file in files for one in _read(file)]


def _read(file: Path) -> Iterator[Tombstone]:
    try:
        lines = file.read_bytes().split(b"\n")
    except FileNotFoundError:
        return
    except OSError as error:
        raise StoreError(f"{file} cannot be read: {error.strerror}") from error
    # What stands behind the last line break was being written when the process died.
    for number, line in enumerate(lines[:-1], 1):
        try:
            yield msgspec.json.decode(line, type=Tombstone)
        except msgspec.DecodeError as error:
            raise StoreError(
                f"{file}, line {number} is not a tombstone: {error}; delete it if it was cut off"
            ) from None

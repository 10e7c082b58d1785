"""The folder that everything of one installation lives in, used by one process at a time."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from bot.errors import SettingsError


def create_data_dir(data_dir: Path) -> Path:
    """Make the folder unless it is there; raises `SettingsError` when it cannot be used."""
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unusable(data_dir, error) from None
    return data_dir


@contextlib.contextmanager
def lock_data_dir(data_dir: Path) -> Iterator[None]:
    """Make the folder and keep every other process out of it for the length of the block.

    Raises:
        SettingsError: it cannot be made, or another process has it.
    """
    try:
        lock = (create_data_dir(data_dir) / "troupe.lock").open("a+")
    except OSError as error:
        raise _unusable(data_dir, error) from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.seek(0)
            raise SettingsError(
                f"another troupe (process {lock.read().strip() or 'unknown'}) works in {data_dir}; "
                "stop it, or set TROUPE_DATA_DIR to another folder"
            ) from None
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield


def _unusable(data_dir: Path, error: OSError) -> SettingsError:
    return SettingsError(
        f"the data directory {data_dir} cannot be used ({error.strerror}); "
        "mend it or set TROUPE_DATA_DIR"
    )

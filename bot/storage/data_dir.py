"""The data directory, which contains all files of an installation.

If it contains the database, at most one service and one terminal chat can use it at a time. They
share the database and the models, but process different conversations. Processes whose database
is elsewhere share the directory, and replace its files atomically.
"""

import contextlib
import os
from collections.abc import Iterator
from enum import Enum
from pathlib import Path

from bot.errors import SettingsError
from bot.runtime.operating_system import belongs_to_user, lock_file


class DataDirUse(Enum):
    """What a process uses the data directory for; each use has a separate lock."""

    SERVICE = "troupe.lock"
    TERMINAL = "terminal.lock"


_HOLDER_NAMES = {
    DataDirUse.SERVICE: "another Troupe service",
    DataDirUse.TERMINAL: "another terminal chat",
}


def create_data_dir(data_dir: Path) -> Path:
    """Create the directory for its owner only; raises `SettingsError` if it cannot be used."""
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
        restrict_to_owner(data_dir, 0o700)
    except OSError as error:
        raise _unusable_dir_error(data_dir, error) from None
    return data_dir


def restrict_to_owner(path: Path, mode: int) -> None:
    """Make a file or directory accessible only to its owner, if this user owns it."""
    file_status = path.stat()
    if belongs_to_user(file_status) and file_status.st_mode & 0o077:
        path.chmod(mode)


@contextlib.contextmanager
def lock_data_dir(
    data_dir: Path, use: DataDirUse = DataDirUse.SERVICE, *, is_shared: bool = False
) -> Iterator[None]:
    """Create the data directory and hold its lock for `use` until the block ends.

    If `is_shared`, other processes may hold a shared lock, too. Raises `SettingsError` if the
    directory cannot be created or another process has locked it.
    """
    try:
        file = (create_data_dir(data_dir) / use.value).open("a+")
    except OSError as error:
        raise _unusable_dir_error(data_dir, error) from None
    with file:
        try:
            lock_file(file, is_shared=is_shared)
        except OSError:
            file.seek(0)
            raise SettingsError(
                f"{_HOLDER_NAMES[use]} (process {file.read().strip() or 'unknown'}) is using"
                f" {data_dir}; stop it, or set TROUPE_DATA_DIR to another directory"
            ) from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def _unusable_dir_error(data_dir: Path, error: OSError) -> SettingsError:
    return SettingsError(
        f"the data directory {data_dir} cannot be used ({error.strerror}); "
        "fix it or set TROUPE_DATA_DIR to another directory"
    )

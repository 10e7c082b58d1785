"""Change variables in a `.env` file at once, and keep its other lines and comments."""

import contextlib
import re
import shutil
import tempfile
from collections.abc import Collection, Mapping
from pathlib import Path

from dotenv import dotenv_values, set_key, unset_key

from bot.errors import SettingsError

_PLAIN = re.compile(r"[A-Za-z0-9_./:@%+,=-]*")
_MODE = 0o600  # it holds tokens and keys


def write_variables(file: Path, changes: Mapping[str, str | None]) -> None:
    """Set variables, or remove those that are None; the file is replaced in one step.

    Only its owner may read it afterwards. A variable keeps its place; names differ by more than
    their case.

    Raises:
        SettingsError: it cannot be read or written; nothing was changed.
    """
    for name, value in changes.items():
        if value is not None and re.search(r"[\n\r\0]", value):
            raise SettingsError(f"{name} has a line break in it; give one line")
    target = file.resolve()  # a link stays one
    try:
        with tempfile.TemporaryDirectory(prefix=f"{target.name}.", dir=target.parent) as folder:
            staged = Path(folder) / target.name
            if target.exists():
                shutil.copyfile(target, staged)
            else:
                staged.touch()
            _change(staged, changes)
            staged.chmod(_MODE)
            staged.replace(target)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise SettingsError(f"{file} cannot be written: {reason}; nothing was changed") from None


def _change(file: Path, changes: Mapping[str, str | None]) -> None:
    for name in dotenv_values(file, interpolate=False):
        known = name.upper()
        if known in changes and (changes[known] is None or name != known):
            unset_key(file, name)
    for name, value in changes.items():
        if value is not None:
            set_key(file, name, value, "never" if _PLAIN.fullmatch(value) else "always")


def read_names(file: Path) -> Collection[str]:
    """Return the variables that a file sets, in capitals; none if there is no such file."""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return {name.upper() for name in dotenv_values(file, interpolate=False)}
    return ()

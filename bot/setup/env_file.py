"""Change variables in a `.env` file at once, and keep its other lines and comments."""

import contextlib
import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from bot.errors import SettingsError

_ASSIGNMENT = re.compile(r"^[ \t]*(?:export[ \t]+)?(?P<name>[A-Za-z_][A-Za-z0-9_]*)[ \t]*=")
_PLAIN = re.compile(r"[A-Za-z0-9_./:@%+,=-]*")
_MODE = 0o600  # it holds tokens and keys


def write_variables(file: Path, changes: Mapping[str, str | None]) -> None:
    """Set variables, or remove those that are None; the file is replaced in one step.

    Until then it is as it was, also after an interruption. Only its owner may read it afterwards.

    Raises:
        SettingsError: it cannot be read or written; nothing was changed.
    """
    target = file.resolve()  # a link stays one
    try:
        text = target.read_text(encoding="utf-8") if target.exists() else ""
        _replace(target, change_variables(text, changes))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise SettingsError(f"{file} cannot be written: {reason}; nothing was changed") from None


def change_variables(text: str, changes: Mapping[str, str | None]) -> str:
    """Return the text of a `.env` file with these variables set, or removed where None.

    A variable keeps its place. If it is there more than once, the last place counts, as for those
    who read the file.
    """
    kept = list(_without_stale(text.splitlines(), changes))
    present = {name for line in kept if (name := _name_of(line)) in changes}
    lines = [_line(name, changes) if (name := _name_of(line)) in present else line for line in kept]
    added = [name for name in changes if name not in present and changes[name] is not None]
    lines += [_line(name, changes) for name in added]
    return "".join(f"{line}\n" for line in lines)


def _without_stale(lines: list[str], changes: Mapping[str, str | None]) -> Iterator[str]:
    """Yield the lines without removed variables, and without all but the last of each other."""
    last = {name: number for number, line in enumerate(lines) if (name := _name_of(line))}
    for number, line in enumerate(lines):
        name = _name_of(line)
        if name in changes and (changes[name] is None or last[name] != number):
            continue
        yield line


def _name_of(line: str) -> str:
    """Return the name that a line sets, in capitals; empty for any other line."""
    found = _ASSIGNMENT.match(line)
    return found["name"].upper() if found else ""


def _line(name: str, changes: Mapping[str, str | None]) -> str:
    value = changes[name] or ""
    if "\n" in value or "\r" in value or "\0" in value:
        raise SettingsError(f"{name} has a line break in it; give one line")
    if not _PLAIN.fullmatch(value):
        escaped = value.replace("\\", "\\\\").replace("'", "\\'")
        value = f"'{escaped}'"
    return f"{name}={value}"


def read_names(file: Path) -> Iterable[str]:
    """Return the variables that a file sets, in capitals; none if there is no such file."""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return {name for line in file.read_text("utf-8").splitlines() if (name := _name_of(line))}
    return ()


def _replace(target: Path, text: str) -> None:
    descriptor, name = tempfile.mkstemp(prefix=f"{target.name}.", dir=target.parent)  # mode 0600
    written = Path(name)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        written.chmod(_MODE)
        written.replace(target)
    except BaseException:
        written.unlink(missing_ok=True)
        raise

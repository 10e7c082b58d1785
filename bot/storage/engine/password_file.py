"""The password of a PostgreSQL from a file in the form of .pgpass, read again at each connect.

asyncpg's own reader ignores files that others may read, as mounted secrets are, and keeps escapes.

See https://www.postgresql.org/docs/current/libpq-pgpass.html.
"""

import getpass
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import structlog
from sqlalchemy import URL

from bot.errors import SettingsError
from bot.telemetry.secret_masker import mask_from_now_on

_OPTION = "passfile"
_PORT = "5432"
_LINE = re.compile(r"(?!#)" + r"((?:\\.|[^:\\])*):" * 4 + r"(.*)")
_ESCAPED = re.compile(r"\\(.)")
_log = structlog.get_logger(__name__)


class PostgresPasswordFile:
    """Returns the password for one server when asyncpg connects.

    Args:
        file: one line a password, `host:port:database:user:password`; the first that fits counts.
        wanted: the fields of each host of the address but the password.
    """

    def __init__(self, file: Path, wanted: Sequence[tuple[str, ...]]) -> None:
        """Read the file once.

        Raises:
            SettingsError: it cannot be read, or no line fits.
        """
        self._file = file
        self._wanted = wanted
        self._password = self._read()

    def __call__(self) -> str:
        """Return the password; what was read before while the file is being replaced."""
        try:
            self._password = self._read()
        except SettingsError as error:
            _log.warning("secret_file_not_read", reason=str(error))
        return self._password

    def _read(self) -> str:
        try:
            found = map(_LINE.fullmatch, self._file.read_text("utf-8").splitlines())
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise SettingsError(
                f"the password file {self._file} cannot be read: {reason}"
            ) from None
        lines = [[_ESCAPED.sub(r"\1", one) for one in line.groups()] for line in found if line]
        for wanted in self._wanted:
            for *given, password in lines:
                if all(each in {"*", one} for each, one in zip(given, wanted, strict=True)):
                    mask_from_now_on([password])
                    return password
        searched = " or ".join(":".join(one) for one in self._wanted)
        raise SettingsError(f"no line of the password file {self._file} is for {searched}")


def take_password_file(url: URL) -> tuple[URL, PostgresPasswordFile | None]:
    """Take `?passfile=FILE` out of an address; without it, use what libpq would.

    Raises:
        SettingsError: the file that the address names cannot be read, or has no fitting line.
    """
    given = url.query.get(_OPTION)
    url = url.difference_update_query([_OPTION])
    environment = os.environ  # noqa: TID251 # of libpq, not of Troupe
    if url.password or "password" in url.query or "PGPASSWORD" in environment:
        return url, None
    if given is not None:
        return url, PostgresPasswordFile(Path(str(given)), list(_wanted(url)))
    file = Path(environment.get("PGPASSFILE") or Path.home() / ".pgpass")
    if not file.is_file():
        return url, None
    try:
        return url, PostgresPasswordFile(file, list(_wanted(url)))
    except SettingsError as error:  # the server may want none
        _log.info("password_file_not_used", reason=str(error))
        return url, None


def _wanted(url: URL) -> Iterator[tuple[str, ...]]:
    """Return what the lines for each host of an address begin with."""
    given = url.query.get("host", url.host or "localhost")
    hosts = given.split(",") if isinstance(given, str) else given
    ports = str(url.query.get("port", url.port or _PORT)).split(",")
    user = str(url.username or url.query.get("user") or getpass.getuser())
    database = str(url.database or url.query.get("dbname", user))
    for number, each in enumerate(hosts):
        host, _, port = each.rpartition(":") if re.search(r"[^:]:\d+$", each) else (each, "", "")
        port = port or ports[min(number, len(ports) - 1)]
        yield host.strip("[]"), port, database, user
        if host.startswith("/"):
            yield "localhost", port, database, user

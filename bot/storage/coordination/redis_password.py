"""The password of a Redis from a file, which may be replaced while the service runs."""

from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

import structlog
from redis.credentials import CredentialProvider
from typing_extensions import override

from bot.runtime.secret_file import read_one_secret
from bot.telemetry.secret_masker import mask_from_now_on

_log = structlog.get_logger(__name__)
_OPTION = "password_file"


class PasswordFile(CredentialProvider):
    """Reads the password at each connect; connections that are open are not asked for it again."""

    def __init__(self, file: Path, user: str | None) -> None:
        """Read the file once.

        Raises:
            ValueError: there is not one password in it.
        """
        self._file = file
        self._user = user
        self._password = self._read()

    @override
    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        """Return user and password; what was read before while the file is being replaced."""
        try:
            self._password = self._read()
        except ValueError as error:
            _log.warning("secret_file_not_read", reason=str(error))
        return (self._password,) if self._user is None else (self._user, self._password)

    @override
    async def get_credentials_async(self) -> tuple[str] | tuple[str, str]:
        return self.get_credentials()

    def _read(self) -> str:
        found = read_one_secret(self._file, "password")
        mask_from_now_on([found])
        return found


def take_password_file(url: str) -> tuple[str, PasswordFile | None]:
    """Take `?password_file=FILE` and the user out of an address, if it has that option.

    Raises:
        ValueError: the address has a password as well, or the file cannot be used.
    """
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query))
    file = options.pop(_OPTION, None)
    if file is None:
        return url, None
    credentials, _, host = parts.netloc.rpartition("@")
    user, _, password = credentials.partition(":")
    if password or "password" in options:
        raise ValueError(f"it has a password and a {_OPTION}; remove one of them")
    user = unquote(user) or options.pop("username", "")
    query = f"?{urlencode(options)}" if options else ""
    rest = f"{parts.scheme}://{host}{parts.path}{query}"  # urlunsplit makes unix:/ of unix:///
    return rest, PasswordFile(Path(file), user or None)

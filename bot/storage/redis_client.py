"""Connect to a Redis or Valkey server by its URL, with a password from a file that may change."""

import os
import re
import ssl
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

import structlog
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.credentials import CredentialProvider
from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    NoPermissionError,
    ResponseError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError
from typing_extensions import override

from bot.errors import SettingsError
from bot.runtime.addresses import require_encoded_login
from bot.runtime.secret_file import read_one_secret
from bot.telemetry.secret_masker import mask_from_now_on

SIGNALS_CHANNEL = "troupe:signals"
ANSWER_SECONDS = 1.0
"""How long a server may take before the process does without it."""

_WRONG_SETTING = re.compile(r"DB index|AUTH|WRONGPASS", re.IGNORECASE)
_REFUSALS = (AuthenticationError, AuthorizationError, NoPermissionError)


def open_client(url: str) -> Redis:
    """Return a client that connects when it is first used.

    Raises:
        SettingsError: this is not the address of a Redis.
    """
    options: dict[str, Any] = {
        "retry": Retry(NoBackoff(), 0),
        "socket_connect_timeout": ANSWER_SECONDS,
        "socket_timeout": None,  # redis-py's own makes it deaf to being cancelled (Python 3.11)
        "health_check_interval": 5,
    }
    try:
        require_encoded_login(url, may_have_at=True)
        url, password = take_password_file(url)
        if password is not None:
            options["credential_provider"] = password
        return Redis.from_url(url, **options)
    except ValueError as error:
        raise SettingsError(
            f"TROUPE_REDIS_URL is not a Redis address: {error}; write redis://:password@host:6379"
        ) from None


def is_refusal(error: Exception) -> bool:
    """Return whether only the operator can fix this: a wrong password, a missing database."""
    error = _unwrap(error)
    return isinstance(error, _REFUSALS) or (
        isinstance(error, ResponseError) and _WRONG_SETTING.search(str(error)) is not None
    )


def _unwrap(error: Exception) -> Exception:
    """Return the refusal that redis-py hides in its errors: of the server, of a certificate."""
    chain = (error, error.__cause__, error.__context__, *error.args)
    hidden = (*_REFUSALS, ssl.SSLCertVerificationError)
    return next((each for each in chain if isinstance(each, hidden)), error)


def describe_redis_error(error: Exception, redis: Redis) -> str:
    """Describe the server, the error and the remedy, without the password."""
    given = redis.connection_pool.connection_kwargs
    server = _name_of(redis)
    match _unwrap(error):
        case ssl.SSLCertVerificationError() as refused:
            what = (
                f"has a certificate that is not trusted here ({refused.verify_message}); name the"
                " file of its authority by ?ssl_ca_certs=FILE in the address"
            )
        case NoPermissionError():
            what = f"forbids its user to publish; allow it the channel {SIGNALS_CHANNEL}"
        case AuthenticationError() | AuthorizationError() if given.get("credential_provider"):
            what = "refuses the name, or the password in its file; correct them"
        case AuthenticationError() | AuthorizationError() if given.get("password"):
            what = "refuses the name or the password; correct them in the address"
        case AuthenticationError() | AuthorizationError():
            what = "wants a password; put `:password@` in front of the host in the address"
        case ResponseError() if is_refusal(error):
            what = f"refuses the connection ({error}); correct the end of the address"
        case TimeoutError() | RedisTimeoutError():
            what = f"does not answer within {ANSWER_SECONDS:g} s; is it running, and is TLS right?"
        case OSError() | RedisConnectionError() as failure:
            what = _why_unreachable(failure, given.get("ssl_ca_certs"))
        case _:
            what = f"fails: {str(error) or type(error).__name__}"
    return f"TROUPE_REDIS_URL: Redis at {server} {what}"


def _why_unreachable(failure: Exception, authority: str | None) -> str:
    if authority and not Path(authority).is_file():
        return f"cannot be asked, there is no file {authority}; correct ?ssl_ca_certs="
    return f"cannot be reached ({_reason(failure)}); start it, or correct the address"


def _reason(error: Exception) -> str:
    """Return the operating system's words, which redis-py hides among its own."""
    for found in (error, error.__cause__, error.__context__):
        if isinstance(found, OSError) and found.errno is not None:
            # a failed look-up of a name has a negative number and words of its own
            return os.strerror(found.errno) if found.errno > 0 else str(found.strerror)
    return str(error) or type(error).__name__


def _name_of(redis: Redis) -> str:
    given = redis.connection_pool.connection_kwargs
    return str(given.get("path") or f"{given.get('host', 'localhost')}:{given.get('port', 6379)}")


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

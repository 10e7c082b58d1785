"""Connect to a Redis or Valkey server by URL, optionally with a password from a file."""

import os
import ssl
from collections.abc import Sequence
from pathlib import Path
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
from redis.exceptions import TimeoutError as RedisTimeoutError
from typing_extensions import override

from bot.errors import SettingsError
from bot.runtime.addresses import require_escaped_password
from bot.runtime.secret_file import read_single_secret
from bot.telemetry.secret_masker import register_secrets

SIGNALS_CHANNEL = "troupe:signals"
TIMEOUT_SECONDS = 1.0
"""The time after which a process continues without the server's response."""

_REFUSED_CONNECTIONS = (
    *(AuthenticationError, AuthorizationError, NoPermissionError),
    ssl.SSLCertVerificationError,
)
_FILE_OPTION = "password_file"
_log = structlog.get_logger(__name__)


def open_client(url: str) -> Redis:
    """Return a client that connects on first use; raises `SettingsError` for a bad address."""
    try:
        require_escaped_password(url, may_have_at=True)
        url, password = _take_password_file(url)
        redis = Redis.from_url(
            url,
            credential_provider=password,
            retry=Retry(NoBackoff(), 0),
            socket_connect_timeout=TIMEOUT_SECONDS,
            socket_timeout=None,  # redis-py's own timeout swallows cancellation (Python 3.11)
            health_check_interval=5,
        )
    except ValueError as error:
        raise SettingsError(
            f"TROUPE_REDIS_URL is not a Redis address: {error}; write redis://:password@host:6379"
        ) from None
    authority = redis.connection_pool.connection_kwargs.get("ssl_ca_certs")
    if authority and not Path(authority).is_file():
        raise SettingsError(
            f"TROUPE_REDIS_URL: there is no file {authority}; correct ?ssl_ca_certs="
        )
    return redis


def describe_redis_error(error: Exception, redis: Redis) -> str:
    """Return a message with the server, the error and the remedy, without the password."""
    given = redis.connection_pool.connection_kwargs
    server = given.get("path") or f"{given.get('host', 'localhost')}:{given.get('port', 6379)}"
    chain = (error, error.__cause__, error.__context__, *error.args)  # redis-py hides the cause
    match next((each for each in chain if isinstance(each, _REFUSED_CONNECTIONS)), error):
        case ssl.SSLCertVerificationError() as refused:
            what = (
                f"has a certificate that is not trusted here ({refused.verify_message}); name the"
                " file of its authority by ?ssl_ca_certs=FILE in the address"
            )
        case NoPermissionError():
            what = f"does not allow its user to publish; allow the channel {SIGNALS_CHANNEL}"
        case AuthenticationError() | AuthorizationError():
            what = (
                "refuses the name or the password; correct them in the address, as"
                f" redis://name:password@host, or in the file of ?{_FILE_OPTION}="
            )
        case TimeoutError() | RedisTimeoutError():
            what = f"does not answer within {TIMEOUT_SECONDS:g} s; is it running, and is TLS right?"
        case ResponseError():
            what = f"refuses the connection ({error}); correct the address"
        case _:
            what = (
                f"cannot be reached ({_system_error_text(chain)}); start it, or correct the address"
            )
    return f"TROUPE_REDIS_URL: Redis at {server} {what}"


def _system_error_text(chain: Sequence[object]) -> str:
    """Return the operating system's error message, which redis-py hides."""
    for found in chain:
        if isinstance(found, OSError) and found.errno is not None:
            # a failed DNS lookup has a negative number and its own message
            return os.strerror(found.errno) if found.errno > 0 else str(found.strerror)
    return str(chain[0]) or type(chain[0]).__name__


class _PasswordFile(CredentialProvider):
    """Reads the password from a file whenever the client opens a connection."""

    def __init__(self, file: Path, user: str) -> None:
        self._file = file
        self._user = [user] if user else []
        self._password = self._read()

    @override
    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        """Return user and password, or the previous ones while the file is being replaced."""
        try:
            self._password = self._read()
        except ValueError as error:
            _log.warning("secret_file_not_read", reason=str(error))
        return (*self._user, self._password)  # type: ignore[return-value]

    def _read(self) -> str:
        found = read_single_secret(self._file, "password")
        register_secrets([found])
        return found


def _take_password_file(url: str) -> tuple[str, _PasswordFile | None]:
    """Remove user and password file from a URL; return the URL and the file, if any."""
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query))
    file = options.pop(_FILE_OPTION, None)
    if file is None:
        return url, None
    credentials, _, host = parts.netloc.rpartition("@")
    user, _, password = credentials.partition(":")
    if password or "password" in options:
        raise ValueError(f"it has a password and a {_FILE_OPTION}; remove one of them")
    user = unquote(user) or options.pop("username", "")
    query = f"?{urlencode(options)}" if options else ""
    rest = f"{parts.scheme}://{host}{parts.path}{query}"  # urlunsplit turns unix:/// into unix:/
    return rest, _PasswordFile(Path(file), user)

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

_REFUSAL_ERRORS = (
    *(AuthenticationError, AuthorizationError, NoPermissionError),
    ssl.SSLCertVerificationError,
)
_FILE_OPTION = "password_file"
_log = structlog.get_logger(__name__)


def open_client(url: str) -> Redis:
    """Return a client that connects on first use; raises `SettingsError` for a bad address."""
    try:
        require_escaped_password(url, may_contain_at_sign=True)
        url, password_file = _extract_password_file(url)
        redis = Redis.from_url(
            url,
            credential_provider=password_file,
            retry=Retry(NoBackoff(), 0),
            socket_connect_timeout=TIMEOUT_SECONDS,
            socket_timeout=None,  # redis-py's own timeout swallows cancellation (Python 3.11)
            health_check_interval=5,
        )
    except ValueError as error:
        raise SettingsError(
            f"TROUPE_REDIS_URL is not a Redis URL: {error}; use redis://:password@host:6379"
        ) from None
    ca_file = redis.connection_pool.connection_kwargs.get("ssl_ca_certs")
    if ca_file and not Path(ca_file).is_file():
        raise SettingsError(f"TROUPE_REDIS_URL: there is no file {ca_file}; correct ?ssl_ca_certs=")
    return redis


def describe_redis_error(error: Exception, redis: Redis) -> str:
    """Return a message with the server, the error and the remedy, without the password."""
    kwargs = redis.connection_pool.connection_kwargs
    server = kwargs.get("path") or f"{kwargs.get('host', 'localhost')}:{kwargs.get('port', 6379)}"
    errors = (error, error.__cause__, error.__context__, *error.args)  # redis-py hides the cause
    match next((each for each in errors if isinstance(each, _REFUSAL_ERRORS)), error):
        case ssl.SSLCertVerificationError() as refused:
            fault = (
                f"has a certificate that is not trusted here ({refused.verify_message}); add "
                "?ssl_ca_certs=FILE to the URL, where FILE has the server's CA certificate"
            )
        case NoPermissionError():
            fault = f"does not let this user publish; allow the channel {SIGNALS_CHANNEL}"
        case AuthenticationError() | AuthorizationError():
            fault = (
                "rejected the user name or password; correct them in the URL, as in"
                f" redis://name:password@host, or in the file given by ?{_FILE_OPTION}="
            )
        case TimeoutError() | RedisTimeoutError():
            fault = (
                f"did not answer within {TIMEOUT_SECONDS:g} s; is it running, and should the URL "
                "begin with redis:// or rediss:// (TLS)?"
            )
        case ResponseError():
            fault = f"refused the connection ({error}); correct the URL"
        case _:
            fault = f"cannot be reached ({_os_error_text(errors)}); start it, or correct the URL"
    return f"TROUPE_REDIS_URL: Redis at {server} {fault}"


def _os_error_text(errors: Sequence[object]) -> str:
    """Return the operating system's error message, which redis-py hides."""
    for cause in errors:
        if isinstance(cause, OSError) and cause.errno is not None:
            # a failed DNS lookup has a negative number and its own message
            return os.strerror(cause.errno) if cause.errno > 0 else str(cause.strerror)
    return str(errors[0]) or type(errors[0]).__name__


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
        password = read_single_secret(self._file, "password")
        register_secrets([password])
        return password


def _extract_password_file(url: str) -> tuple[str, _PasswordFile | None]:
    """Remove user and password file from a URL; return the URL and the file, if any."""
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query))
    password_file = options.pop(_FILE_OPTION, None)
    if password_file is None:
        return url, None
    credentials, _, host = parts.netloc.rpartition("@")
    user, _, password = credentials.partition(":")
    if password or "password" in options:
        raise ValueError(f"it has a password and a {_FILE_OPTION}; remove one of them")
    user = unquote(user) or options.pop("username", "")
    query = f"?{urlencode(options)}" if options else ""
    new_url = f"{parts.scheme}://{host}{parts.path}{query}"  # urlunsplit turns unix:/// into unix:/
    return new_url, _PasswordFile(Path(password_file), user)

"""Connect to a Redis or Valkey server by its URL."""

import os
import re
import ssl
from pathlib import Path
from typing import Any

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    NoPermissionError,
    ResponseError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from bot.errors import SettingsError
from bot.runtime.addresses import require_encoded_login
from bot.storage.coordination.redis_password import take_password_file

SIGNALS_CHANNEL = "troupe:signals"
ANSWER_SECONDS = 1.0
"""How long a server may take; then what was asked of it is done without it."""

_WRONG_SETTING = re.compile(r"DB index|AUTH|WRONGPASS", re.IGNORECASE)
_REFUSALS = (AuthenticationError, AuthorizationError, NoPermissionError)


def open_client(url: str) -> Redis:
    """Return a client that connects when it is first used.

    Raises:
        SettingsError: this is no address of a Redis.
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
    """Tell whether only the operator can mend this: a wrong password, a missing database."""
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
    """Name the server, what is wrong and the remedy; without the password."""
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

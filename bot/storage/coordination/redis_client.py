"""Connect to a Redis or Valkey by its address: one server, or the one that Sentinels name.

`redis+sentinel://:password@host1:26379,host2:26379/mymaster/0` asks the Sentinels where the primary
server called `mymaster` is, at each connect, so that a failover is followed. `rediss` instead of
`redis` means TLS, in both forms; the password and the options after `?` are those of the server,
and `sentinel_password` that of the Sentinels. `?password_file=FILE` names a file with the password
instead, and `sentinel_password_file` one with that of the Sentinels.
"""

import os
import re
import ssl
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from redis.asyncio import Redis
from redis.asyncio.connection import SSLConnection, parse_url
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import MasterNotFoundError, Sentinel, SentinelConnectionPool
from redis.backoff import NoBackoff
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
from bot.storage.coordination.redis_password import PasswordFile, take_password_file

SIGNALS_CHANNEL = "troupe:signals"
ANSWER_SECONDS = 1.0
"""How long a server may take; then what was asked of it is done without it."""

_SENTINEL_PORT = 26379
_SENTINEL_SECONDS = 0.3
"""A Sentinel that is silent leaves the others time enough."""
_SENTINEL = "+sentinel"
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
        if urlsplit(url).scheme.endswith(_SENTINEL):
            return _open_by_sentinel(url, options)
        return Redis.from_url(url, **options)
    except ValueError as error:
        raise SettingsError(
            f"TROUPE_REDIS_URL is not a Redis address: {error}; write redis://:password@host:6379,"
            " redis+sentinel://host1:26379,host2:26379/name, or embedded for the bundled Valkey"
        ) from None


def _open_by_sentinel(url: str, options: dict[str, Any]) -> Redis:
    parts = urlsplit(url)
    credentials, at, hosts = parts.netloc.rpartition("@")
    service, _, database = parts.path.strip("/").partition("/")
    if not service or not hosts:
        raise ValueError("the Sentinels' hosts or the name of their primary server are missing")
    query = dict(parse_qsl(parts.query))
    sentinel_login = _sentinel_login(query)
    scheme = parts.scheme.removesuffix(_SENTINEL)
    server = urlunsplit((scheme, f"{credentials}{at}primary", database, urlencode(query), ""))
    given: dict[str, Any] = {**parse_url(server)}
    del given["host"]
    tls = {name: value for name, value in given.items() if name.startswith("ssl_")}
    if given.pop("connection_class", None) is SSLConnection:
        tls["ssl"] = True
    sentinels = Sentinel(  # type: ignore[no-untyped-call]
        [_address(host) for host in hosts.split(",")],
        sentinel_kwargs={
            **tls,
            **sentinel_login,
            "retry": Retry(NoBackoff(), 0),
            "socket_connect_timeout": _SENTINEL_SECONDS,
            "socket_timeout": _SENTINEL_SECONDS,
        },
    )
    client: Redis = sentinels.master_for(
        service, connection_pool_class=_Pool, **{**given, **tls, **options}
    )
    return client


def _sentinel_login(query: dict[str, str]) -> dict[str, Any]:
    """Take the password of the Sentinels, or its file, out of the options.

    Raises:
        ValueError: there are both, or the file cannot be used.
    """
    password = query.pop("sentinel_password", None)
    file = query.pop("sentinel_password_file", None)
    if file is None:
        return {"password": password}
    if password is not None:
        raise ValueError(
            "it has a sentinel_password and a sentinel_password_file; remove one of them"
        )
    return {"credential_provider": PasswordFile(Path(file), None)}


class _Pool(SentinelConnectionPool):
    """Closes the connections to the Sentinels as well, which redis-py leaves open."""

    @override
    async def disconnect(self, inuse_connections: bool = True) -> None:
        await super().disconnect(inuse_connections)
        if inuse_connections:
            await self.sentinel_manager.aclose()


def _address(host: str) -> tuple[str, int]:
    """Split `host:port`; IPv6 addresses stand in brackets."""
    parts = urlsplit(f"//{host}")
    return parts.hostname or "localhost", parts.port or _SENTINEL_PORT


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
    if isinstance(failure, MasterNotFoundError):
        return f"cannot be found: {_why_not_found(str(failure))}"
    return f"cannot be reached ({_reason(failure)}); start it, or correct the address"


def _why_not_found(said: str) -> str:
    """Tell what redis-py's report of all Sentinels says, which also spells out its own objects."""
    if "AuthenticationError" in said:
        return "a Sentinel refuses the password; correct ?sentinel_password=, or that in its file"
    if " - " in said:
        return "no Sentinel answers; are they running, and is TLS right (?ssl_ca_certs=FILE)?"
    return "the Sentinels know no primary server of this name; correct it in the address"


def _reason(error: Exception) -> str:
    """Return the operating system's words, which redis-py hides among its own."""
    for found in (error, error.__cause__, error.__context__):
        if isinstance(found, OSError) and found.errno is not None:
            # a failed look-up of a name has a negative number and words of its own
            return os.strerror(found.errno) if found.errno > 0 else str(found.strerror)
    return str(error) or type(error).__name__


def _name_of(redis: Redis) -> str:
    pool = redis.connection_pool
    if isinstance(pool, SentinelConnectionPool):
        return f"{pool.service_name}, by its Sentinels,"
    given = pool.connection_kwargs
    return str(given.get("path") or f"{given.get('host', 'localhost')}:{given.get('port', 6379)}")

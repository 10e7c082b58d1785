"""Download files from untrusted URLs, but only from public servers (protection against SSRF).

The same parser reads the URL for the check and for the request. The host name is resolved once,
and the connection goes to the checked IP address. Redirect targets are checked as well.
"""

import asyncio
import ipaddress
import re
from collections.abc import Callable, Collection
from http import HTTPStatus
from urllib.parse import SplitResult, urljoin, urlsplit

import structlog

from bot.errors import TroupeError
from bot.runtime.http_client import AddressRefused, ConnectionFailed, HttpClient, HttpResponse

_log = structlog.get_logger(__name__)
_ALLOWED_PORTS = frozenset({80, 443})
_MAX_REDIRECTS = 3
_MAX_URL_CHARS = 2000
_TIMEOUT_SECONDS = 10.0
_CONNECT_SECONDS = 5.0
_REDIRECT_STATUSES = frozenset(
    {
        *(HTTPStatus.MOVED_PERMANENTLY, HTTPStatus.FOUND, HTTPStatus.SEE_OTHER),
        *(HTTPStatus.TEMPORARY_REDIRECT, HTTPStatus.PERMANENT_REDIRECT),
    }
)
_REQUEST_HEADERS = {"Connection": "close"}
# ASCII only, without characters that other URL parsers read differently.
_SAFE_URL_PATTERN = re.compile(r"https?://[!#-;=?-\[\]_a-z~]+", re.IGNORECASE)
_HOST_NAME_PATTERN = re.compile(
    r"(?=.{1,253}$)([a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9])?\.)+[a-z][a-z0-9-]*[a-z0-9]"
)
# IPv6 ranges that embed an IPv4 address: NAT64, 6to4, Teredo, IPv4-mapped, IPv4-compatible.
_IPV6_TRANSITION_RANGES = (
    "64:ff9b::/96",
    "64:ff9b:1::/48",
    "2002::/16",
    "2001::/32",
    "::ffff:0:0/96",
    "::/96",
)
_IPV4_IN_IPV6_RANGES = [ipaddress.IPv6Network(text) for text in _IPV6_TRANSITION_RANGES]


class FetchFailed(TroupeError):
    """A file cannot be downloaded; the message contains the reason, for the log."""


class FetchRefused(FetchFailed):
    """The URL or its redirect target is not public."""


def is_public_address(address: str) -> bool:
    """Return whether an IP address is on the public internet."""
    try:
        ip_address = ipaddress.ip_address(address)
    except ValueError:  # has a scope, such as fe80::1%eth0
        return False
    if ip_address.version == 6 and any(ip_address in network for network in _IPV4_IN_IPV6_RANGES):
        return False
    return ip_address.is_global and not ip_address.is_multicast


class PublicFetcher:
    """Downloads files within limits; `allows_address` tells whether to connect to an IP address."""

    def __init__(
        self,
        allows_address: Callable[[str], bool] = is_public_address,
        allowed_ports: Collection[int] = _ALLOWED_PORTS,
        timeout_seconds: float = _TIMEOUT_SECONDS,
    ) -> None:
        self._allows_address = allows_address
        self._timeout_seconds = timeout_seconds
        self._allowed_ports = allowed_ports

    async def fetch(self, address: str, max_bytes: int) -> bytes:
        """Return up to the first `max_bytes` of the file at a URL; raises `FetchFailed`."""
        deadline = asyncio.get_running_loop().time() + self._timeout_seconds
        try:
            async with asyncio.timeout_at(deadline):
                return await self._follow_redirects(address, max_bytes, deadline)
        except (AddressRefused, FetchRefused) as error:
            _log.warning("ssrf_blocked", reason=str(error))
            raise FetchRefused(str(error)) from error
        except TimeoutError:
            raise FetchFailed(f"the download took more than {self._timeout_seconds:g} s") from None
        except ConnectionFailed as error:
            raise FetchFailed(str(error)) from error

    async def _follow_redirects(self, address: str, max_bytes: int, deadline: float) -> bytes:
        for _ in range(_MAX_REDIRECTS + 1):
            url = parse_public_url(address, self._allowed_ports)
            client = HttpClient(
                f"{url.scheme}://{url.netloc}",
                _REQUEST_HEADERS,
                connect_seconds=_CONNECT_SECONDS,
                uses_proxy=False,
                allows_address=self._allows_address,
            )
            try:
                path = (url.path or "/") + (f"?{url.query}" if url.query else "")
                async with await client.request("GET", path, None, deadline) as response:
                    if response.status not in _REDIRECT_STATUSES:
                        return await _read_response(response, max_bytes, deadline)
                    address = urljoin(url.geturl(), response.headers.get("location", ""))
            finally:
                await client.close()
        raise FetchFailed(f"the server redirects more than {_MAX_REDIRECTS} times")


async def _read_response(response: HttpResponse, max_bytes: int, deadline: float) -> bytes:
    if response.status != HTTPStatus.OK:
        raise FetchFailed(f"the server answered with status {response.status}")
    if response.headers.get("content-encoding", "identity").lower() != "identity":
        raise FetchFailed("the server compressed the response, although it was asked not to")
    return await response.read_all(deadline, max_bytes)


def parse_public_url(address: str, allowed_ports: Collection[int] = _ALLOWED_PORTS) -> SplitResult:
    """Parse a URL and return it in canonical form; raises `FetchRefused` if it is not public."""
    if len(address) > _MAX_URL_CHARS or not _SAFE_URL_PATTERN.fullmatch(address):
        raise FetchRefused("the URL is not a plain http:// or https:// address")
    try:
        url = urlsplit(address)
        host, port = url.hostname or "", url.port
    except ValueError:
        raise FetchRefused("the URL's host or port is malformed") from None
    if "@" in url.netloc:
        raise FetchRefused("the URL contains a user name or password")
    if port is not None and port not in allowed_ports:
        raise FetchRefused(f"the URL's port is {port}; only 80 and 443 are allowed")
    if not (_HOST_NAME_PATTERN.fullmatch(host) or _is_ip_address(host)):
        raise FetchRefused("the URL's host is not a public name")
    return url._replace(scheme=url.scheme.lower(), netloc=url.netloc.lower(), fragment="")


def _is_ip_address(host: str) -> bool:
    try:
        ip_address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return str(ip_address) == host or ip_address.version == 6

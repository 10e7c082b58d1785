"""An aiohttp client for one server: deadlines, paced reads, and a check before each write."""

import asyncio
import math
import os
import socket
import ssl
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import KW_ONLY, dataclass
from http import HTTPStatus
from pathlib import Path
from types import SimpleNamespace
from typing import Self
from urllib.parse import quote

import aiohttp
from aiohttp.abc import ResolveResult
from typing_extensions import override
from yarl import URL

from bot import __version__
from bot.errors import TroupeError
from bot.runtime.tasks import get_resume_limiter


class ConnectionFailed(TroupeError):
    """A request failed without a complete response; the text contains the reason."""

    def __init__(
        self, reason: str, *, is_request_sent: bool = True, was_connection_idle: bool = False
    ) -> None:
        super().__init__(reason)
        self.is_request_sent = is_request_sent
        """Whether the server may have received the request or a part of it."""
        self.was_connection_idle = was_connection_idle
        """Whether a reused connection was closed, perhaps before the request arrived."""


class InvalidAddress(ConnectionFailed):
    def __init__(self) -> None:
        super().__init__("the server's URL is not valid", is_request_sent=False)


class AddressRefused(ConnectionFailed):
    """The server's name resolves to a forbidden address."""


_may_write: ContextVar[Callable[[], bool] | None] = ContextVar("may_write", default=None)


@contextmanager
def send_only_if(may_write: Callable[[], bool]) -> Iterator[None]:
    """Make requests in the block fail if `may_write` returns false just before they are sent."""
    token = _may_write.set(may_write)
    try:
        yield
    finally:
        _may_write.reset(token)


def check_send_permission() -> None:
    """Raise `ConnectionFailed` if the check set by `send_only_if` forbids sending now."""
    may_write = _may_write.get()
    if may_write is not None and not may_write():
        raise ConnectionFailed("the request was not sent in time", is_request_sent=False)


SUSPENSION_THRESHOLD_SECONDS = 1.0
"""If a timer is later than this, this process was suspended, so the server is not to blame."""

_FINAL_READ_SECONDS = 0.1  # extra time after a deadline to read data that has already arrived
_IDLE_SECONDS = 30.0  # a firewall may drop connections that are idle longer
_PAUSE_STEP_SECONDS = 0.05  # pauses end at multiples of this, so one wake-up reads many streams
_MAX_HEADER_BYTES = 64 * 1024
_MAX_CACHED_URLS = 1000  # cached, because parsing a URL is slow
_UNROUNDED_TIMEOUT_THRESHOLD = 1e9  # aiohttp rounds timeouts above this to whole seconds
# A compressed body may be a decompression bomb.
_DEFAULT_HEADERS = {"Accept-Encoding": "identity", "User-Agent": f"troupe/{__version__}"}


@dataclass(eq=False, repr=False)
class HttpClient:
    """Sends requests to one server over kept-alive connections, without following redirects."""

    base_url: str
    """The server's URL and the prefix of all paths."""
    headers: Mapping[str, str]
    """Headers sent with every request."""
    _: KW_ONLY
    connect_seconds: float
    unix_socket: Path | None = None
    uses_proxy: bool = True
    """Whether requests go through the proxy that environment variables set, if any."""
    allows_address: Callable[[str], bool] | None = None
    """Returns whether the client may connect to an IP address; None allows every address.

    The connection uses the address that was checked; the host name is not resolved again.
    """

    def __post_init__(self) -> None:
        self._headers = dict(self.headers)
        self._url = URL()
        self._urls_by_path: dict[str, URL] = {}
        self._session: aiohttp.ClientSession | None = None
        self._responses = set[HttpResponse]()

    async def request(
        self,
        method: str,
        path: str,
        body: bytes | aiohttp.FormData | None,
        deadline: float,
        *,
        content_type: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> "HttpResponse":
        """Send a request and return the response, before its body is read.

        `deadline` is in event loop time. `headers` must not contain text written by people.
        Raises `ConnectionFailed`, or `TimeoutError` after the deadline.
        """
        attempt = _RequestAttempt()
        try:
            session = self._session or self._open_session()
            all_headers = {**self._headers, **(headers or {})}  # not sent with a proxy's CONNECT
            if content_type is not None:
                all_headers["Content-Type"] = content_type
            with _Deadline(deadline):
                response = HttpResponse(
                    await session.request(
                        method,
                        self._build_url(path),
                        data=body,
                        headers=all_headers,
                        allow_redirects=False,
                        trace_request_ctx=attempt,
                    ),
                    self._responses,
                )
        except TimeoutError:
            if attempt.is_sent:
                raise TimeoutError from None  # aiohttp's error text would contain the URL
            reason = f"no connection to {self._url.host}:{self._url.port} in time"
            raise ConnectionFailed(reason, is_request_sent=False) from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise _to_connection_failed(error, attempt) from None
        try:
            await get_resume_limiter().wait_to_resume()
        except BaseException:
            await response.close()
            raise
        return response

    async def close(self) -> None:
        """Close all connections; reads of open responses raise `ConnectionFailed`."""
        for response in tuple(self._responses):
            await response.close()
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def _open_session(self) -> aiohttp.ClientSession:
        """Create the aiohttp session; raise `InvalidAddress` if the base URL is invalid."""
        try:
            url = URL(self.base_url)
        except ValueError:
            raise InvalidAddress from None
        if not url.host or url.scheme not in {"http", "https"}:
            raise InvalidAddress
        if url.user is not None:
            basic_auth = aiohttp.encode_basic_auth(url.user, url.password or "")
            self._headers["Authorization"] = basic_auth
        self._url = url
        self._session = aiohttp.ClientSession(
            connector=self._create_connector(url),
            headers=_DEFAULT_HEADERS,
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            max_field_size=_MAX_HEADER_BYTES,
            proxy=_find_environment_proxy(url) if self.uses_proxy else None,
            timeout=aiohttp.ClientTimeout(
                connect=self.connect_seconds, ceil_threshold=_UNROUNDED_TIMEOUT_THRESHOLD
            ),
            trace_configs=[_TRACE_CONFIG],
        )
        return self._session

    def _create_connector(self, url: URL) -> aiohttp.BaseConnector:
        force_close = self._headers.get("Connection") == "close"
        idle_seconds = None if force_close else _IDLE_SECONDS
        if self.unix_socket is not None:
            return aiohttp.UnixConnector(
                str(self.unix_socket), force_close, keepalive_timeout=idle_seconds, limit=0
            )
        resolver = None
        if self.allows_address is not None:
            resolver = _AddressCheckingResolver(self.allows_address)
            host = url.raw_host or ""
            if ":" in host or host.replace(".", "").isdigit():  # IPs bypass aiohttp's resolver
                resolver.check(host, host)
        return aiohttp.TCPConnector(
            resolver=resolver, force_close=force_close, keepalive_timeout=idle_seconds, limit=0
        )

    def _build_url(self, path: str) -> URL:
        """Return the full URL for a path; percent-encoded characters stay as they are."""
        if (cached_url := self._urls_by_path.get(path)) is not None:
            return cached_url
        query = self._url.raw_query_string
        target = quote(self._url.raw_path.rstrip("/") + path, safe="/%:@!$&'()*+,;=~?")
        if query:
            target += f"{'&' if '?' in target else '?'}{query}"
        if len(self._urls_by_path) >= _MAX_CACHED_URLS:
            self._urls_by_path.clear()
        full_url = self._urls_by_path[path] = URL(f"{self._url.origin()}{target}", encoded=True)
        return full_url


class HttpResponse:
    """A response whose body can be read; use it with `async with`, which always closes it."""

    def __init__(self, response: aiohttp.ClientResponse, responses: "set[HttpResponse]") -> None:
        """Wrap aiohttp's response; keep this object in `responses` until it is closed."""
        self.status = response.status
        self.headers: Mapping[str, str] = response.headers
        """Response headers; names are looked up case-insensitively."""
        self._response = response
        self._open_responses = responses
        responses.add(self)

    async def read(self, deadline: float, pause_seconds: float = 0.0) -> bytes:
        """Return the next bytes of the body, or empty bytes at its end.

        If no data has arrived yet, wait `pause_seconds` before reading, so that many streamed
        tokens wake the process only once. Raises `ConnectionFailed`, or `TimeoutError` after the
        deadline.
        """
        content = self._response.content
        try:
            data = content.read_nowait()
            if data or content.at_eof():
                return data
            read_deadline = _Deadline(deadline)
            if pause_seconds > 0:
                await self._pause_reading(pause_seconds)
            with read_deadline:
                data = await content.readany()
        except aiohttp.ClientError as error:
            raise _to_connection_failed(error, _RequestAttempt(is_sent=True)) from error
        await get_resume_limiter().wait_to_resume()
        return data

    async def read_all(self, deadline: float, max_bytes: int) -> bytes:
        """Return up to `max_bytes` of the rest of the body; raises the same errors as `read`."""
        parts: list[bytes] = []
        byte_count = 0
        while byte_count < max_bytes and (part := await self.read(deadline)):
            parts.append(part)
            byte_count += len(part)
        return b"".join(parts)[:max_bytes]

    async def close(self) -> None:
        """Release the response; its connection closes unless the whole body was read."""
        self._open_responses.discard(self)
        self._response.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _pause_reading(self, seconds: float) -> None:
        """Stop reading the socket for some seconds; all responses resume at the same times."""
        connection = self._response.connection
        transport = None if connection is None else connection.transport
        if transport is None or transport.is_closing():
            return
        transport.pause_reading()
        now = asyncio.get_running_loop().time()
        pause_end = math.ceil((now + seconds) / _PAUSE_STEP_SECONDS) * _PAUSE_STEP_SECONDS
        try:
            await asyncio.sleep(pause_end - now)
        finally:
            if not transport.is_closing():
                transport.resume_reading()


class _Deadline:
    """Like `asyncio.timeout_at`, but extends the deadline if this process was suspended."""

    def __init__(self, expires_at: float) -> None:
        self._expires_at = expires_at
        self._loop = asyncio.get_running_loop()
        self._is_final_read = expires_at <= self._loop.time()  # otherwise, keep-alives extend it
        self._has_expired = False

    def __enter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 -- requests are sent by tasks
        self._task, self._cancel_count = task, task.cancelling()
        self._timer = self._loop.call_at(self._expires_at, self._expire_or_extend)

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        self._timer.cancel()
        is_own_cancellation = self._has_expired and self._task.uncancel() <= self._cancel_count
        if is_own_cancellation and isinstance(error, asyncio.CancelledError):
            raise TimeoutError from error

    def _expire_or_extend(self) -> None:
        now = self._loop.time()
        delay = now - self._expires_at
        if delay > SUSPENSION_THRESHOLD_SECONDS:
            # This process was suspended, or the machine was asleep. The server may have answered
            # in time, so that its data is still in the kernel.
            self._expires_at = next_check_at = now + delay
        elif not self._is_final_read:
            # The event loop may have been too busy to read data that arrived in time.
            self._is_final_read = True
            next_check_at = now + _FINAL_READ_SECONDS
        else:
            self._has_expired = True
            self._task.cancel()
            return
        self._timer = self._loop.call_at(next_check_at, self._expire_or_extend)


@dataclass(slots=True)
class _RequestAttempt:
    is_sent: bool = False
    """Whether the server may have received the request or a part of it."""
    is_on_idle_connection: bool = False


async def _record_connection_reuse(
    _: aiohttp.ClientSession, context: SimpleNamespace, __: object
) -> None:
    context.trace_request_ctx.is_on_idle_connection = True


async def _record_sending(_: aiohttp.ClientSession, context: SimpleNamespace, __: object) -> None:
    check_send_permission()
    context.trace_request_ctx.is_sent = True


_TRACE_CONFIG = aiohttp.TraceConfig()
_TRACE_CONFIG.on_connection_reuseconn.append(_record_connection_reuse)
# Despite its name, aiohttp calls this before it writes the headers. An exception raised here closes
# the connection, unlike exceptions raised in the connection's own signals.
_TRACE_CONFIG.on_request_headers_sent.append(_record_sending)


class _AddressCheckingResolver(aiohttp.ThreadedResolver):
    def __init__(self, allows_address: Callable[[str], bool]) -> None:
        super().__init__()
        self._allows_address = allows_address

    @override
    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        addresses = await super().resolve(host, port, family)
        for address in addresses:
            self.check(host, address["host"])
        return addresses

    def check(self, host: str, address: str) -> None:
        if not self._allows_address(address):
            reason = f"{host} resolves to {address}, which is not allowed"
            raise AddressRefused(reason, is_request_sent=False)


def _find_environment_proxy(url: URL) -> str | None:
    """Return the proxy that environment variables set for a URL, or None for a direct connection.

    aiohttp's own option, `trust_env`, would start a thread for each request.
    """
    if urllib.request.proxy_bypass(f"{url.host}:{url.port}"):
        return None
    proxies_by_scheme = urllib.request.getproxies()
    proxy = proxies_by_scheme.get(url.scheme) or proxies_by_scheme.get("all")
    return proxy if proxy is None or "://" in proxy else f"http://{proxy}"


def _to_connection_failed(error: Exception, attempt: _RequestAttempt) -> ConnectionFailed:
    match error:
        case aiohttp.ClientHttpProxyError():
            reason = f"the proxy answered with status {error.status}"
        case aiohttp.ClientConnectorError():
            reason = (
                f"no connection to {error.host}:{error.port} ({_describe_os_error(error.os_error)})"
            )
        case aiohttp.InvalidURL():
            return InvalidAddress()
        case ValueError():
            return ConnectionFailed(f"the request is not valid: {error}", is_request_sent=False)
        case aiohttp.ClientResponseError():
            reason = "the server's response is not valid HTTP/1.1"
        case aiohttp.ServerDisconnectedError() | aiohttp.ClientPayloadError():
            reason = "the server closed the connection"
        case _:
            reason = str(error) or type(error).__name__
    was_idle = attempt.is_on_idle_connection and isinstance(error, aiohttp.ClientConnectionError)
    return ConnectionFailed(reason, is_request_sent=attempt.is_sent, was_connection_idle=was_idle)


def _describe_os_error(error: OSError) -> str:
    match error:
        case socket.gaierror(errno=socket.EAI_AGAIN):
            return "the host name cannot be resolved right now; is the network down?"
        case socket.gaierror():
            return "the host name is unknown"
        case ssl.SSLCertVerificationError():
            return f"the server's certificate is not valid: {error.verify_message}"
        case OSError(errno=int() as number) if not isinstance(error, ssl.SSLError):
            return os.strerror(number)
        case _:
            return str(error) or type(error).__name__


_CONNECT_SECONDS = 5.0
_DOWNLOAD_HEADERS = {"Connection": "close"}


async def download_file(url: str, max_bytes: int, seconds: float) -> bytes:
    """Download at most `max_bytes` of a file; raises `ConnectionFailed` or `TimeoutError`."""
    client = HttpClient(url, _DOWNLOAD_HEADERS, connect_seconds=_CONNECT_SECONDS, uses_proxy=False)
    deadline = asyncio.get_running_loop().time() + seconds
    try:
        async with await client.request("GET", "", None, deadline) as response:
            if response.status != HTTPStatus.OK:
                raise ConnectionFailed(f"the server answered with status {response.status}")
            return await response.read_all(deadline, max_bytes)
    finally:
        await client.close()

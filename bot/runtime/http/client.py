"""An HTTP/1.1 client for one server: kept-alive connections, TLS, and the environment's proxy.

A request costs about a quarter of what it costs over aiohttp: headers are made once, the head of a
response is split and not parsed into types, and a timer serves many waits.
"""

import asyncio
import contextlib
import os
import socket
import ssl
import urllib.request
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from urllib.parse import SplitResult, quote, unquote, urlsplit

import aiohappyeyeballs
import certifi

from bot.frozen_dataclass import frozen_dataclass
from bot.runtime.http.connection import HttpClientConnection, HttpResponse
from bot.runtime.http.failures import AddressRefused, ConnectionFailed, InvalidAddress
from bot.runtime.http.parsing import parse_head

_IDLE_SECONDS = 30.0  # a firewall may forget a connection that was idle longer
_HAPPY_EYEBALLS_SECONDS = 0.25  # RFC 8305; then the next address is tried beside the first
_MAX_TUNNEL_BYTES = 16 * 1024
_STATUS_OK = 200
_PORTS = {"http": 80, "https": 443}


class HttpClient:
    """Sends requests to one server, each over a connection of its own or one that is idle.

    Args:
        base_url: the address, and what all paths begin with.
        headers: are sent with every request.
        connect_seconds: how long connecting may take.
        unix_socket: where the server listens, if it is on this machine.
        uses_proxy: take the proxy that the environment names for this address.
        allows_address: whether an IP address of the server may be asked. The connection goes to
            what was checked: the name is not looked up again.
    """

    def __init__(
        self,
        base_url: str,
        headers: Mapping[str, str],
        *,
        connect_seconds: float,
        unix_socket: Path | None = None,
        uses_proxy: bool = True,
        allows_address: Callable[[str], bool] | None = None,
    ) -> None:
        self._base_url = base_url
        self._allows_address = allows_address
        self._headers = dict(headers)
        self._keeps_alive = headers.get("Connection") != "close"
        self._connect_seconds = connect_seconds
        self._unix_socket = unix_socket
        self._uses_proxy = uses_proxy and unix_socket is None
        self._route: _Route | None = None
        self._tls: ssl.SSLContext | None = None
        self._opening_tls = asyncio.Lock()
        self._idle: list[HttpClientConnection] = []  # the longest idle one first
        self._open: set[HttpClientConnection] = set()
        self._all_closed = asyncio.Event()
        self._all_closed.set()
        self._header_lines: str | None = None

    async def request(
        self,
        method: str,
        path: str,
        body: bytes | None,
        deadline: float,
        *,
        content_type: str | None = None,
        header: str = "",
    ) -> HttpResponse:
        """Send a request and return its response, with the body still unread.

        Args:
            method: in upper case.
            path: what follows the base URL; it may have a query.
            body: None: the request has none.
            deadline: in the event loop's time.
            content_type: of the body, where the headers of the client do not say it.
            header: one more header as "Name: value"; it must not come from people.

        Raises:
            ConnectionFailed: there is no response.
            TimeoutError: there was none before the deadline.
        """
        head = self._make_head(method, path, content_type, header)
        if body is None:
            data = b"%b\r\n" % head
        else:
            data = b"%bContent-Length: %d\r\n\r\n%b" % (head, len(body), body)
        connection = self._take_idle() or await self._connect(deadline)
        return await connection.request(data, deadline)

    async def close(self) -> None:
        """Close all connections."""
        for connection in tuple(self._open):
            connection.abort()
        await self._all_closed.wait()

    # --- the head of a request ---------------------------------------------------------------

    def _make_head(self, method: str, path: str, content_type: str | None, header: str) -> bytes:
        route = self._known_route()
        url = route.url
        target = quote(url.path.rstrip("/") + path, safe="/%:@!$&'()*+,;=~?")
        if url.query:
            target += f"{'&' if '?' in target else '?'}{url.query}"
        if route.proxy is not None and not route.is_tls:
            target = f"http://{_host_and_port(url)}{target}"
        if self._header_lines is None:
            self._header_lines = self._make_header_lines(route)
        kind = "" if content_type is None else f"Content-Type: {content_type}\r\n"
        more = f"{header}\r\n" if header else ""
        return _encode_head(f"{method} {target} HTTP/1.1\r\n{self._header_lines}{kind}{more}")

    def _make_header_lines(self, route: "_Route") -> str:
        """Make the lines that are the same for every request."""
        url = route.url
        headers = {"Host": _host_and_port(url), **self._headers}
        if url.username is not None:
            headers["Authorization"] = _basic_authorization(url)
        if route.proxy is not None and not route.is_tls:
            headers |= _proxy_headers(route.proxy)
        lines = [f"{name}: {value}" for name, value in headers.items()]
        if any("\r" in line or "\n" in line for line in lines):
            raise ConnectionFailed("a header has a line break in it", sent=False)
        return "".join(f"{line}\r\n" for line in lines)

    def _known_route(self) -> "_Route":
        if self._route is None:
            self._route = _find_route(self._base_url, uses_proxy=self._uses_proxy)
        return self._route

    # --- connections -------------------------------------------------------------------------

    def _take_idle(self) -> HttpClientConnection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open and connection.idle_seconds < _IDLE_SECONDS:
                return connection
            connection.abort()
        return None

    def _on_idle(self, connection: HttpClientConnection) -> None:
        if not self._keeps_alive:
            connection.abort()
            return
        self._idle.append(connection)
        if self._idle[0].idle_since < connection.idle_since - _IDLE_SECONDS:
            self._idle.pop(0).abort()

    def _on_closed(self, connection: HttpClientConnection) -> None:
        self._open.discard(connection)
        if not self._open:
            self._all_closed.set()
        if connection in self._idle:
            self._idle.remove(connection)

    async def _connect(self, deadline: float) -> HttpClientConnection:
        loop = asyncio.get_running_loop()
        route = self._known_route()
        host, port = route.first_hop
        try:
            async with asyncio.timeout_at(min(deadline, loop.time() + self._connect_seconds)):
                return await self._connect_by(route)
        except TimeoutError:
            reason = f"no connection to {host}:{port} in time"
            raise ConnectionFailed(reason, sent=False) from None
        except (OSError, UnicodeError) as error:  # ssl.SSLError is an OSError
            reason = f"no connection to {host}:{port} ({_reason(error)})"
            raise ConnectionFailed(reason, sent=False) from error

    async def _connect_by(self, route: "_Route") -> HttpClientConnection:
        loop = asyncio.get_running_loop()
        connection = HttpClientConnection(self._on_connected, self._on_idle, self._on_closed)
        if self._unix_socket is not None:
            with _told_of_its_end(connection):
                await loop.create_unix_connection(lambda: connection, str(self._unix_socket))
            return connection
        tls = await self._tls_context() if route.is_tls else None
        host, port = route.first_hop
        addresses = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        for *_, found in addresses:
            if self._allows_address is not None and not self._allows_address(str(found[0])):
                reason = f"{host} is at {found[0]}, which may not be asked"
                raise AddressRefused(reason, sent=False)
        connected = await aiohappyeyeballs.start_connection(
            addresses, happy_eyeballs_delay=_HAPPY_EYEBALLS_SECONDS, loop=loop
        )
        try:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if tls is not None and route.proxy is not None:
                await _open_tunnel(connected, route)
            with _told_of_its_end(connection):
                await loop.create_connection(
                    lambda: connection,
                    sock=connected,
                    ssl=tls,
                    server_hostname=route.url.hostname if tls is not None else None,
                )
        except BaseException:
            connected.close()
            raise
        return connection

    def _on_connected(self, connection: HttpClientConnection) -> None:
        self._open.add(connection)
        self._all_closed.clear()

    async def _tls_context(self) -> ssl.SSLContext:
        """Return the context; it reads all certificates, so that a thread makes it."""
        async with self._opening_tls:
            if self._tls is None:
                self._tls = await asyncio.to_thread(_make_tls_context)
            return self._tls


@contextlib.contextmanager
def _told_of_its_end(connection: HttpClientConnection) -> Iterator[None]:
    """Let a connection know that connecting was cancelled.

    uvloop closes the transport of a cancelled `create_connection` without a word to its protocol.
    """
    try:
        yield
    except BaseException:
        connection.connection_lost(None)
        raise


def _make_tls_context() -> ssl.SSLContext:
    """Trust the system's certificates, and the usual ones where the system has none."""
    context = ssl.create_default_context()
    context.load_verify_locations(certifi.where())
    return context


@frozen_dataclass
class _Route:
    """How a server is reached."""

    url: SplitResult
    proxy: SplitResult | None

    @property
    def is_tls(self) -> bool:
        return self.url.scheme == "https"

    @property
    def first_hop(self) -> tuple[str, int]:
        """The host and port to connect to."""
        return _host(self.proxy or self.url), _port(self.proxy or self.url)


def _find_route(base_url: str, *, uses_proxy: bool) -> _Route:
    """Parse the address and find its proxy; raises `ConnectionFailed`."""
    url = _parse_url(base_url)
    if not uses_proxy or urllib.request.proxy_bypass(f"{_host(url)}:{_port(url)}"):
        return _Route(url, None)
    proxies = urllib.request.getproxies()
    address = proxies.get(url.scheme) or proxies.get("all")
    return _Route(url, _parse_proxy(address) if address else None)


def _parse_url(address: str) -> SplitResult:
    try:
        url = urlsplit(address)
        has_host, has_port = bool(url.hostname), url.port != 0
    except ValueError:
        raise InvalidAddress from None
    if not (has_host and has_port and url.scheme in _PORTS):
        raise InvalidAddress
    return url


def _parse_proxy(address: str) -> SplitResult:
    try:
        proxy = _parse_url(address if "://" in address else f"http://{address}")
    except InvalidAddress:
        raise ConnectionFailed("the proxy's address is not a valid URL", sent=False) from None
    if proxy.scheme != "http":
        reason = f"a proxy is reached by http://, not by {proxy.scheme}://"
        raise ConnectionFailed(reason, sent=False)
    return proxy


def _host(url: SplitResult) -> str:
    return url.hostname or ""


def _port(url: SplitResult) -> int:
    return url.port or _PORTS[url.scheme]


def _host_and_port(url: SplitResult, *, always: bool = False) -> str:
    host = _host(url) if _host(url).isascii() else _host(url).encode("idna").decode()
    host = f"[{host}]" if ":" in host else host
    return f"{host}:{_port(url)}" if always or url.port is not None else host


def _encode_head(head: str) -> bytes:
    try:
        return head.encode("latin-1")
    except UnicodeEncodeError:
        reason = "a header has characters that are not allowed"
        raise ConnectionFailed(reason, sent=False) from None


def _basic_authorization(url: SplitResult) -> str:
    credentials = f"{unquote(url.username or '')}:{unquote(url.password or '')}"
    return f"Basic {b64encode(credentials.encode()).decode()}"


def _proxy_headers(proxy: SplitResult) -> dict[str, str]:
    if proxy.username is None:
        return {}
    return {"Proxy-Authorization": _basic_authorization(proxy)}


async def _open_tunnel(connected: socket.socket, route: _Route) -> None:
    """Have the proxy connect this socket to the server; raises `ConnectionFailed`."""
    loop = asyncio.get_running_loop()
    server = _host_and_port(route.url, always=True)
    headers = {"Host": server, **(_proxy_headers(route.proxy) if route.proxy else {})}
    lines = [f"CONNECT {server} HTTP/1.1", *(f"{name}: {v}" for name, v in headers.items()), "", ""]
    await loop.sock_sendall(connected, "\r\n".join(lines).encode("latin-1"))
    received = b""
    while b"\r\n\r\n" not in received and len(received) < _MAX_TUNNEL_BYTES:
        data = await loop.sock_recv(connected, 4096)
        if not data:
            raise ConnectionFailed("the proxy closed the connection", sent=False)
        received += data
    status, _ = parse_head(received.partition(b"\r\n\r\n")[0])
    if status != _STATUS_OK:
        raise ConnectionFailed(f"the proxy answers with status {status}", sent=False)


def _reason(error: Exception) -> str:
    match error:
        case socket.gaierror(errno=socket.EAI_AGAIN):
            return "names cannot be looked up now; is the network there?"
        case socket.gaierror():
            return "its name is unknown"
        case ssl.SSLCertVerificationError():
            return f"its certificate is not valid: {error.verify_message}"
        case OSError(errno=int() as number) if not isinstance(error, ssl.SSLError):
            return os.strerror(number)
        case _:
            return str(error) or type(error).__name__

"""An HTTP client whose requests go over aiohttp, which needs half the CPU of the usual transport.

The openai client has the same, but importing that client costs more than all of Troupe. The reader
of a response can also pause its socket: what arrives then waits in the kernel, and a stream of
tokens wakes the process once for many of them.
"""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Iterator

import aiohttp
import httpx2
from typing_extensions import override

MAX_CHUNK_BYTES = 16 * 1024
"""One read returns all that has arrived, up to this size."""

_STREAM_EXTENSION = "troupe_stream"

# The first that fits: subclasses stand before what they derive from.
_ERRORS: tuple[tuple[type[Exception], type[httpx2.TransportError]], ...] = (
    (aiohttp.ServerTimeoutError, httpx2.ReadTimeout),
    (aiohttp.ClientProxyConnectionError, httpx2.ProxyError),
    (aiohttp.ClientHttpProxyError, httpx2.ProxyError),
    (aiohttp.ClientConnectorError, httpx2.ConnectError),
    (aiohttp.ClientConnectionError, httpx2.ReadError),
    (aiohttp.ClientPayloadError, httpx2.ReadError),
    (aiohttp.InvalidURL, httpx2.UnsupportedProtocol),
)


class AiohttpClient(httpx2.AsyncClient):
    """httpx2's client with this transport, also through the proxies of the environment."""

    @override
    def _init_transport(
        self,
        verify: ssl.SSLContext | str | bool = True,
        cert: str | tuple[str, str] | tuple[str, str, str] | None = None,
        trust_env: bool = True,
        http1: bool = True,
        http2: bool = False,
        limits: httpx2.Limits = httpx2.Limits(),  # noqa: B008 -- a constant value
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> httpx2.AsyncBaseTransport:
        if transport is not None:
            return transport
        return AiohttpTransport(limits)

    @override
    def _init_proxy_transport(
        self,
        proxy: httpx2.Proxy,
        verify: ssl.SSLContext | str | bool = True,
        cert: str | tuple[str, str] | tuple[str, str, str] | None = None,
        trust_env: bool = True,
        http1: bool = True,
        http2: bool = False,
        limits: httpx2.Limits = httpx2.Limits(),  # noqa: B008 -- a constant value
    ) -> httpx2.AsyncBaseTransport:
        return AiohttpTransport(limits, proxy)


class AiohttpTransport(httpx2.AsyncBaseTransport):
    """Sends requests over one aiohttp session, which is opened with the first of them."""

    def __init__(self, limits: httpx2.Limits, proxy: httpx2.Proxy | None = None) -> None:
        self._limits = limits
        self._proxy = proxy
        self._session: aiohttp.ClientSession | None = None
        self._opening = asyncio.Lock()

    @override
    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        session = self._session or await self._open_session(request.url.scheme)
        timeout = request.extensions.get("timeout", {})
        proxy = self._proxy
        with _errors_translated():
            response = await session.request(
                request.method,
                str(request.url),
                headers=request.headers,
                data=await request.aread() or None,
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(
                    connect=timeout.get("pool"),
                    sock_connect=timeout.get("connect"),
                    sock_read=timeout.get("read"),
                ),
                proxy=str(proxy.url) if proxy else None,
                proxy_auth=aiohttp.BasicAuth(*proxy.auth) if proxy and proxy.auth else None,
                proxy_headers=proxy.headers if proxy else None,
            )
        stream = _ResponseStream(response)
        return httpx2.Response(
            response.status,
            headers=list(response.raw_headers),
            stream=stream,
            request=request,
            extensions={
                "http_version": b"HTTP/1.1",
                "reason_phrase": (response.reason or "").encode(),
                _STREAM_EXTENSION: stream,
            },
        )

    @override
    async def aclose(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def _open_session(self, scheme: str) -> aiohttp.ClientSession:
        async with self._opening:
            if self._session is None:
                # It reads all certificates and imports much: not in the event loop. All requests
                # of a client go to one address, so that a service on this machine needs none.
                tls = (
                    await asyncio.to_thread(httpx2.create_ssl_context)
                    if scheme == "https"
                    else True
                )
                connector = aiohttp.TCPConnector(
                    limit=self._limits.max_connections or 0,  # 0: as many as there are requests
                    keepalive_timeout=self._limits.keepalive_expiry,
                    ssl=tls,
                )
                self._session = aiohttp.ClientSession(connector=connector, auto_decompress=False)
            return self._session


class _ResponseStream(httpx2.AsyncByteStream):
    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response

    @override
    async def __aiter__(self) -> AsyncIterator[bytes]:
        with _errors_translated():
            async for chunk in self._response.content.iter_chunked(MAX_CHUNK_BYTES):
                yield chunk

    @override
    async def aclose(self) -> None:
        # closes the connection if the body was not read to its end
        self._response.release()

    def socket(self) -> asyncio.Transport | None:
        """Return what the rest of the body comes over; None if it is here already."""
        connection = self._response.connection
        transport = None if connection is None else connection.transport
        return None if transport is None or transport.is_closing() else transport


def can_pause(response: httpx2.Response) -> bool:
    """Return whether the response comes from this transport."""
    return _STREAM_EXTENSION in response.extensions


@contextlib.contextmanager
def paused_socket(response: httpx2.Response) -> Iterator[None]:
    """Leave what arrives in the kernel until the block ends; only if the response can be paused."""
    stream = response.extensions.get(_STREAM_EXTENSION)
    socket = stream.socket() if isinstance(stream, _ResponseStream) else None
    if socket is None:
        yield
        return
    socket.pause_reading()
    try:
        yield
    finally:
        if not socket.is_closing():
            socket.resume_reading()


@contextlib.contextmanager
def _errors_translated() -> Iterator[None]:
    try:
        yield
    except (aiohttp.ClientError, TimeoutError) as error:
        found = [ours for theirs, ours in _ERRORS if isinstance(error, theirs)]
        if not found:
            raise
        raise found[0](str(error)) from error

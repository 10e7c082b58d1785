"""A timeout for the headers of a connection's first request; aiohttp's server has none."""

import asyncio
from collections.abc import Callable
from typing import cast

from typing_extensions import override

_END_OF_HEADERS = b"\r\n\r\n"
_TIMEOUT_REPLY = b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class HeaderTimeout(asyncio.Protocol):
    """Wraps a server's protocol until the headers of the first request have arrived.

    On a timeout, a client that has sent a part of the headers gets status 408, and the connection
    is closed.
    """

    def __init__(self, make_protocol: Callable[[], asyncio.Protocol], seconds: float) -> None:
        """Wrap a new protocol of the server; `seconds` is the timeout for the headers."""
        self._server = make_protocol()
        self._timeout_seconds = seconds
        self._last_received_bytes = b""  # kept, because the blank line may arrive in pieces

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._timer = asyncio.get_running_loop().call_later(self._timeout_seconds, self._time_out)
        self._server.connection_made(transport)

    @override
    def data_received(self, data: bytes) -> None:
        unparsed_bytes = self._last_received_bytes + data
        if not self._last_received_bytes:  # blank lines before a request do not end its headers
            unparsed_bytes = unparsed_bytes.lstrip(b"\r\n")
        if _END_OF_HEADERS in unparsed_bytes:
            self._timer.cancel()
            self._transport.set_protocol(self._server)
        self._last_received_bytes = unparsed_bytes[1 - len(_END_OF_HEADERS) :]
        self._server.data_received(data)

    @override
    def eof_received(self) -> bool | None:
        return self._server.eof_received()

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.cancel()
        self._server.connection_lost(exc)

    @override
    def pause_writing(self) -> None:
        self._server.pause_writing()

    @override
    def resume_writing(self) -> None:
        self._server.resume_writing()

    def _time_out(self) -> None:
        if self._transport.is_closing():  # the server has already rejected the partial headers
            return
        if self._last_received_bytes:
            self._transport.write(_TIMEOUT_REPLY)
        self._transport.close()

"""Bound the responses of an MCP server that is reached over HTTP."""

from collections.abc import AsyncIterator

import httpx2
from typing_extensions import override

MAX_RESPONSE_BYTES = 1024 * 1024
"""The longest response; a connection for events may bring this much, then it is opened anew."""


class ResponseTooLong(httpx2.ReadError):
    """A response is longer than any result that a model would read."""


class RedirectedElsewhere(httpx2.ReadError):
    """The server leads to another address; which one may be a secret, and is not said."""


class BoundedTransport(httpx2.AsyncHTTPTransport):
    """Reads no more of a response than `MAX_RESPONSE_BYTES`, and none that is compressed.

    Raises:
        ResponseTooLong: it is longer than that, or compressed.
        RedirectedElsewhere: it leads to another scheme, host or port.
    """

    @override
    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        request.headers["accept-encoding"] = "identity"
        response = await super().handle_async_request(request)
        if response.has_redirect_location and not _is_same_server(response, request.url):
            await response.aclose()
            raise RedirectedElsewhere(f"redirects to another address ({response.status_code})")
        if response.headers.get("content-encoding", "identity") != "identity":
            await response.aclose()
            raise ResponseTooLong("a compressed response, which nobody asked for")
        assert isinstance(response.stream, httpx2.AsyncByteStream)  # noqa: S101 -- it is async
        response.stream = _BoundedStream(response.stream)
        return response


def _is_same_server(response: httpx2.Response, asked: httpx2.URL) -> bool:
    try:
        target = asked.join(response.headers["location"])
    except httpx2.InvalidURL:
        return False
    return (target.scheme, target.host, target.port) == (asked.scheme, asked.host, asked.port)


class _BoundedStream(httpx2.AsyncByteStream):
    def __init__(self, stream: httpx2.AsyncByteStream) -> None:
        self._stream = stream

    @override
    async def __aiter__(self) -> AsyncIterator[bytes]:
        received = 0
        async for chunk in self._stream:
            received += len(chunk)
            if received > MAX_RESPONSE_BYTES:
                raise ResponseTooLong(f"more than {MAX_RESPONSE_BYTES} bytes in a response")
            yield chunk

    @override
    async def aclose(self) -> None:
        await self._stream.aclose()

"""Bound the responses of an MCP server that is reached over HTTP."""

from collections.abc import AsyncIterator

import httpx2
from typing_extensions import override

MAX_RESPONSE_BYTES = 1024 * 1024
"""The longest response; a connection for events may bring this much, then it is opened anew."""


class ResponseTooLong(httpx2.ReadError):
    """A response is longer than any result that a model would read."""


class BoundedTransport(httpx2.AsyncHTTPTransport):
    """Reads no more of a response than `MAX_RESPONSE_BYTES`, and none that is compressed."""

    @override
    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        request.headers["accept-encoding"] = "identity"
        response = await super().handle_async_request(request)
        if response.headers.get("content-encoding", "identity") != "identity":
            await response.aclose()
            raise ResponseTooLong("a compressed response, which nobody asked for")
        assert isinstance(response.stream, httpx2.AsyncByteStream)  # noqa: S101 -- it is async
        response.stream = _BoundedStream(response.stream)
        return response


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

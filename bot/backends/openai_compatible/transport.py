"""Let the openai client send its requests by our HTTP client, which reads responses in pauses."""

import asyncio
from collections.abc import AsyncIterator
from http import HTTPStatus

import httpx2
from typing_extensions import override

from bot.backends.chat_completions.request import MAX_ERROR_BYTES, request_again_if_idle
from bot.backends.chat_completions.stream_parser import MAX_RESPONSE_BYTES
from bot.runtime.http.client import HttpClient, HttpResponse

RESPONSE = "troupe_response"
"""The extension of a response that holds ours, which reads its body up to a deadline."""

_CONNECTION_HEADERS = frozenset({"host", "connection", "content-length"})


class HttpTransport(httpx2.AsyncBaseTransport):
    """Sends requests to one server; the read timeout is for the whole response.

    The errors of our client pass through the openai client as they are.
    """

    def __init__(self, client: HttpClient) -> None:
        self._client = client

    @override
    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        deadline = asyncio.get_running_loop().time() + request.extensions["timeout"]["read"]
        response = await request_again_if_idle(
            self._client,
            request.method,
            request.url.raw_path.decode("ascii"),
            await request.aread() or None,
            deadline,
            {
                name: each
                for name, each in request.headers.items()
                if name not in _CONNECTION_HEADERS
            },
        )
        return httpx2.Response(
            response.status,
            # Nothing is unpacked, so that nobody can send a decompression bomb.
            headers={
                name: each for name, each in response.headers.items() if name != "content-encoding"
            },
            stream=_Body(response, deadline),
            extensions={RESPONSE: response},
        )

    @override
    async def aclose(self) -> None:
        await self._client.close()


class _Body(httpx2.AsyncByteStream):
    """A body, or its beginning if it is too long, as the openai client reads it."""

    def __init__(self, response: HttpResponse, deadline: float) -> None:
        self._response = response
        self._deadline = deadline

    @override
    async def __aiter__(self) -> AsyncIterator[bytes]:
        is_error = self._response.status >= HTTPStatus.MULTIPLE_CHOICES
        max_bytes = MAX_ERROR_BYTES if is_error else MAX_RESPONSE_BYTES
        yield await self._response.read_all(self._deadline, max_bytes)

    @override
    async def aclose(self) -> None:
        await self._response.close()

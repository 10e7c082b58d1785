"""Send requests over kept-alive connections to a service's API."""

from collections.abc import Mapping

import aiohttp
import httpx2
from typing_extensions import override

from bot.backends.chat_completions.aiohttp_transport import AiohttpClient
from bot.backends.chat_completions.request import (
    ConnectionFailed,
    HttpConnection,
    error_text,
    raise_for_status,
)
from bot.backends.chat_completions.settings import HttpProviderSettings

_DISCONNECT_ERRORS = (
    aiohttp.ServerDisconnectedError,
    aiohttp.ClientOSError,
    aiohttp.ClientConnectionResetError,
)
# Every waiting chat holds a connection, and a slow chat should not need a new one for each message.
_LIMITS = httpx2.Limits(max_connections=1000, keepalive_expiry=30)


def open_http_client(
    settings: HttpProviderSettings, transport: httpx2.AsyncBaseTransport | None = None
) -> httpx2.AsyncClient:
    """Make an HTTP client over aiohttp.

    It follows no redirects: the key is for this provider only.
    """
    return AiohttpClient(
        base_url=settings.base_url or "",
        transport=transport,
        trust_env=transport is None,  # a proxy is for remote services
        timeout=httpx2.Timeout(
            None, connect=settings.connect_seconds, pool=settings.connect_seconds
        ),
        limits=_LIMITS,
        follow_redirects=False,
        event_hooks={"response": [raise_for_status]},
    )


class PooledConnection(HttpConnection):
    """Connections of one HTTP client, which send the same headers with every request."""

    def __init__(self, client: httpx2.AsyncClient, headers: Mapping[str, str]) -> None:
        self._client = client
        # Unpacked bodies only, so that nobody can send a decompression bomb.
        self._headers = {**headers, "Accept-Encoding": "identity"}
        self._has_answered = False  # so there may be connections that were kept alive

    @override
    async def post(self, path: str, body: bytes) -> httpx2.Response:
        try:
            response = await self._send("POST", path, body)
        except ConnectionFailed as error:
            if not (self._has_answered and _was_disconnected(error)):
                raise
            response = await self._send("POST", path, body)
        self._has_answered = True
        return response

    async def list_models(self) -> None:
        """Request the list of models; raises as `post` does."""
        await (await self._send("GET", "/models")).aclose()

    async def close(self) -> None:
        """Close all connections."""
        await self._client.aclose()

    async def _send(self, method: str, path: str, body: bytes | None = None) -> httpx2.Response:
        request = self._client.build_request(method, path, content=body, headers=self._headers)
        try:
            return await self._client.send(request, stream=True)
        except (httpx2.TransportError, aiohttp.ClientError) as error:
            raise ConnectionFailed(error_text(error)) from error


def _was_disconnected(error: BaseException) -> bool:
    """Return whether the connection broke before any response came.

    Some servers (llama.cpp's) announce keep-alive and close the connection all the same. A request
    that is cut off by that needs no backoff, only another connection.
    """
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, _DISCONNECT_ERRORS):
        cause = cause.__cause__
    return cause is not None and not isinstance(cause, aiohttp.ClientConnectorError)

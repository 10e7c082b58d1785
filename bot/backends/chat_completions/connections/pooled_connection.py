"""Send requests over kept-alive connections to a service's API."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
from typing_extensions import override

from bot.backends.chat_completions import errors
from bot.backends.chat_completions.errors import Endpoint
from bot.backends.chat_completions.request import (
    HttpConnection,
    HttpStatusError,
    NoModelList,
    is_web_page,
    raise_for_status,
)
from bot.backends.chat_completions.settings import HttpProviderSettings
from bot.backends.chat_completions.stream_parser import MAX_RESPONSE_BYTES
from bot.runtime.http.client import HttpClient, HttpResponse
from bot.runtime.http.failures import ConnectionFailed

_LIST_SECONDS = 10.0
_MAX_LIST_BYTES = 8 * 2**20


class PooledConnection(HttpConnection):
    """Connections to one service, which send the same headers with every request.

    Redirects are not followed: the key is for this provider only.
    """

    def __init__(
        self,
        settings: HttpProviderSettings,
        headers: Mapping[str, str],
        unix_socket: Path | None = None,
        models_path: str = "/models",
    ) -> None:
        """Take an address and headers; with `unix_socket`, a server on this machine."""
        self._models_path = models_path
        self._client = HttpClient(
            settings.base_url or "",
            # Unpacked bodies only, so that nobody can send a decompression bomb.
            {**headers, "Accept-Encoding": "identity"},
            connect_seconds=settings.connect_seconds,
            unix_socket=unix_socket,
        )

    @override
    async def post(self, path: str, body: bytes, deadline: float, header: str = "") -> HttpResponse:
        response = await self._request("POST", path, body, deadline, header)
        await raise_for_status(response, deadline)
        return response

    async def list_models(self) -> Sequence[str]:
        """Return the ids of the models.

        Raises:
            NoModelList: the response is something else.
            Exception: as `post` does.
        """
        deadline = asyncio.get_running_loop().time() + _LIST_SECONDS
        response = await self._request("GET", self._models_path, None, deadline)
        await raise_for_status(response, deadline)
        async with response:
            return _read_model_list(await response.read_all(deadline, _MAX_LIST_BYTES))

    async def _request(
        self, method: str, path: str, body: bytes | None, deadline: float, header: str = ""
    ) -> HttpResponse:
        try:
            return await self._client.request(method, path, body, deadline, header=header)
        except ConnectionFailed as error:
            # Some servers (llama.cpp's) announce keep-alive and close the connection all the same.
            # A request that is cut off by that needs no backoff, only another connection.
            if not error.was_idle:
                raise
            return await self._client.request(method, path, body, deadline, header=header)

    async def close(self) -> None:
        """Close all connections."""
        await self._client.close()


def _read_model_list(body: bytes) -> Sequence[str]:
    """Read OpenAI's form of a list, Ollama's, or a bare one; raises `NoModelList`."""
    try:
        given = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        if len(body) >= _MAX_LIST_BYTES:
            return ()  # cut at the limit
        raise NoModelList("a web page" if is_web_page(body) else "no JSON") from None
    listed = given
    if isinstance(given, dict):
        if given.get("error"):
            raise NoModelList("an error object")
        key = next((name for name in ("data", "models") if name in given), None)
        listed = given if key is None else given[key] or []  # Ollama without models lists null
    if not isinstance(listed, list):
        raise NoModelList("JSON of another kind")
    names = (one.get("id") or one.get("name") if isinstance(one, dict) else one for one in listed)
    return [name for name in names if isinstance(name, str)]


async def post_and_read(
    connection: HttpConnection,
    path: str,
    body: bytes,
    seconds: float,
    endpoint: Endpoint,
    model: str,
) -> bytes:
    """Send a request and return the whole body of its response.

    Raises:
        RequestFailed: the service refused it, or there is no response.
        TimeoutError: it took longer than these seconds.
    """
    deadline = asyncio.get_running_loop().time() + seconds
    try:
        async with await connection.post(path, body, deadline) as response:
            return await response.read_all(deadline, MAX_RESPONSE_BYTES)
    except HttpStatusError as error:
        raise errors.translate_status(
            endpoint, model, error.status, error.headers, error.body, time.time()
        ) from None
    except ConnectionFailed as error:
        raise errors.unreachable(endpoint, str(error)) from None

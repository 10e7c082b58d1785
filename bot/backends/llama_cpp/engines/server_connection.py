"""The way to a server in a child process of ours."""

from contextlib import AsyncExitStack

import httpx2
from typing_extensions import override

from bot.backends.chat_completions.request import (
    ConnectionFailed,
    HttpConnection,
    error_text,
    raise_for_status,
)

# llama.cpp's server closes the connection after a streamed answer, and says that it keeps it. Kept
# by us too, it would be closed under the next request.
_CLOSING = {"Connection": "close"}


class ServerConnection(HttpConnection):
    """The way to a server on this machine; the openai client would take as long to load as it."""

    def __init__(self, server: httpx2.AsyncClient) -> None:
        self._server = server

    @override
    async def post(self, path: str, body: bytes) -> httpx2.Response:
        request = self._server.build_request("POST", path, content=body, headers=_CLOSING)
        try:
            response = await self._server.send(request, stream=True)
            async with AsyncExitStack() as unless_fine:
                unless_fine.push_async_callback(response.aclose)
                await raise_for_status(response)
                unless_fine.pop_all()
        except httpx2.TransportError as error:  # it may die while it says what is wrong, too
            raise ConnectionFailed(error_text(error)) from error
        return response

"""Send requests over kept-alive connections to the Messages API, with one of the keys."""

import asyncio
from collections.abc import Mapping, Sequence

import msgspec
from pydantic import SecretStr
from typing_extensions import override

from bot.backends.anthropic.settings import AnthropicSettings
from bot.backends.chat_completions.key_rotation import KeyedConnection
from bot.backends.chat_completions.request import (
    raise_for_status,
    read_model_list,
    request_again_if_idle,
)
from bot.runtime.http.client import HttpClient, HttpResponse

_API_VERSION = "2023-06-01"
_LIST_SECONDS = 10.0
_MAX_LIST_BYTES = 8 * 2**20


class AnthropicConnection(KeyedConnection):
    """Connections that send the same headers with every request.

    Redirects are not followed: the key is for this provider only.
    """

    def __init__(self, settings: AnthropicSettings, key: SecretStr | None) -> None:
        headers = {
            "anthropic-version": _API_VERSION,
            "content-type": "application/json",
            # Unpacked bodies only, so that nobody can send a decompression bomb.
            "Accept-Encoding": "identity",
            **settings.basic_auth_headers,
        }
        if key is not None:
            headers["x-api-key"] = key.get_secret_value()
        self._client = HttpClient(
            settings.base_url or "", headers, connect_seconds=settings.connect_seconds
        )

    @override
    async def post(
        self,
        path: str,
        body: Mapping[str, object],
        deadline: float,
        headers: Mapping[str, str] | None = None,
    ) -> HttpResponse:
        data = msgspec.json.encode(body)
        response = await request_again_if_idle(self._client, "POST", path, data, deadline, headers)
        await raise_for_status(response, deadline)
        return response

    @override
    async def list_models(self) -> Sequence[str]:
        deadline = asyncio.get_running_loop().time() + _LIST_SECONDS
        response = await request_again_if_idle(self._client, "GET", "/models", None, deadline)
        await raise_for_status(response, deadline)
        try:
            body = await response.read_all(deadline, _MAX_LIST_BYTES)
        finally:
            await response.close()
        return read_model_list(body)

    @override
    async def close(self) -> None:
        await self._client.close()

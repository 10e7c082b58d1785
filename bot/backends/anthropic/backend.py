"""Answer prompts through Anthropic's Messages API."""

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from pydantic import SecretStr
from typing_extensions import override

from bot.backends.anthropic.settings import AnthropicSettings
from bot.backends.anthropic.wire import AnthropicParser, can_continue, to_wire
from bot.backends.chat_completions.http_backend import HttpChatBackend
from bot.backends.chat_completions.key_rotation import KeyedConnection, KeyRotation
from bot.backends.chat_completions.request_runner import (
    ChatRequest,
    post_json,
    raise_for_status,
    read_model_list,
    request_with_idle_retry,
    resolve_default_model,
)
from bot.backends.chat_completions.stop_strings import collect_stop_strings
from bot.chat.prompt import Prompt
from bot.ports import Backend, Clock
from bot.runtime.clock import SystemClock
from bot.runtime.http_client import HttpClient, HttpResponse
from bot.templates.renderer import Renderer

_NON_PARAMETER_FIELDS = frozenset({"model", "messages", "system", "stream"})
_API_VERSION = "2023-06-01"
_MODEL_LIST_TIMEOUT_SECONDS = 10.0
_MAX_MODEL_LIST_BYTES = 8 * 2**20


class AnthropicBackend(HttpChatBackend[AnthropicSettings]):
    """A provider that speaks Anthropic's Messages API."""

    def __init__(
        self, settings: AnthropicSettings, provider: str, clock: Clock | None = None
    ) -> None:
        clock = clock or SystemClock()
        key_rotation = KeyRotation(partial(AnthropicConnection, settings), settings, clock)
        super().__init__(settings, provider, key_rotation, AnthropicParser, clock)

    @override
    def _to_request(self, prompt: Prompt, model: str) -> ChatRequest:
        body = to_wire(prompt, model, cache_ttl=self._settings.prompt_cache)
        return ChatRequest(
            "/messages",
            body,
            model,
            collect_stop_strings(prompt),
            parameter_names=body.keys() - _NON_PARAMETER_FIELDS,
            has_fallback=prompt.has_fallback,
            is_continuation=bool(prompt.begun),
        )

    @override
    def sees_images(self, model: str) -> bool:
        return self._settings.sees == "images"

    @override
    async def check_models(self, models: Sequence[str]) -> str:
        for model in models:
            resolve_default_model(model, self._settings, self._endpoint)
        return await self.check()  # the list omits aliases, so a missing model proves nothing

    @override
    def can_continue(self, prompt: Prompt) -> bool:
        return can_continue(prompt, self._model_to_send(prompt))


def make(
    provider: str, settings: AnthropicSettings, _data_dir: Path, _renderer: Renderer
) -> Backend:
    return AnthropicBackend(settings, provider)


class AnthropicConnection(KeyedConnection):
    """HTTP connections that use one key. They follow no redirects, as these could leak it."""

    def __init__(self, settings: AnthropicSettings, key: SecretStr | None) -> None:
        headers = {
            "anthropic-version": _API_VERSION,
            "content-type": "application/json",
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
        return await post_json(self._client, path, body, deadline, headers)

    @override
    async def list_models(self) -> Sequence[str]:
        deadline = asyncio.get_running_loop().time() + _MODEL_LIST_TIMEOUT_SECONDS
        response = await request_with_idle_retry(self._client, "GET", "/models", None, deadline)
        await raise_for_status(response, deadline)
        async with response:
            return read_model_list(await response.read_all(deadline, _MAX_MODEL_LIST_BYTES))

    @override
    async def close(self) -> None:
        await self._client.close()

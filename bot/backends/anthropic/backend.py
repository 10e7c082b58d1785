"""Answer prompts through Anthropic's Messages API."""

import random
from collections.abc import Sequence
from pathlib import Path

import msgspec
from pydantic import SecretStr
from typing_extensions import override

from bot.backends.anthropic.parameters import can_continue
from bot.backends.anthropic.settings import AnthropicSettings
from bot.backends.anthropic.wire import AnthropicParser, to_wire
from bot.backends.chat_completions.backend import HttpChatBackend
from bot.backends.chat_completions.connections.pooled_connection import PooledConnection
from bot.backends.chat_completions.request import ChatRequest, resolve_model
from bot.backends.chat_completions.stop_strings import stop_strings_of
from bot.chat.prompt import Prompt
from bot.ports import Backend, Clock
from bot.runtime.clock import SystemClock
from bot.templates.renderer import Renderer

_API_VERSION = "2023-06-01"
_CONTENT_FIELDS = frozenset({"model", "messages", "system", "stream"})


class AnthropicBackend(HttpChatBackend[AnthropicSettings]):
    """One provider with this API."""

    def __init__(
        self,
        settings: AnthropicSettings,
        name: str,
        *,
        clock: Clock | None = None,
        random_source: random.Random | None = None,
    ) -> None:
        super().__init__(
            settings,
            name,
            lambda key: PooledConnection(settings, _headers(settings, key)),
            AnthropicParser,
            clock=clock or SystemClock(),
            random_source=random_source,
        )

    @override
    def _to_request(self, prompt: Prompt, model: str) -> ChatRequest:
        body = to_wire(prompt, model, cache=self._settings.prompt_cache)
        return ChatRequest(
            "/messages",
            msgspec.json.encode(body),
            model,
            stop_strings_of(prompt),
            parameters=body.keys() - _CONTENT_FIELDS,
            has_fallback=prompt.has_fallback,
            is_continuation=bool(prompt.begun),
        )

    @override
    def sees_images(self, model: str) -> bool:
        return self._settings.sees == "images"

    @override
    async def check_models(self, models: Sequence[str]) -> str:
        for model in models:
            resolve_model(model, self._settings, self._endpoint)
        return await self.check()  # the service does not list the aliases of its models

    @override
    def can_continue(self, prompt: Prompt) -> bool:
        return can_continue(prompt, self._resolve_model(prompt))


def make(
    provider: str, settings: AnthropicSettings, _data_dir: Path, _renderer: Renderer
) -> Backend:
    """Make the backend for a provider of this kind."""
    return AnthropicBackend(settings, provider)


def _headers(settings: AnthropicSettings, key: SecretStr | None) -> dict[str, str]:
    headers = {
        "anthropic-version": _API_VERSION,
        "content-type": "application/json",
        **settings.basic_auth_headers,
    }
    if key is not None:
        headers["x-api-key"] = key.get_secret_value()
    return headers

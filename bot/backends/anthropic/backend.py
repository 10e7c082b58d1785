"""Answer prompts through Anthropic's Messages API."""

import random
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from typing_extensions import override

from bot.backends.anthropic.connection import AnthropicConnection
from bot.backends.anthropic.parameters import can_continue
from bot.backends.anthropic.settings import AnthropicSettings
from bot.backends.anthropic.wire import AnthropicParser, to_wire
from bot.backends.chat_completions.backend import HttpChatBackend
from bot.backends.chat_completions.key_rotation import KeyRotation
from bot.backends.chat_completions.request import ChatRequest, resolve_model
from bot.backends.chat_completions.stop_strings import stop_strings_of
from bot.chat.prompt import Prompt
from bot.ports import Backend, Clock
from bot.runtime.clock import SystemClock
from bot.templates.renderer import Renderer

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
        clock = clock or SystemClock()
        super().__init__(
            settings,
            name,
            KeyRotation(partial(AnthropicConnection, settings), settings, clock),
            AnthropicParser,
            clock=clock,
            random_source=random_source,
        )

    @override
    def _to_request(self, prompt: Prompt, model: str) -> ChatRequest:
        body = to_wire(prompt, model, cache=self._settings.prompt_cache)
        return ChatRequest(
            "/messages",
            body,
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

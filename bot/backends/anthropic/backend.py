"""Answer prompts through Anthropic's Messages API."""

import random
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import msgspec
from pydantic import SecretStr
from typing_extensions import override

from bot.backends.anthropic.parameters import can_continue
from bot.backends.anthropic.settings import AnthropicSettings
from bot.backends.anthropic.wire import AnthropicParser, to_wire
from bot.backends.chat_completions.connection import PooledConnection
from bot.backends.chat_completions.description import describe_request
from bot.backends.chat_completions.errors import Endpoint
from bot.backends.chat_completions.key_rotation import KeyRotation
from bot.backends.chat_completions.reasoning import NO_FORMAT
from bot.backends.chat_completions.request import ChatRequest, ChatRequestRunner, resolve_model
from bot.backends.chat_completions.stop_strings import stop_strings_of
from bot.backends.chat_completions.token_estimates import PromptTokenEstimator
from bot.chat.console.operation import ModelHealth
from bot.chat.prompt import Delta, Finish, Prompt, PromptDescription, ReasoningDelta
from bot.ports import (
    Backend,
    Clock,
    ContinuingBackend,
    DescribingBackend,
    ModelCheckingBackend,
    MonitoredBackend,
    SeeingBackend,
    TextTokenCounter,
    TokenCountingBackend,
    ToolCallingBackend,
)
from bot.runtime.clock import SystemClock
from bot.templates.renderer import Renderer

_API_VERSION = "2023-06-01"
_CONTENT_FIELDS = frozenset({"model", "messages", "system", "stream"})


class AnthropicBackend(
    Backend,
    TokenCountingBackend,
    DescribingBackend,
    ModelCheckingBackend,
    MonitoredBackend,
    SeeingBackend,
    ContinuingBackend,
    ToolCallingBackend,
):
    """One provider, with its own connections, retry budget and circuit breaker."""

    def __init__(
        self,
        settings: AnthropicSettings,
        name: str,
        *,
        clock: Clock | None = None,
        random_source: random.Random | None = None,
    ) -> None:
        self._settings = settings
        self._endpoint = Endpoint(name, settings.base_url or "")
        self._estimator = PromptTokenEstimator()
        clock = clock or SystemClock()
        self._connection = KeyRotation(
            lambda key: PooledConnection(settings, _headers(settings, key)), settings, clock
        )
        self._request_runner = ChatRequestRunner(
            settings,
            self._endpoint,
            self._connection,
            AnthropicParser,
            clock=clock,
            random_source=random_source,
        )

    @override
    async def generate(
        self, prompt: Prompt
    ) -> AsyncGenerator[Delta | ReasoningDelta | Finish, None]:
        model = self._resolve_model(prompt)
        body = self._body(prompt, model)
        request = ChatRequest(
            "/messages",
            msgspec.json.encode(body),
            model,
            stop_strings_of(prompt),
            NO_FORMAT,  # reasoning comes in blocks of its own
            parameters=body.keys() - _CONTENT_FIELDS,
            has_fallback=prompt.has_fallback,
            is_continuation=bool(prompt.begun),
        )
        async with aclosing(self._request_runner.run(request)) as events:
            async for event in events:
                if isinstance(event, Finish):
                    self._estimator.learn(prompt, model, event.usage.prompt_tokens)
                yield event

    @override
    async def count_tokens(self, prompt: Prompt) -> int:
        return await self._estimator.count(prompt, self._resolve_model(prompt))

    @override
    async def text_counter(self, prompt: Prompt) -> TextTokenCounter:
        return await self._estimator.text_counter(self._resolve_model(prompt))

    @override
    async def max_prompt_tokens(self, prompt: Prompt) -> int | None:
        return None  # the service rejects a prompt that is too long, and says so

    @override
    async def describe(self, prompt: Prompt) -> PromptDescription:
        model = prompt.model if prompt.model != "default" else self._settings.model or "default"
        return describe_request(model, msgspec.json.encode(self._body(prompt, model)))

    @override
    def sees_images(self, model: str) -> bool:
        return self._settings.sees == "images"

    @override
    def model_health(self) -> Sequence[ModelHealth]:
        return self._request_runner.model_health()

    @override
    async def check(self) -> str:
        return await self._request_runner.check(self._connection.list_models())

    @override
    async def list_models(self) -> Sequence[str]:
        return await self._request_runner.listed(self._connection.list_models()) or ()

    @override
    async def check_models(self, models: Sequence[str]) -> str:
        for model in models:
            resolve_model(model, self._settings, self._endpoint)
        return await self.check()  # the service does not list the aliases of its models

    @override
    def calls_tools(self, model: str) -> bool:
        return True

    @override
    def can_continue(self, prompt: Prompt) -> bool:
        return can_continue(prompt, self._resolve_model(prompt))

    @override
    async def close(self) -> None:
        await self._connection.close()

    def _body(self, prompt: Prompt, model: str) -> dict[str, Any]:
        return to_wire(prompt, model, cache=self._settings.prompt_cache)

    def _resolve_model(self, prompt: Prompt) -> str:
        return resolve_model(prompt.model, self._settings, self._endpoint)


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

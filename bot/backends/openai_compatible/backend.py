"""Answer prompts through any service with OpenAI's chat completions API, remote or local.

The openai client provides connections and authentication. Messages bypass its typed transform and
the stream bypasses its objects: those two cost ten times as much as the rest of an answer (150 µs
for each message of the history, 130 µs for each chunk).
"""

import asyncio
import random
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path

from typing_extensions import override

from bot.backends.chat_completions import errors, retries
from bot.backends.chat_completions.description import describe_request
from bot.backends.chat_completions.errors import Endpoint
from bot.backends.chat_completions.request import (
    ChatRequest,
    ChatRequestRunner,
    ConnectionFailed,
    HttpStatusError,
    error_text,
)
from bot.backends.chat_completions.stop_strings import stop_strings_of
from bot.backends.chat_completions.wire import to_wire
from bot.backends.openai_compatible.connection import OpenAIConnection
from bot.backends.openai_compatible.settings import OpenAISettings
from bot.backends.openai_compatible.token_estimates import PromptTokenEstimator
from bot.chat.prompt import Delta, Finish, Prompt, PromptDescription, ReasoningDelta
from bot.errors import BackendUnavailable
from bot.ports import Backend, Clock, DescribingBackend, TokenCountingBackend
from bot.templates.renderer import Renderer

_CHECK_SECONDS = 10.0
_NO_MODEL_LIST = frozenset({404, 405, 501})


class OpenAICompatibleBackend(Backend, TokenCountingBackend, DescribingBackend):
    """One provider, with its own connections, retry budget and circuit breaker."""

    def __init__(
        self,
        settings: OpenAISettings,
        name: str,
        *,
        max_retries: int = retries.MAX_RETRIES,
        clock: Clock | None = None,
        random_source: random.Random | None = None,
    ) -> None:
        self._settings = settings
        self._endpoint = Endpoint(name, settings.base_url or "")
        self._estimator = PromptTokenEstimator()
        self._connection = OpenAIConnection(settings)
        self._request_runner = ChatRequestRunner(
            settings,
            self._endpoint,
            self._connection,
            max_retries=max_retries,
            clock=clock,
            random_source=random_source,
        )

    @override
    async def generate(
        self, prompt: Prompt
    ) -> AsyncGenerator[Delta | ReasoningDelta | Finish, None]:
        model = self._resolve_model(prompt.model)
        body = to_wire(prompt, model, names=bool(self._settings.message_names))
        request = ChatRequest("/chat/completions", body, model, stop_strings_of(prompt))
        async with aclosing(self._request_runner.run(request)) as events:
            async for event in events:
                if isinstance(event, Finish):
                    self._estimator.learn(prompt, model, event.usage.prompt_tokens)
                yield event

    @override
    async def count_tokens(self, prompt: Prompt) -> int:
        return await self._estimator.count(prompt, self._resolve_model(prompt.model))

    @override
    async def max_prompt_tokens(self, prompt: Prompt) -> int | None:
        return None  # the service rejects a prompt that is too long, and says so

    @override
    async def describe(self, prompt: Prompt) -> PromptDescription:
        model = prompt.model if prompt.model != "default" else self._settings.model or "default"
        body = to_wire(prompt, model, names=bool(self._settings.message_names))
        return describe_request(model, body)

    @override
    async def check(self) -> str:
        try:
            async with asyncio.timeout(_CHECK_SECONDS):
                await self._connection.list_models()
        except HttpStatusError as error:
            # Not every service lists its models, but every one reports a wrong key.
            if error.status in _NO_MODEL_LIST:
                return f"answers at {self._endpoint.base_url}, but lists no models"
            failed = self._request_runner.translate(error, self._settings.model or "default")
            raise BackendUnavailable(str(failed), failed.notice) from failed
        except (ConnectionFailed, TimeoutError) as error:
            failed = errors.unreachable(self._endpoint, error_text(error))
            raise BackendUnavailable(str(failed)) from error
        return f"answers at {self._endpoint.base_url}"

    @override
    async def close(self) -> None:
        await self._connection.close()

    def _resolve_model(self, name: str) -> str:
        if name != "default":
            return name
        if self._settings.model is None:
            raise BackendUnavailable(
                f"{self._endpoint} has no default model; set {self._endpoint.setting('MODEL')}",
                "This preset has no model; the bot's operator has to choose one.",
            )
        return self._settings.model


def make(provider: str, settings: OpenAISettings, _data_dir: Path, _renderer: Renderer) -> Backend:
    """Make the backend for a provider of this kind."""
    return OpenAICompatibleBackend(settings, provider)

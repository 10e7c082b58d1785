"""Answer prompts through any service with OpenAI's chat completions API, remote or local.

Requests are made without the openai client: its typed messages and stream objects cost ten times as
much as the rest of an answer (150 µs for each message of the history, 130 µs for each chunk), and
its import costs more than all of Troupe.
"""

import hmac
import random
import secrets
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from functools import partial
from pathlib import Path

from typing_extensions import override

from bot.backends.chat_completions import retries
from bot.backends.chat_completions.description import describe_request
from bot.backends.chat_completions.errors import Endpoint
from bot.backends.chat_completions.key_rotation import KeyRotation
from bot.backends.chat_completions.quirks import Quirks
from bot.backends.chat_completions.request import ChatRequest, ChatRequestRunner, resolve_model
from bot.backends.chat_completions.stop_strings import stop_strings_of
from bot.backends.chat_completions.token_estimates import PromptTokenEstimator
from bot.backends.chat_completions.wire import ChatCompletionsParser, output_limit, to_wire
from bot.backends.openai_compatible.connection import OpenAIConnection
from bot.backends.openai_compatible.services import known_service, quirks_of
from bot.backends.openai_compatible.settings import OpenAISettings
from bot.backends.openai_compatible.transcription import TranscriptionService
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
    SessionAffineBackend,
    TextTokenCounter,
    TokenCountingBackend,
    ToolCallingBackend,
    TranscribingBackend,
)
from bot.runtime.clock import SystemClock
from bot.templates.renderer import Renderer

_SESSION_BYTES = 16
_DEFAULT_ANSWER_FRACTION = 4  # an answer without a limit gets a quarter of the context


class OpenAICompatibleBackend(
    Backend,
    TokenCountingBackend,
    DescribingBackend,
    ModelCheckingBackend,
    MonitoredBackend,
    SeeingBackend,
    ContinuingBackend,
    ToolCallingBackend,
    TranscribingBackend,
    SessionAffineBackend,
):
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
        self._session_key = secrets.token_bytes()
        clock = clock or SystemClock()
        self._connection = KeyRotation(partial(OpenAIConnection, settings), settings, clock)
        self._transcriptions = TranscriptionService(settings, self._endpoint, clock)
        self._request_runner = ChatRequestRunner(
            settings,
            self._endpoint,
            self._connection,
            ChatCompletionsParser,
            max_retries=max_retries,
            clock=clock,
            random_source=random_source,
        )

    @override
    async def generate(
        self, prompt: Prompt
    ) -> AsyncGenerator[Delta | ReasoningDelta | Finish, None]:
        model = self._resolve_model(prompt)
        body = self._to_wire(prompt, model)
        request = ChatRequest(
            "/chat/completions",
            body,
            model,
            stop_strings_of(prompt),
            has_fallback=prompt.has_fallback,
            header=self._session_header(prompt),
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
        context = self._settings.context_tokens
        if context is None:
            return None  # the service rejects a prompt that is too long, and says so
        return max(1, context - (output_limit(prompt) or context // _DEFAULT_ANSWER_FRACTION))

    @override
    async def describe(self, prompt: Prompt) -> PromptDescription:
        model = prompt.model if prompt.model != "default" else self._settings.model or "default"
        body = self._to_wire(prompt, model)
        return describe_request(model, body)

    @override
    def sees_images(self, model: str) -> bool:
        return self._settings.sees == "images"

    @property
    @override
    def can_transcribe(self) -> bool:
        return self._settings.transcription_model is not None

    @override
    async def transcribe(self, name: str, audio: bytes) -> str:
        return await self._transcriptions.transcribe(name, audio)

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
        names = [resolve_model(model, self._settings, self._endpoint) for model in models]
        service = known_service(self._endpoint.name, self._endpoint.base_url)
        return await self._request_runner.check(
            self._connection.list_models(),
            list(dict.fromkeys(names)),
            lists_all=service is not None and service.lists_all,
        )

    @override
    def calls_tools(self, model: str) -> bool:
        return True  # whoever names tools in a preset has chosen a model that calls them

    @override
    def can_continue(self, prompt: Prompt) -> bool:
        return self._quirks(self._resolve_model(prompt)).continuation is not None

    @override
    async def close(self) -> None:
        await self._connection.close()
        await self._transcriptions.close()

    @override
    def use_session_key(self, key: bytes) -> None:
        self._session_key = key

    def _session_header(self, prompt: Prompt) -> str:
        """Return a header that is the same for each turn of a conversation, and tells no id."""
        name = self._settings.session_header
        if name is None or not prompt.conversation:
            return ""
        hashed = hmac.digest(self._session_key, prompt.conversation.encode(), "sha256")
        return f"{name}: {hashed[:_SESSION_BYTES].hex()}"

    def _to_wire(self, prompt: Prompt, model: str) -> bytes:
        names = bool(self._settings.message_names)
        return to_wire(prompt, model, names=names, quirks=self._quirks(model))

    def _quirks(self, model: str) -> Quirks:
        return quirks_of(self._endpoint.name, self._endpoint.base_url, model)

    def _resolve_model(self, prompt: Prompt) -> str:
        return resolve_model(prompt.model, self._settings, self._endpoint)


def make(provider: str, settings: OpenAISettings, _data_dir: Path, _renderer: Renderer) -> Backend:
    """Make the backend for a provider of this kind."""
    return OpenAICompatibleBackend(settings, provider)

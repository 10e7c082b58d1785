"""Any service that speaks OpenAI's chat completions, far away or next door.

The openai client brings connections and authentication. Messages go around its typed transform and
the stream around its objects: those two cost ten times everything else in a turn (150 µs for each
message of the history, 130 µs for each chunk).
"""

import asyncio
import random
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path

from typing_extensions import override

from bot.backends.chat_completions import errors as faults
from bot.backends.chat_completions import retries as retrying
from bot.backends.chat_completions.errors import Endpoint
from bot.backends.chat_completions.request import Answering, HttpRefusal, Request, Unreached, reason
from bot.backends.chat_completions.stop_strings import stop_strings_of
from bot.backends.chat_completions.wire import to_wire
from bot.backends.openai_compatible.connection import OpenAIConnection
from bot.backends.openai_compatible.token_estimates import PromptCounter
from bot.chat.prompt import Delta, Finish, Prompt, ReasoningDelta
from bot.errors import BackendUnavailable
from bot.ports import Backend, Clock, TokenCountingBackend
from bot.settings import ProviderSettings
from bot.templates.renderer import Renderer

_CHECK_SECONDS = 10.0
_LISTS_NO_MODELS = frozenset({404, 405, 501})


class OpenAICompatible(Backend, TokenCountingBackend):
    """One provider, with its own connections, retry budget and circuit breaker."""

    def __init__(
        self,
        settings: ProviderSettings,
        name: str,
        *,
        max_retries: int = retrying.MAX_RETRIES,
        clock: Clock | None = None,
        dice: random.Random | None = None,
    ) -> None:
        self._settings = settings
        self._endpoint = Endpoint(name, settings.base_url or "")
        self._counter = PromptCounter()
        self._connection = OpenAIConnection(settings)
        self._answering = Answering(
            settings,
            self._endpoint,
            self._connection,
            max_retries=max_retries,
            clock=clock,
            dice=dice,
        )

    @override
    async def generate(
        self, prompt: Prompt
    ) -> AsyncGenerator[Delta | ReasoningDelta | Finish, None]:
        model = self._model(prompt.model)
        body = to_wire(prompt, model, names=bool(self._settings.message_names))
        request = Request("/chat/completions", body, model, stop_strings_of(prompt))
        async with aclosing(self._answering.answer(request)) as pieces:
            async for piece in pieces:
                if isinstance(piece, Finish):
                    self._counter.learn(prompt, model, piece.usage.prompt_tokens)
                yield piece

    @override
    async def count_tokens(self, prompt: Prompt) -> int:
        return await self._counter.count(prompt, self._model(prompt.model))

    @override
    async def max_prompt_tokens(self, prompt: Prompt) -> int | None:
        return None  # a service refuses what is too long, and says so

    @override
    async def check(self) -> str:
        try:
            async with asyncio.timeout(_CHECK_SECONDS):
                await self._connection.list_models()
        except HttpRefusal as refused:
            fault = self._answering.refusal(refused, self._settings.model or "default")
            # Not every service lists its models, but every one says when a key is wrong.
            if refused.status in _LISTS_NO_MODELS:
                return f"answers at {self._endpoint.base_url}, but lists no models"
            raise BackendUnavailable(str(fault), fault.notice) from fault
        except (Unreached, TimeoutError) as error:
            fault = faults.unreachable(self._endpoint, reason(error))
            raise BackendUnavailable(str(fault)) from error
        return f"answers at {self._endpoint.base_url}"

    @override
    async def close(self) -> None:
        await self._connection.close()

    def _model(self, asked: str) -> str:
        if asked != "default":
            return asked
        if self._settings.model is None:
            raise BackendUnavailable(
                f"{self._endpoint} has no default model; set {self._endpoint.setting('MODEL')}",
                "No model is chosen for this preset; an operator has to set one.",
            )
        return self._settings.model


def make(name: str, settings: ProviderSettings, _data_dir: Path, _renderer: Renderer) -> Backend:
    return OpenAICompatible(settings, name)

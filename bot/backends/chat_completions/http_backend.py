"""The base class of HTTP backends; each API adds its request format and response parser."""

import math
from abc import abstractmethod
from collections.abc import AsyncGenerator, Callable, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, Generic, TypeVar

from typing_extensions import override

from bot.backends.chat_completions.errors import ContextOverflow, Endpoint
from bot.backends.chat_completions.key_rotation import KeyRotation
from bot.backends.chat_completions.request_runner import (
    ChatRequest,
    ChatRequestRunner,
    resolve_default_model,
)
from bot.backends.chat_completions.settings import HttpProviderSettings
from bot.backends.chat_completions.streaming import ResponseContext, StreamParser
from bot.backends.chat_completions.wire import describe_request
from bot.chat.operation import ModelHealth
from bot.chat.prompt import GenerationEvent, Prompt, PromptDescription, TemplateChoice
from bot.ports import Backend, Clock, TextTokenCounter
from bot.prompting.text.tokens import EncodingCounter, find_encoding, get_counter_for_model

_INITIAL_TOKEN_RATIO = 1.25  # assumed for an unknown tokenizer; most yield fewer tokens
_TOKEN_RATIO_SAFETY_FACTOR = 1.05
_TOKEN_RATIO_DECAY = 0.98  # per answer
_MIN_TOKEN_RATIO, _MAX_TOKEN_RATIO = 0.5, 4.0  # in case a service reports wrong counts
_MAX_MESSAGES_TO_COUNT = 32  # counting a longer prompt again costs too much time
_MIN_TOKENS_TO_LEARN_FROM = 100  # in shorter prompts, text that the service adds distorts the ratio
_CONTEXT_TO_ANSWER_RATIO = 4  # a quarter of the context, for an answer without a limit
# The assumed context size, if unreported, as a share of a rejected prompt's tokens.
_SHARE_OF_REJECTED_PROMPT_THAT_FITS = 0.9
S = TypeVar("S", bound=HttpProviderSettings)


class PromptTokenEstimator:
    """Estimates token counts of prompts; learns each model's correction factor from real counts."""

    def __init__(self) -> None:
        self._correction_by_model: dict[str, float] = {}

    async def estimate_tokens(self, prompt: Prompt, model: str) -> int:
        counter, ratio = self._find_counter_and_ratio(model)
        return math.ceil(await counter.count_prompt(prompt) * ratio)

    async def text_counter(self, model: str) -> TextTokenCounter:
        """Return a token counter for texts; it ignores the model's correction factor."""
        counter, _ = self._find_counter_and_ratio(model)
        await counter.load()
        return counter

    def learn_from_count(self, prompt: Prompt, model: str, tokens: int) -> None:
        """Adjust the model's correction factor to a reported token count (0: unknown)."""
        counter, old_ratio = self._find_counter_and_ratio(model)
        if tokens <= 0 or len(prompt.messages) > _MAX_MESSAGES_TO_COUNT or not counter.is_loaded:
            return
        has_images = any(map(attrgetter("parts"), prompt.messages))
        if has_images or prompt.tools or prompt.tool_exchanges:  # not counted here
            return
        estimated_tokens = counter.prompt_tokens(prompt)
        if estimated_tokens < _MIN_TOKENS_TO_LEARN_FROM:
            return
        ratio = tokens / estimated_tokens
        new_ratio = max(old_ratio, ratio)
        if find_encoding(model) is None:
            new_ratio = max(old_ratio * _TOKEN_RATIO_DECAY, ratio * _TOKEN_RATIO_SAFETY_FACTOR)
        self._correction_by_model[model] = min(_MAX_TOKEN_RATIO, max(_MIN_TOKEN_RATIO, new_ratio))

    def learn_from_error(self, prompt: Prompt, model: str, overflow: ContextOverflow) -> int | None:
        """Adjust the model's correction factor to a rejected prompt; return the new estimate."""
        counter, ratio = self._find_counter_and_ratio(model)
        if not counter.is_loaded:
            return None
        counted_tokens = max(1, counter.prompt_tokens(prompt))
        estimate, context_tokens = math.ceil(counted_tokens * ratio), overflow.context_tokens
        prompt_tokens = overflow.prompt_tokens
        if prompt_tokens is None and context_tokens is not None and estimate <= context_tokens:
            prompt_tokens = context_tokens + 1
        if prompt_tokens is not None and prompt_tokens > estimate:
            self._correction_by_model[model] = min(
                _MAX_TOKEN_RATIO, prompt_tokens / counted_tokens * _TOKEN_RATIO_SAFETY_FACTOR
            )
        return max(estimate, prompt_tokens or 0)

    def _find_counter_and_ratio(self, model: str) -> tuple[EncodingCounter, float]:
        initial_ratio = _INITIAL_TOKEN_RATIO if find_encoding(model) is None else 1.0
        return get_counter_for_model(model), self._correction_by_model.get(model, initial_ratio)


class HttpChatBackend(Backend, Generic[S]):
    """A backend for one provider, with its own connections, retry budget, and circuit breakers."""

    def __init__(
        self,
        settings: S,
        provider: str,
        key_rotation: KeyRotation[Any],
        make_parser: Callable[[ResponseContext], StreamParser],
        clock: Clock,
    ) -> None:
        self._settings = settings
        self._endpoint = Endpoint(provider, settings.base_url or "")
        self._estimator = PromptTokenEstimator()
        self._learned_context_tokens: dict[str, int] = {}
        self._key_rotation = key_rotation
        self._request_runner = ChatRequestRunner(
            settings,
            self._endpoint,
            lambda *args: key_rotation.send(lambda connection: connection.post(*args)),
            make_parser,
            clock=clock,
        )

    @abstractmethod
    def _to_request(self, prompt: Prompt, model: str) -> ChatRequest:
        """Convert a prompt to a request in the API's format."""

    @override
    def generate(self, prompt: Prompt) -> AsyncGenerator[GenerationEvent, None]:
        model = self._model_to_send(prompt)
        request = self._to_request(prompt, model)
        report_prompt_tokens = partial(self._estimator.learn_from_count, prompt, model)
        report_context_overflow = partial(self._learn_context_limit, prompt, model)
        return self._request_runner.run(request, report_prompt_tokens, report_context_overflow)

    def _learn_context_limit(self, prompt: Prompt, model: str, overflow: ContextOverflow) -> None:
        estimated_tokens = self._estimator.learn_from_error(prompt, model, overflow)
        context_tokens = overflow.context_tokens
        if context_tokens is None and estimated_tokens is not None:
            context_tokens = int(estimated_tokens * _SHARE_OF_REJECTED_PROMPT_THAT_FITS)
        if context_tokens is not None:
            self._learned_context_tokens[model] = context_tokens

    @override
    async def count_tokens(self, prompt: Prompt) -> int:
        return await self._estimator.estimate_tokens(prompt, self._model_to_send(prompt))

    @override
    async def text_counter(self, prompt: Prompt) -> TextTokenCounter:
        return await self._estimator.text_counter(self._model_to_send(prompt))

    @override
    async def max_prompt_tokens(self, prompt: Prompt) -> int | None:
        model = prompt.model if prompt.model != "default" else self._settings.model or ""
        limits = (self._configured_context_tokens, self._learned_context_tokens.get(model))
        context_tokens = min((limit for limit in limits if limit is not None), default=None)
        if context_tokens is None:
            return None  # unknown until the service rejects a prompt as too long
        answer_tokens = prompt.output_limit or context_tokens // _CONTEXT_TO_ANSWER_RATIO
        return (
            context_tokens - answer_tokens
            if answer_tokens < context_tokens
            else context_tokens // 2
        )

    @property
    def _configured_context_tokens(self) -> int | None:
        return None

    @override
    async def describe(self, prompt: Prompt) -> PromptDescription:
        model = prompt.model if prompt.model != "default" else self._settings.model or "default"
        return describe_request(model, self._to_request(prompt, model).body)

    @override
    def model_health(self) -> Sequence[ModelHealth]:
        return self._request_runner.model_health()

    @override
    async def check(self) -> str:
        return await self._request_runner.check(self._key_rotation.list_models())

    @override
    async def list_models(self) -> Sequence[str]:
        return await self._request_runner.fetch_model_list(self._key_rotation.list_models()) or ()

    @override
    async def calls_tools(self, model: str, template: TemplateChoice) -> bool:
        return True  # assume that a preset with tools names a model that can call them

    @override
    async def close(self) -> None:
        await self._key_rotation.close()

    def _model_to_send(self, prompt: Prompt) -> str:
        return resolve_default_model(prompt.model, self._settings, self._endpoint)

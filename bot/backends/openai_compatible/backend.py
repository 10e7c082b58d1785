"""Answer prompts through any service that speaks OpenAI's chat completions API."""

import hmac
import secrets
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Annotated, Any

import msgspec
from typing_extensions import override

from bot.backends.chat_completions import errors
from bot.backends.chat_completions.errors import RequestFailed
from bot.backends.chat_completions.http_backend import HttpChatBackend
from bot.backends.chat_completions.key_rotation import KeyRotation
from bot.backends.chat_completions.quirks import Quirks
from bot.backends.chat_completions.request_runner import (
    ChatRequest,
    resolve_default_model,
    translate_failures,
)
from bot.backends.chat_completions.stop_strings import collect_stop_strings
from bot.backends.chat_completions.wire import ChatCompletionsParser, to_wire
from bot.backends.openai_compatible.connection import OpenAIConnection
from bot.backends.openai_compatible.services import find_known_service, find_quirks
from bot.backends.openai_compatible.settings import OpenAISettings
from bot.chat.prompt import Prompt
from bot.errors import BackendUnavailable
from bot.ports import Backend, Clock
from bot.runtime.clock import SystemClock
from bot.templates.renderer import Renderer

_SESSION_HASH_BYTES = 16
_MAX_CACHED_HASHES = 4096
_TRANSCRIPTION_TIMEOUT_SECONDS = 60.0
_MODERATION_TIMEOUT_SECONDS = 5.0


class _ModerationResult(msgspec.Struct):
    flagged: bool
    categories: dict[str, bool | None] = {}


_ModerationResults = Annotated[list[_ModerationResult], msgspec.Meta(min_length=1)]


class OpenAICompatibleBackend(HttpChatBackend[OpenAISettings]):
    """A provider that speaks OpenAI's chat completions API."""

    def __init__(self, settings: OpenAISettings, provider: str, clock: Clock | None = None) -> None:
        clock = clock or SystemClock()
        self._connections = KeyRotation(partial(OpenAIConnection, settings), settings, clock)
        super().__init__(settings, provider, self._connections, ChatCompletionsParser, clock)
        self._session_key = secrets.token_bytes()
        self._models_without_system_role: set[str] = set()

    @override
    def _to_request(self, prompt: Prompt, model: str) -> ChatRequest:
        sends_names = bool(self._settings.message_names)
        has_system_message = any(message.role == "system" for message in prompt.messages)
        can_drop_system_role = has_system_message and model not in self._models_without_system_role
        return ChatRequest(
            "/chat/completions",
            to_wire(prompt, model, sends_names=sends_names, quirks=self._find_model_quirks(model)),
            model,
            collect_stop_strings(prompt),
            has_fallback=prompt.has_fallback,
            headers=self._build_session_header(prompt),
            is_continuation=bool(prompt.begun),
            build_without_system_role=partial(self._rebuild_without_system_role, prompt, model)
            if can_drop_system_role
            else None,
        )

    def _rebuild_without_system_role(self, prompt: Prompt, model: str) -> ChatRequest:
        """Rebuild a rejected request without a system message; later requests will omit it, too."""
        self._models_without_system_role.add(model)
        return self._to_request(prompt, model)

    @property
    @override
    def _configured_context_tokens(self) -> int | None:
        return self._settings.context_tokens

    @override
    def sees_images(self, model: str) -> bool:
        return self._settings.sees == "images"

    @property
    @override
    def can_transcribe(self) -> bool:
        return self._settings.transcription_model is not None

    @override
    async def transcribe(self, name: str, audio: bytes) -> str:
        model, seconds = self._settings.transcription_model or "", _TRANSCRIPTION_TIMEOUT_SECONDS
        body = await self._request_json(
            model, seconds, lambda connection: connection.transcribe(model, name, audio, seconds)
        )
        if not isinstance(text := body.get("text"), str):
            raise BackendUnavailable(str(errors.bad_response_error(self._endpoint, "no text")))
        return text.strip()

    @property
    @override
    def can_moderate(self) -> bool:
        return self._settings.moderation_model is not None

    @override
    async def moderate(self, texts: Sequence[str]) -> Sequence[str]:
        model, seconds = self._settings.moderation_model or "", _MODERATION_TIMEOUT_SECONDS
        body = await self._request_json(
            model, seconds, lambda connection: connection.moderate(model, list(texts), seconds)
        )
        try:
            moderation_results = msgspec.convert(body.get("results"), _ModerationResults)
        except msgspec.ValidationError as error:
            failure = errors.bad_response_error(self._endpoint, str(error))
            raise BackendUnavailable(str(failure)) from None
        flagged_categories = [result.categories for result in moderation_results if result.flagged]
        names = {name for flags in flagged_categories for name, is_set in flags.items() if is_set}
        return sorted(names) or ["flagged"] * bool(flagged_categories)

    async def _request_json(
        self,
        model: str,
        timeout_seconds: float,
        send: Callable[[OpenAIConnection], Awaitable[bytes]],
    ) -> dict[str, Any]:
        """Send a request and return its JSON response; raise `BackendUnavailable` if it fails."""
        try:
            with translate_failures(self._endpoint, model):
                body = await self._connections.send(send)
            return msgspec.json.decode(body, type=dict[str, Any])
        except RequestFailed as error:
            raise BackendUnavailable(str(error)) from None
        except TimeoutError:
            message = f"{self._endpoint} did not answer within {timeout_seconds:.0f} s"
            raise BackendUnavailable(message) from None
        except msgspec.DecodeError as error:
            failure = errors.bad_response_error(self._endpoint, str(error))
            raise BackendUnavailable(str(failure)) from None

    @override
    async def check_models(self, models: Sequence[str]) -> str:
        names = [resolve_default_model(model, self._settings, self._endpoint) for model in models]
        service = find_known_service(self._endpoint.name, self._endpoint.base_url)
        return await self._request_runner.check(
            self._key_rotation.list_models(),
            list(dict.fromkeys(names)),
            is_list_complete=service is None or service.lists_all_models,
        )

    @override
    def can_continue(self, prompt: Prompt) -> bool:
        return self._find_model_quirks(self._model_to_send(prompt)).continuation_fields is not None

    @override
    def use_session_key(self, key: bytes) -> None:
        self._session_key = key

    def _build_session_header(self, prompt: Prompt) -> dict[str, str]:
        """Return the header that marks a conversation's requests with a keyed hash of its id."""
        header_name = self._settings.session_header
        if header_name is None or not prompt.conversation:
            return {}
        return {header_name: _hash_conversation_id(self._session_key, prompt.conversation)}

    def _find_model_quirks(self, model: str) -> Quirks:
        quirks = find_quirks(self._endpoint.name, self._endpoint.base_url, model)
        if model not in self._models_without_system_role:
            return quirks
        capabilities = replace(quirks.capabilities, accepts_system=False, accepts_late_system=False)
        return replace(quirks, capabilities=capabilities)


@lru_cache(_MAX_CACHED_HASHES)
def _hash_conversation_id(key: bytes, conversation_id: str) -> str:
    return hmac.digest(key, conversation_id.encode(), "sha256")[:_SESSION_HASH_BYTES].hex()


def make(provider: str, settings: OpenAISettings, _data_dir: Path, _renderer: Renderer) -> Backend:
    return OpenAICompatibleBackend(settings, provider)

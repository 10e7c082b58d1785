"""Embed texts with any service that has OpenAI's embeddings API."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import msgspec
from typing_extensions import override

from bot.backends.chat_completions import errors
from bot.backends.chat_completions.errors import Endpoint, RequestFailed
from bot.backends.chat_completions.key_rotation import KeyRotation
from bot.backends.chat_completions.request_runner import translate_failures
from bot.backends.openai_compatible.connection import OpenAIConnection
from bot.backends.openai_compatible.settings import OpenAISettings
from bot.chat.story import PackedVector
from bot.embedders.vectors import EmbeddingsResponse, batched, truncate_text
from bot.errors import EmbeddingError
from bot.ports import Clock, Embedder
from bot.prompting.embedding import pack_vectors
from bot.prompting.text.tokens import count_tokens
from bot.runtime.clock import SystemClock
from bot.settings import EmbeddingSettings

_TIMEOUT_SECONDS = 30.0


class OpenAIEmbedder(Embedder):
    """Embeds texts with a service, after truncating them to a limit in OpenAI's tokens."""

    def __init__(self, settings: EmbeddingSettings, clock: Clock) -> None:
        self._model = settings.model or ""
        service = OpenAISettings(
            base_url=settings.base_url, api_key=settings.api_key, api_key_file=settings.api_key_file
        )
        self._endpoint = EmbeddingEndpoint("embedding", service.base_url or "")
        self._connection = KeyRotation(partial(OpenAIConnection, service), service, clock)

    @property
    @override
    def model_id(self) -> str:
        return f"openai:{self._model}"

    @override
    async def embed_documents(self, texts: Sequence[str]) -> Sequence[PackedVector]:
        vectors: list[PackedVector] = []
        inputs = [truncate_text(text, lambda prefix: count_tokens([prefix])[0]) for text in texts]
        for batch in batched(inputs):
            vectors += pack_vectors((await self._embed(batch)).ordered_vectors, len(batch))
        return vectors

    @property
    @override
    def is_metered(self) -> bool:
        return True

    @override
    async def check(self) -> str:
        vector = await self.embed_query("hello")
        return f"{self._model} returns {len(vector) // 4} numbers per text"

    @override
    async def close(self) -> None:
        await self._connection.close()

    async def _embed(self, batch: list[str]) -> EmbeddingsResponse:
        try:
            with translate_failures(self._endpoint, self._model):
                body = await self._connection.send(
                    lambda connection: connection.embed(self._model, batch, _TIMEOUT_SECONDS)
                )
            return msgspec.json.decode(body, type=EmbeddingsResponse)
        except RequestFailed as error:
            raise EmbeddingError(str(error)) from None
        except TimeoutError:
            raise EmbeddingError(
                f"{self._endpoint} did not answer within {_TIMEOUT_SECONDS:.0f} s"
            ) from None
        except msgspec.DecodeError:
            problem = errors.bad_response_error(self._endpoint, "no vectors")
            raise EmbeddingError(str(problem)) from None


class EmbeddingEndpoint(Endpoint):
    @override
    def setting_name(self, field: str) -> str:
        return f"TROUPE_EMBEDDING__{field}"

    @override
    def __str__(self) -> str:
        return f"the embedding service at {self.base_url}"


def make(settings: EmbeddingSettings, _data_dir: Path) -> Embedder:
    return OpenAIEmbedder(settings, SystemClock())

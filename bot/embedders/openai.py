"""Embed with any service that has OpenAI's embeddings API."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import msgspec
from typing_extensions import override

from bot.backends.chat_completions import errors
from bot.backends.chat_completions.errors import Endpoint, RequestFailed
from bot.backends.chat_completions.key_rotation import KeyRotation
from bot.backends.chat_completions.request import translated_failures
from bot.backends.chat_completions.stream_parser import token_count
from bot.backends.openai_compatible.connection import OpenAIConnection
from bot.backends.openai_compatible.settings import OpenAISettings
from bot.chat.story import PackedVector
from bot.embedders.vectors import truncate_text
from bot.errors import EmbeddingError
from bot.ports import Clock, Embedder, MeteredEmbedder
from bot.prompting.character.embedding import pack_vectors
from bot.prompting.text.token_counter import count_tokens
from bot.runtime.clock import SystemClock
from bot.settings import EmbeddingSettings

_BATCH_SIZE = 10  # DashScope takes no more
_TIMEOUT_SECONDS = 30.0


class EmbeddingsService:
    """A client of one embeddings service, with its own connections."""

    def __init__(
        self,
        endpoint: Endpoint,
        settings: OpenAISettings,
        clock: Clock,
        unix_socket: Path | None = None,
        seconds: float = _TIMEOUT_SECONDS,
    ) -> None:
        """Connect when the first texts are embedded; a request may take so many seconds."""
        self._endpoint = endpoint
        self._model = settings.model or ""
        self._seconds = seconds
        connect = partial(OpenAIConnection, settings, unix_socket=unix_socket)
        self._connection = KeyRotation(connect, settings, clock)
        self.tokens = 0
        """What was embedded since it was set to 0."""

    async def embed(self, inputs: list[str] | list[list[int]]) -> list[PackedVector]:
        """Embed texts, or texts as token ids; raises `EmbeddingError`."""
        vectors: list[PackedVector] = []
        tokens = 0
        try:
            for start in range(0, len(inputs), _BATCH_SIZE):
                batch = inputs[start : start + _BATCH_SIZE]
                rows, counted = await self._embed_batch(batch)
                tokens += counted
                vectors += pack_vectors(rows, len(batch))
        finally:
            self.tokens += tokens  # at the end, so that no other call takes them as its own
        return vectors

    async def close(self) -> None:
        await self._connection.close()

    async def _embed_batch(
        self, inputs: list[str] | list[list[int]]
    ) -> tuple[list[list[float]], int]:
        """Return the rows of numbers, and the tokens that they took."""
        try:
            with translated_failures(self._endpoint, self._model):
                body = await self._connection.send(
                    lambda one: one.embed(self._model, inputs, self._seconds)
                )
        except RequestFailed as error:
            raise EmbeddingError(str(error)) from None
        except TimeoutError:
            raise EmbeddingError(f"{self._endpoint} took over {self._seconds:.0f} s") from None
        try:
            response = msgspec.json.decode(body, type=_EmbeddingsResponse)
        except msgspec.DecodeError:
            raise EmbeddingError(str(errors.malformed(self._endpoint, "no vectors"))) from None
        reported = token_count(response.usage.total_tokens) if response.usage else 0
        rows = sorted(response.data, key=lambda row: row.index)
        return [row.embedding for row in rows], reported or _estimate(inputs)


class OpenAIEmbedder(Embedder, MeteredEmbedder):
    """Embed with a remote or local service, with one request for a query and a short timeout.

    The model's own tokenizer is unknown, so that texts are truncated by OpenAI's.
    """

    def __init__(self, settings: EmbeddingSettings, clock: Clock) -> None:
        self._model = settings.model or ""
        service = OpenAISettings(
            base_url=settings.base_url,
            api_key=settings.api_key,
            api_key_file=settings.api_key_file,
            model=settings.model,
        )
        endpoint = EmbeddingEndpoint("embedding", service.base_url or "")
        self._service = EmbeddingsService(endpoint, service, clock)

    @property
    @override
    def model_id(self) -> str:
        return f"openai:{self._model}"

    @override
    async def embed_documents(self, texts: Sequence[str]) -> Sequence[PackedVector]:
        return await self._service.embed([truncate_text(text, _count) for text in texts])

    @override
    async def embed_query(self, text: str) -> PackedVector:
        return (await self.embed_documents([text]))[0]

    @override
    def take_tokens(self) -> int:
        tokens, self._service.tokens = self._service.tokens, 0
        return tokens

    @override
    async def check(self) -> str:
        vector = await self.embed_query("hello")
        return f"{self._model} answers with {len(vector) // 4} numbers"

    @override
    async def close(self) -> None:
        await self._service.close()


class EmbeddingEndpoint(Endpoint):
    """The service of the embedding settings, in words for the operator."""

    @override
    def setting(self, part: str) -> str:
        return f"TROUPE_EMBEDDING__{part}"

    @override
    def __str__(self) -> str:
        return f"the embeddings at {self.base_url}"


class _EmbeddingItem(msgspec.Struct):
    embedding: list[float]
    index: int = 0


class _EmbeddingUsage(msgspec.Struct):
    total_tokens: object = None


class _EmbeddingsResponse(msgspec.Struct):
    data: list[_EmbeddingItem]
    usage: _EmbeddingUsage | None = None


def make(settings: EmbeddingSettings, _data_dir: Path) -> Embedder:
    return OpenAIEmbedder(settings, SystemClock())


def _estimate(inputs: list[str] | list[list[int]]) -> int:
    return sum(_count(one) if isinstance(one, str) else len(one) for one in inputs)


def _count(text: str) -> int:
    return count_tokens([text])[0]

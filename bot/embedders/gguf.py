"""Vectors from a GGUF file, made by llama.cpp in a process of its own, started when first asked."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx2
import msgspec
from pydantic import SecretStr
from typing_extensions import override

from bot.backends.llama_cpp.hardware import check_cpu
from bot.backends.model_files.gguf import read_pooling
from bot.backends.openai_compatible.settings import OpenAISettings
from bot.chat.story import PackedVector
from bot.embedders.openai import EmbeddingEndpoint, EmbeddingsService
from bot.embedders.vectors import MOST_TOKENS, fingerprint
from bot.errors import EmbeddingError, SettingsError
from bot.ports import Embedder
from bot.runtime.subprocesses import ChildFailed, SupervisedProcess
from bot.runtime.unix_server import unix_server
from bot.settings import EmbeddingSettings

_RESTART_SECONDS = 30.0
_TOKENIZE_SECONDS = 30.0
_MEAN = 1  # the usual way, and right where the file says nothing, or that there is none


class GgufEmbedder(Embedder):
    """A model made for embeddings finds well; one that was made for chats hardly does."""

    def __init__(self, model: Path, data_dir: Path) -> None:
        """Raises `SettingsError` when the file cannot be read as GGUF."""
        self._pooling = read_pooling(model) or _MEAN
        self._model = model
        self._data_dir = data_dir
        self._model_id = f"gguf:{fingerprint(model)}:{self._pooling}"
        self._engine: _Engine | None = None
        self._open = AsyncExitStack()
        self._one_start_at_a_time = asyncio.Lock()

    @property
    @override
    def model_id(self) -> str:
        return self._model_id

    @override
    async def embed_documents(self, texts: Sequence[str]) -> Sequence[PackedVector]:
        engine = await self._started()
        return await engine.service.vectors([await engine.tokens(text) for text in texts])

    @override
    async def embed_query(self, text: str) -> PackedVector:
        return (await self.embed_documents([text]))[0]

    @override
    async def check(self) -> str:
        await self.embed_query("hello")
        return f"{self._model.stem} on this machine"

    @override
    async def close(self) -> None:
        self._engine = None
        await self._open.aclose()

    async def _started(self) -> "_Engine":
        try:
            async with self._one_start_at_a_time:
                if self._engine is None:
                    check_cpu("TROUPE_EMBEDDING__")
                    opening = _running(self._model, self._pooling, self._data_dir)
                    self._engine = await self._open.enter_async_context(opening)
            await self._engine.child.wait_until_ready(_RESTART_SECONDS)
        except (SettingsError, ChildFailed) as error:
            raise EmbeddingError(str(error)) from error
        return self._engine


@dataclass(frozen=True, slots=True)
class _Engine:
    child: SupervisedProcess
    client: httpx2.AsyncClient
    service: EmbeddingsService

    async def tokens(self, text: str) -> list[int]:
        """The ids of a text that is short enough, with what the model wants around it."""
        body = msgspec.json.encode(
            {"content": text.encode(errors="replace").decode() or " ", "add_special": True}
        )
        try:
            async with asyncio.timeout(_TOKENIZE_SECONDS):
                answer = await self.client.post("/tokenize", content=body)
                ids = msgspec.json.decode(answer.content, type=_Ids).tokens
        except (TimeoutError, httpx2.TransportError, msgspec.DecodeError) as error:
            raise EmbeddingError(f"{self.child.name} does not tokenize: {error}") from error
        return ids if len(ids) <= MOST_TOKENS else [*ids[: MOST_TOKENS - 1], ids[-1]]


class _Ids(msgspec.Struct):
    tokens: list[int]


@asynccontextmanager
async def _running(model: Path, pooling: int, data_dir: Path) -> AsyncIterator[_Engine]:
    """Keep an engine up; raises `ChildFailed` when it does not start."""
    options = {"model": model, "alias": model.stem, "pooling": pooling, "tokens": MOST_TOKENS}
    log_file = data_dir / "embedding-engine.log"
    async with unix_server(
        f"the embedding engine of {model.stem}", "bot.embedders.gguf_child", options, log_file
    ) as server:
        settings = OpenAISettings(
            base_url="http://engine/v1", api_key=SecretStr(server.key), model=model.stem
        )
        service = EmbeddingsService(
            EmbeddingEndpoint("embedding", server.child.name),
            settings,
            transport=httpx2.AsyncHTTPTransport(uds=str(server.socket)),
        )
        try:
            yield _Engine(server.child, server.client, service)
        finally:
            await service.close()


def make(settings: EmbeddingSettings, data_dir: Path) -> Embedder:
    if settings.model_path is None:
        raise SettingsError("TROUPE_EMBEDDING__MODEL_PATH is not set")
    return GgufEmbedder(settings.model_path.expanduser(), data_dir)

"""Embed texts with a GGUF model; llama.cpp runs it in a child process started on first use."""

import asyncio
import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import TypeVar

import msgspec
from typing_extensions import override

from bot.backends.llama_cpp.hardware import require_cpu_flags
from bot.backends.model_files.gguf import read_pooling_type
from bot.chat.story import PackedVector
from bot.embedders.vectors import MAX_TEXT_TOKENS, EmbeddingsResponse, batched, compute_fingerprint
from bot.errors import EmbeddingError, SettingsError
from bot.extras import install_command
from bot.ports import Embedder
from bot.prompting.embedding import pack_vectors
from bot.runtime.http_client import ConnectionFailed
from bot.runtime.subprocesses import ChildProcessFailed
from bot.runtime.unix_server import UnixServer, run_unix_server
from bot.settings import EmbeddingSettings

_RESTART_TIMEOUT_SECONDS = 30.0
_REQUEST_TIMEOUT_SECONDS = 180.0  # ten long texts take half a minute on busy cores
_MAX_RESPONSE_BYTES = 64 * 2**20
_MEAN_POOLING_TYPE = 1  # llama.cpp's number; the default if the file has no pooling type

R = TypeVar("R")


class GgufEmbedder(Embedder):
    """Embeds texts with a GGUF model; chat models work, too, but rank texts poorly."""

    def __init__(self, model: Path, data_dir: Path) -> None:
        """Check the model; raise `SettingsError` if it or llama.cpp cannot be used."""
        if find_spec("xllamacpp") is None:
            raise SettingsError(f"TROUPE_EMBEDDING__KIND=gguf needs {install_command('xllamacpp')}")
        self._pooling_type = read_pooling_type(model) or _MEAN_POOLING_TYPE
        self._model = model
        self._data_dir = data_dir
        self._model_id = f"gguf:{compute_fingerprint(model)}:{self._pooling_type}"
        self._server: UnixServer | None = None
        self._exit_stack = AsyncExitStack()
        self._start_lock = asyncio.Lock()

    @property
    @override
    def model_id(self) -> str:
        return self._model_id

    @override
    async def embed_documents(self, texts: Sequence[str]) -> Sequence[PackedVector]:
        server = await self._start_server_once()
        inputs = [await self._tokenize(server, text) for text in texts]
        vectors: list[PackedVector] = []
        for batch in batched(inputs):
            body = {"input": batch, "encoding_format": "float"}
            response = await self._post(server, "/v1/embeddings", body, EmbeddingsResponse)
            vectors += pack_vectors(response.ordered_vectors, len(batch))
        return vectors

    @override
    async def check(self) -> str:
        await self.embed_query("hello")
        return f"{self._model.stem} on this machine"

    @override
    async def close(self) -> None:
        self._server = None
        await self._exit_stack.aclose()

    async def _start_server_once(self) -> UnixServer:
        try:
            async with self._start_lock:
                if self._server is None:
                    require_cpu_flags("TROUPE_EMBEDDING__")
                    self._server = await self._exit_stack.enter_async_context(self._run_server())
            process, _ = self._server
            await process.wait_until_ready(_RESTART_TIMEOUT_SECONDS)
        except (SettingsError, ChildProcessFailed) as error:
            raise EmbeddingError(str(error)) from error
        return self._server

    def _run_server(self) -> AbstractAsyncContextManager[UnixServer]:
        options = {
            "model": self._model,
            "pooling": self._pooling_type,
            "context_tokens": MAX_TEXT_TOKENS,
            "threads": max(1, (os.cpu_count() or 1) // 2),  # leaves cores for a chat model
        }
        return run_unix_server(
            f"the embedding engine of {self._model.stem}",
            "bot.backends.llama_cpp.xllamacpp_child",
            options,
            self._data_dir / "embedding-engine.log",
        )

    async def _tokenize(self, server: UnixServer, text: str) -> list[int]:
        body = {"content": text.encode(errors="replace").decode() or " ", "add_special": True}
        ids = (await self._post(server, "/tokenize", body, dict[str, list[int]]))["tokens"]
        return ids if len(ids) <= MAX_TEXT_TOKENS else [*ids[: MAX_TEXT_TOKENS - 1], ids[-1]]

    async def _post(
        self, server: UnixServer, path: str, body: Mapping[str, object], response_type: type[R]
    ) -> R:
        process, client = server
        data = msgspec.json.encode(body)
        deadline = asyncio.get_running_loop().time() + _REQUEST_TIMEOUT_SECONDS
        try:
            async with await client.request("POST", path, data, deadline) as response:
                content = await response.read_all(deadline, _MAX_RESPONSE_BYTES)
            return msgspec.json.decode(content, type=response_type)
        except (TimeoutError, ConnectionFailed, msgspec.DecodeError) as error:
            reason = str(error) or type(error).__name__
            raise EmbeddingError(f"{process.name} did not answer {path} ({reason})") from error


def make(settings: EmbeddingSettings, data_dir: Path) -> Embedder:
    if settings.model_path is None:
        raise SettingsError("TROUPE_EMBEDDING__MODEL_PATH is not set; set it to a GGUF file")
    return GgufEmbedder(settings.model_path.expanduser(), data_dir)

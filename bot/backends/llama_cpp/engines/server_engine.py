"""An engine in a child process that answers as llama.cpp's own server does, over a unix socket.

Both engines do, so only what is started differs.
"""

import asyncio
import math
import os
import signal
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress

import httpx2
import msgspec
from typing_extensions import override

from bot.backends.chat_completions.errors import Endpoint
from bot.backends.chat_completions.reasoning import NO_FORMAT
from bot.backends.chat_completions.request import ChatRequest, ChatRequestRunner
from bot.backends.chat_completions.retries import CircuitBreaker
from bot.backends.chat_completions.wire import ChatCompletionsParser
from bot.backends.llama_cpp.engines.engine import (
    Engine,
    EngineFailed,
    EngineRefused,
    Question,
    Start,
)
from bot.backends.llama_cpp.engines.server_connection import ServerConnection
from bot.backends.llama_cpp.engines.server_requests import to_wire
from bot.backends.llama_cpp.settings import LlamaCppSettings
from bot.chat.prompt import Delta, Finish, ReasoningDelta
from bot.runtime.subprocesses import ChildFailed, SupervisedProcess
from bot.runtime.unix_server import unix_server

# Reading a full context takes one core half a minute; a service far away has no such excuse.
_FIRST_TOKEN_SECONDS = 120.0
_RESTART_SECONDS = 30.0
_PROBE_SECONDS = 15.0
_NOTICES_DEATH_SECONDS = 0.2
_BOUNDARY = -1  # an id that no vocabulary has, passed through between texts


class ServedEngine(Engine):
    """One model in its server; `served` makes it."""

    def __init__(
        self,
        model: str,
        settings: LlamaCppSettings,
        child: SupervisedProcess,
        request_runner: ChatRequestRunner,
        server: httpx2.AsyncClient,
        version: str,
        *,
        sees: bool,
    ) -> None:
        self._model = model
        self._settings = settings
        self._child = child
        self._request_runner = request_runner
        self._server = server
        self._version = version
        self._sees = sees
        self._context_tokens: int | None = None  # as the server tells it, once asked

    @property
    @override
    def places(self) -> int:
        return self._settings.parallel

    @property
    @override
    def version(self) -> str:
        return self._version

    @property
    @override
    def deaths(self) -> int:
        return self._child.restarts

    @override
    async def context_tokens(self) -> int:
        if self._context_tokens is None:
            slots = msgspec.json.decode(await self._ask("GET", "/slots"), type=list[_Slot])
            self._context_tokens = slots[0].n_ctx
        return self._context_tokens

    @override
    async def generate(
        self, question: Question
    ) -> AsyncGenerator[Delta | ReasoningDelta | Finish, None]:
        mark = await self._media_mark() if question.images else ""
        # With a projector the server takes nothing but text at OpenAI's path.
        path = "/completions" if self._sees else "/v1/completions"
        body = to_wire(question, self._model, mark)
        request = ChatRequest(path, body, self._model, question.stop, NO_FORMAT)
        async with aclosing(self._request_runner.run(request)) as pieces:
            async for piece in pieces:
                yield piece

    async def _media_mark(self) -> str:
        """What stands for an image in a text; every start of the server invents another."""
        return msgspec.json.decode(await self._ask("GET", "/props"), type=_Props).media_marker

    @override
    async def tokenize(
        self, texts: Sequence[str], *, special: bool, begun: bool = False
    ) -> list[list[int]]:
        if not texts:
            return []
        content: list[str | int] = []
        for text in texts:
            content += [text, _BOUNDARY]
        body = {"content": content, "parse_special": special, "add_special": begun}
        parts: list[list[int]] = [[]]
        for token in msgspec.json.decode(await self._post("/tokenize", body), type=_Ids).tokens:
            if token == _BOUNDARY:
                parts.append([])
            else:
                parts[-1].append(token)
        return parts[:-1]

    @override
    async def text_of(self, token: int) -> str:
        answer = await self._post("/detokenize", {"tokens": [token]})
        return msgspec.json.decode(answer, type=_Text).content

    @override
    async def save(self, place: int, file: str) -> int:
        answer = await self._post(f"/slots/{place}?action=save", {"filename": file})
        return msgspec.json.decode(answer, type=_Saved).n_saved

    @override
    async def restore(self, place: int, file: str) -> int:
        answer = await self._post(f"/slots/{place}?action=restore", {"filename": file})
        return msgspec.json.decode(answer, type=_Restored).n_restored

    @override
    async def erase(self, place: int) -> None:
        await self._post(f"/slots/{place}?action=erase", {})

    @override
    async def wait_until_ready(self) -> None:
        try:
            await self._child.wait_until_ready(_RESTART_SECONDS)
        except ChildFailed as error:
            raise EngineFailed(str(error)) from error

    @override
    async def died(self, deaths: int) -> bool:
        await asyncio.sleep(_NOTICES_DEATH_SECONDS)
        if not self._child.is_ready or self._child.restarts != deaths:
            return True
        if await self._works():
            return False
        await self._kill()
        return True

    async def _works(self) -> bool:
        # An image is read in one piece, a text in batches with time between them.
        patience = self._settings.first_token_seconds if self._sees else _PROBE_SECONDS
        try:
            async with asyncio.timeout(patience):
                await self._server.get("/slots")  # answered by the thread that does the work
        except (TimeoutError, httpx2.TransportError):
            return False
        return True

    async def _kill(self) -> None:
        if self._child.pid is not None:
            with suppress(ProcessLookupError):
                os.kill(self._child.pid, signal.SIGKILL)
            await asyncio.sleep(_NOTICES_DEATH_SECONDS)

    async def _post(self, path: str, body: Mapping[str, object]) -> bytes:
        return await self._ask("POST", path, msgspec.json.encode(body))

    async def _ask(self, method: str, path: str, body: bytes | None = None) -> bytes:
        try:
            async with asyncio.timeout(self._settings.first_token_seconds):
                answer = await self._server.request(method, path, content=body)
        except (TimeoutError, httpx2.TransportError) as error:
            raise EngineFailed(f"{self._model}: {path}: {type(error).__name__}") from error
        if not answer.is_success:
            raise EngineRefused(f"{self._model}: {path}: status {answer.status_code}")
        return answer.content


@asynccontextmanager
async def served(start: Start, module: str, version: str) -> AsyncIterator[ServedEngine]:
    """Keep a child up that answers as llama.cpp's server does; raises `ChildFailed`."""
    model, settings = start.model.stem, _settings(start)
    log_file = start.data_dir / "llama-engine.log"
    async with unix_server(f"the engine of {model}", module, _options(start), log_file) as server:
        request_runner = ChatRequestRunner(
            settings,
            Endpoint(start.provider, str(server.client.base_url)),
            ServerConnection(server.client),
            ChatCompletionsParser,
            max_retries=0,
            breaker=CircuitBreaker(share=math.inf),  # one that died is back within a second
        )
        sees = start.projector is not None
        yield ServedEngine(
            model, settings, server.child, request_runner, server.client, version, sees=sees
        )


def _settings(start: Start) -> LlamaCppSettings:
    if "first_token_seconds" in start.settings.model_fields_set:
        return start.settings
    return start.settings.model_copy(update={"first_token_seconds": _FIRST_TOKEN_SECONDS})


def _options(start: Start) -> dict[str, object]:
    options: dict[str, object] = {
        "model": start.model,
        "states": start.states,
        "context-tokens": start.settings.context_tokens,
        "parallel": start.settings.parallel,
        "gpu-layers": start.settings.gpu_layers,
    }
    if start.settings.threads is not None:
        options["threads"] = start.settings.threads
    if start.projector is not None:
        options["projector"] = start.projector
    return options


class _Ids(msgspec.Struct):
    tokens: list[int]


class _Slot(msgspec.Struct):
    n_ctx: int


class _Props(msgspec.Struct):
    media_marker: str


class _Text(msgspec.Struct):
    content: str


class _Saved(msgspec.Struct):
    n_saved: int


class _Restored(msgspec.Struct):
    n_restored: int

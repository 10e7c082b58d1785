"""Run a model in a child process that serves llama.cpp's HTTP API."""

import asyncio
import math
import os
import signal
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from functools import partial
from http import HTTPStatus
from importlib.metadata import version

import msgspec
from typing_extensions import override

from bot.backends.chat_completions.errors import Endpoint
from bot.backends.chat_completions.reasoning import NO_FORMAT
from bot.backends.chat_completions.request_runner import (
    ChatRequest,
    ChatRequestRunner,
    HttpConnection,
    raise_for_status,
)
from bot.backends.chat_completions.retries import CircuitBreaker
from bot.backends.chat_completions.wire import ChatCompletionsParser
from bot.backends.llama_cpp.engine import (
    IMAGE_PLACEHOLDER,
    Engine,
    EngineConfig,
    EngineFailed,
    EngineRefused,
    GenerationRequest,
    engine_settings,
    require_engine,
    setting_prefix,
)
from bot.backends.llama_cpp.hardware import check_cpu
from bot.backends.llama_cpp.settings import LlamaCppSettings
from bot.chat.prompt import GenerationEvent
from bot.errors import SettingsError
from bot.runtime.http_client import ConnectionFailed, HttpClient, HttpResponse
from bot.runtime.subprocesses import ChildFailed, SupervisedProcess
from bot.runtime.tasks import cancel_and_wait
from bot.runtime.unix_server import ENGINE_URL, unix_server
from bot.templates.control_tokens import break_control_tokens

_MIN_SHIFT_TOKENS = 32  # in one run


class ServerConnection(HttpConnection):
    """Requests to a server on this machine."""

    def __init__(self, client: HttpClient) -> None:
        self._client = client

    @override
    async def post(
        self,
        path: str,
        body: Mapping[str, object],
        deadline: float,
        headers: Mapping[str, str] | None = None,
    ) -> HttpResponse:
        data = msgspec.json.encode(body)
        response = await self._client.request("POST", path, data, deadline, headers=headers)
        await raise_for_status(response, deadline)
        return response


def to_wire(request: GenerationRequest, model: str, media_marker: str = "") -> dict[str, object]:
    """Make the body for `/completions`: the prompt as token ids.

    A prompt with images is sent as text, in which the server's `media_marker` stands for each.
    """
    body: dict[str, object] = {
        "stream_options": {"include_usage": True},
        **request.sampling,
        "stop": list(request.stop),
        # The server renders a control token as text only on request, and finds no stop without it.
        "preserved_tokens": list(dict.fromkeys([*request.stop, *request.preserved_tokens])),
        "model": model,
        "prompt": _multimodal_prompt(request, media_marker)
        if request.images
        else list(request.prompt_ids),
        "cache_prompt": True,
        "stream": True,
    }
    if request.max_output_tokens is not None:
        body["max_tokens"] = request.max_output_tokens
    if request.slot is not None:
        body["id_slot"] = request.slot
        # Where the oldest turns were dropped, the tokens after them are shifted instead of decoded
        # again. Their keys and values still depend on the dropped turns, so that nobody but their
        # own conversation may use them.
        body["n_cache_reuse"] = _MIN_SHIFT_TOKENS if request.can_shift else 0
    return body


def _multimodal_prompt(request: GenerationRequest, media_marker: str) -> dict[str, object]:
    text = break_control_tokens(request.text, [media_marker]).replace(
        IMAGE_PLACEHOLDER, media_marker
    )
    return {"prompt_string": text, "multimodal_data": list(request.images)}


class TokenizeResponse(msgspec.Struct):
    """Of `/tokenize`."""

    tokens: list[int]


class DetokenizeResponse(msgspec.Struct):
    """Of `/detokenize`."""

    content: str


class SlotInfo(msgspec.Struct):
    """An item of `/slots`."""

    n_ctx: int


class ServerProps(msgspec.Struct):
    """Of `/props`."""

    media_marker: str


class SaveSlotResponse(msgspec.Struct):
    """Of `/slots/N?action=save`."""

    n_saved: int


class RestoreSlotResponse(msgspec.Struct):
    """Of `/slots/N?action=restore`."""

    n_restored: int


# The prefill of a full context takes one core half a minute; a remote service is never that slow.
_FIRST_TOKEN_SECONDS = 120.0
_RESTART_SECONDS = 30.0
_PROBE_SECONDS = 15.0
_IDLE_CPU_SECONDS = 0.1  # of an engine that is stuck, in so long
_DETECT_EXIT_SECONDS = 0.2
_MAX_RESPONSE_BYTES = 64 * 2**20
_BOUNDARY = -1  # an id that no vocabulary has; the server passes it through between texts


class ServerEngine(Engine):
    """The engine behind the server of one model; `running_engine` makes it."""

    def __init__(
        self,
        model: str,
        settings: LlamaCppSettings,
        child: SupervisedProcess,
        request_runner: ChatRequestRunner,
        client: HttpClient,
        version: str,
        *,
        has_vision: bool,
    ) -> None:
        self._model = model
        self._settings = settings
        self._child = child
        self._request_runner = request_runner
        self._client = client
        self._version = version
        self._has_vision = has_vision
        self._context_tokens: int | None = None  # as reported by the server

    @property
    @override
    def slot_count(self) -> int:
        return self._settings.parallel

    @property
    @override
    def version(self) -> str:
        return self._version

    @property
    @override
    def restarts(self) -> int:
        return self._child.restarts

    @override
    async def context_tokens(self) -> int:
        if self._context_tokens is None:
            slots = msgspec.json.decode(await self._send("GET", "/slots"), type=list[SlotInfo])
            self._context_tokens = slots[0].n_ctx
        return self._context_tokens

    @override
    async def generate(self, request: GenerationRequest) -> AsyncGenerator[GenerationEvent, None]:
        marker = await self._media_marker() if request.images else ""
        # With a projector the server takes only text at OpenAI's path.
        path = "/completions" if self._has_vision else "/v1/completions"
        body = to_wire(request, self._model, marker)
        chat_request = ChatRequest(path, body, self._model, request.stop, NO_FORMAT)
        async with aclosing(self._request_runner.run(chat_request)) as events:
            async for event in events:
                yield event

    async def _media_marker(self) -> str:
        """Return what stands for an image in a prompt; the server invents it at every start."""
        return msgspec.json.decode(await self._send("GET", "/props"), type=ServerProps).media_marker

    @override
    async def tokenize(
        self, texts: Sequence[str], *, parse_special: bool, add_special: bool = False
    ) -> list[list[int]]:
        if not texts:
            return []
        content: list[str | int] = []
        for text in texts:
            content += [text, _BOUNDARY]
        body = {"content": content, "parse_special": parse_special, "add_special": add_special}
        response = msgspec.json.decode(await self._post("/tokenize", body), type=TokenizeResponse)
        parts: list[list[int]] = [[]]
        for token in response.tokens:
            if token == _BOUNDARY:
                parts.append([])
            else:
                parts[-1].append(token)
        return parts[:-1]

    @override
    async def token_text(self, token: int) -> str:
        response = await self._post("/detokenize", {"tokens": [token]})
        return msgspec.json.decode(response, type=DetokenizeResponse).content

    @override
    async def save_slot(self, slot: int, file: str) -> int:
        response = await self._post(f"/slots/{slot}?action=save", {"filename": file})
        return msgspec.json.decode(response, type=SaveSlotResponse).n_saved

    @override
    async def restore_slot(self, slot: int, file: str) -> int:
        response = await self._post(f"/slots/{slot}?action=restore", {"filename": file})
        return msgspec.json.decode(response, type=RestoreSlotResponse).n_restored

    @override
    async def erase_slot(self, slot: int) -> None:
        await self._post(f"/slots/{slot}?action=erase", {})

    @override
    async def wait_until_ready(self) -> None:
        try:
            await self._child.wait_until_ready(_RESTART_SECONDS)
        except ChildFailed as error:
            raise EngineFailed(str(error)) from error

    @override
    async def has_crashed(self, restarts: int) -> bool:
        await asyncio.sleep(_DETECT_EXIT_SECONDS)
        if not self._child.is_ready or self._child.restarts != restarts:
            return True
        if await self._reacts():
            return False
        await self._kill()
        return True

    async def _reacts(self) -> bool:
        """Wait for an answer as long as the engine works, at most as long as for a first token.

        A batch of a large model, or an image, takes long on a busy machine.
        """
        longest = self._settings.first_token_seconds
        seconds = longest if self._has_vision else min(_PROBE_SECONDS, longest)
        # It is answered by the thread that decodes.
        probe = asyncio.create_task(self._send("GET", "/slots"), name="probe the engine")
        try:
            for _ in range(math.ceil(longest / seconds)):
                used = self._child.cpu_seconds()
                await asyncio.wait([probe], timeout=seconds)
                if probe.done():
                    await probe
                    return True
                if not _has_worked(used, self._child.cpu_seconds()):
                    return False
        except EngineFailed:
            return False
        finally:
            await cancel_and_wait([probe])
        return False

    async def _kill(self) -> None:
        if self._child.pid is not None:
            with suppress(ProcessLookupError):
                os.kill(self._child.pid, signal.SIGKILL)
            await asyncio.sleep(_DETECT_EXIT_SECONDS)

    async def _post(self, path: str, body: Mapping[str, object]) -> bytes:
        return await self._send("POST", path, msgspec.json.encode(body))

    async def _send(self, method: str, path: str, body: bytes | None = None) -> bytes:
        deadline = asyncio.get_running_loop().time() + self._settings.first_token_seconds
        try:
            async with await self._client.request(method, path, body, deadline) as response:
                content = await response.read_all(deadline, _MAX_RESPONSE_BYTES)
        except (TimeoutError, ConnectionFailed) as error:
            raise EngineFailed(f"{self._model}: {path}: {type(error).__name__}") from error
        if response.status != HTTPStatus.OK:
            raise EngineRefused(f"{self._model}: {path}: status {response.status}")
        return content


@asynccontextmanager
async def running_engine(config: EngineConfig) -> AsyncIterator[Engine]:
    """Run the engine that the settings ask for, for the length of the block.

    Raises:
        ChildFailed: it does not start.
        SettingsError: it is not installed or cannot run here; the text names the remedy.
    """
    name = require_engine(config.settings, config.provider)
    model, settings = config.model.stem, engine_settings(_with_timeout(config.settings))
    options = _options(config)
    if name == "xllamacpp":
        check_cpu(setting_prefix(config.provider))
        module = "bot.backends.llama_cpp.xllamacpp_child"
        options["parallel"] = settings.parallel
    else:
        _refuse_projector(config)
        _refuse_parallel(config)
        module = "bot.backends.llama_cpp.bindings_child"
    log_file = config.data_dir / "llama-engine.log"
    async with unix_server(f"the engine of {model}", module, options, log_file) as server:
        request_runner = ChatRequestRunner(
            settings,
            Endpoint(config.provider, ENGINE_URL),
            ServerConnection(server.client),
            ChatCompletionsParser,
            max_retries=0,
            # a crashed engine is back within a second
            new_breaker=partial(CircuitBreaker, share=math.inf, away_seconds=math.inf),
        )
        yield ServerEngine(
            model,
            settings,
            server.child,
            request_runner,
            server.client,
            f"{name} {version(name)}",
            has_vision=config.projector is not None,
        )


def _refuse_projector(config: EngineConfig) -> None:
    if config.projector is not None:
        prefix = setting_prefix(config.provider)
        raise SettingsError(
            f"the engine llama_cpp_python takes no projector; "
            f"unset {prefix}PROJECTOR_PATH or set {prefix}ENGINE=xllamacpp"
        )


def _refuse_parallel(config: EngineConfig) -> None:
    settings = config.settings
    if "parallel" in settings.model_fields_set and settings.parallel > 1:
        prefix = setting_prefix(config.provider)
        raise SettingsError(
            f"the engine llama_cpp_python answers one conversation at a time; "
            f"unset {prefix}PARALLEL or set {prefix}ENGINE=xllamacpp"
        )


def _has_worked(before: float | None, after: float | None) -> bool:
    return before is not None and after is not None and after - before > _IDLE_CPU_SECONDS


def _with_timeout(settings: LlamaCppSettings) -> LlamaCppSettings:
    if "first_token_seconds" in settings.model_fields_set:
        return settings
    return settings.model_copy(update={"first_token_seconds": _FIRST_TOKEN_SECONDS})


def _options(config: EngineConfig) -> dict[str, object]:
    options: dict[str, object] = {
        "model": config.model,
        "slots-folder": config.slots_folder,
        "context-tokens": config.settings.context_tokens,
        "gpu-layers": config.settings.gpu_layers,
    }
    if config.settings.threads is not None:
        options["threads"] = config.settings.threads
    if config.projector is not None:
        options["projector"] = config.projector
    return options

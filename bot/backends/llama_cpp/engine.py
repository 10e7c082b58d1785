"""Run a model in a child process that serves llama.cpp's HTTP API."""

import asyncio
import math
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import field
from functools import partial
from http import HTTPStatus
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import msgspec

from bot.backends.chat_completions.errors import Endpoint
from bot.backends.chat_completions.reasoning import NO_FORMAT
from bot.backends.chat_completions.request_runner import ChatRequest, ChatRequestRunner, post_json
from bot.backends.chat_completions.retries import CircuitBreaker
from bot.backends.chat_completions.wire import ChatCompletionsParser
from bot.backends.llama_cpp.hardware import require_cpu_flags
from bot.backends.llama_cpp.settings import LlamaCppSettings
from bot.backends.model_files import store
from bot.chat.prompt import GenerationEvent
from bot.errors import SettingsError
from bot.extras import install_command
from bot.runtime.http_client import ConnectionFailed
from bot.runtime.subprocesses import ChildProcessFailed
from bot.runtime.unix_server import ENGINE_URL, UnixServer, run_unix_server
from bot.templates.control_tokens import break_control_tokens
from bot.value_class import value_class

IMAGE_PLACEHOLDER: Final = "\ufffc"  # Unicode's object replacement character
_MIN_SHIFT_TOKENS = 32  # shorter runs of cached tokens are decoded again
# Prefilling a full context takes half a minute on one core, far longer than on a remote service.
_FIRST_TOKEN_TIMEOUT_SECONDS = 120.0
_RESTART_TIMEOUT_SECONDS = 30.0
_EXIT_DETECTION_DELAY_SECONDS = 0.2
_MAX_RESPONSE_BYTES = 64 * 2**20
_TEXT_BOUNDARY_TOKEN = -1  # not a token in any vocabulary; the server returns it between texts
# By engine, best first: the package it needs, and what the installation does.
_ENGINE_PACKAGES = {
    "xllamacpp": ("xllamacpp", "installs it, except on Alpine Linux (musl)"),
    "llama_cpp_python": ("llama_cpp", "compiles it in a few minutes"),
}


class EngineFailed(Exception):
    """The engine failed; it may have crashed."""


class EngineRefused(EngineFailed):
    """The engine works but rejects this request."""


@value_class
class GenerationRequest:
    prompt_ids: Sequence[int]
    stop: Sequence[str] = ()
    sampling_parameters: Mapping[str, object] = field(default_factory=dict)
    max_output_tokens: int | None = None
    slot_number: int | None = None
    can_shift_cache: bool = False
    """Whether the slot contains only this conversation, so its tokens may be moved to new
    positions."""
    preserved_tokens: Sequence[str] = ()
    text: str = ""
    """If there are images: the prompt as text, with an `IMAGE_PLACEHOLDER` for each image."""
    encoded_images: Sequence[str] = ()


@value_class
class EngineConfig:
    model: Path
    provider: str
    settings: LlamaCppSettings
    data_dir: Path
    slots_folder: Path
    projector: Path | None = None


def to_wire(request: GenerationRequest, model: str, media_marker: str = "") -> dict[str, object]:
    """Build a `/completions` request from token ids or, with images, text with `media_marker`s."""
    body: dict[str, object] = {
        "stream_options": {"include_usage": True},
        **request.sampling_parameters,
        "stop": list(request.stop),
        # The server renders control tokens as text, and finds them as stops, only if listed here.
        "preserved_tokens": list(dict.fromkeys([*request.stop, *request.preserved_tokens])),
        "model": model,
        "prompt": _build_multimodal_prompt(request, media_marker)
        if request.encoded_images
        else list(request.prompt_ids),
        "cache_prompt": True,
        "stream": True,
    }
    if request.max_output_tokens is not None:
        body["max_tokens"] = request.max_output_tokens
    if request.slot_number is not None:
        body["id_slot"] = request.slot_number
        # After the oldest turns are dropped, the cached tokens behind them are moved, not decoded
        # again. They still depend on the dropped turns, so only the same conversation may use them.
        body["n_cache_reuse"] = _MIN_SHIFT_TOKENS if request.can_shift_cache else 0
    return body


def _build_multimodal_prompt(request: GenerationRequest, media_marker: str) -> dict[str, object]:
    safe_text = break_control_tokens(request.text, [media_marker])
    text = safe_text.replace(IMAGE_PLACEHOLDER, media_marker)
    return {"prompt_string": text, "multimodal_data": list(request.encoded_images)}


class Engine:
    """A model in a child process with numbered KV cache slots. Calls may raise `EngineFailed`."""

    def __init__(
        self, config: EngineConfig, settings: LlamaCppSettings, server: UnixServer, version: str
    ) -> None:
        self.slot_count = settings.parallel
        self.version = version
        """The engine's version; other versions may be unable to read its saved slots."""
        self._model = config.model.stem
        self._first_token_seconds = settings.first_token_seconds
        self._has_vision = config.projector is not None
        self._process, self._client = server
        self._context_tokens: int | None = None  # as reported by the server
        self._request_runner = ChatRequestRunner(
            settings,
            Endpoint(config.provider, ENGINE_URL),
            partial(post_json, self._client),
            ChatCompletionsParser,
            max_retries=0,
            # never opens, because a crashed engine restarts within a second
            make_breaker=partial(CircuitBreaker, failure_share=math.inf, min_down_seconds=math.inf),
        )

    @property
    def restart_count(self) -> int:
        return self._process.restart_count

    async def fetch_context_tokens(self) -> int:
        """Return the token capacity of a slot: as configured, or the model's limit if lower."""
        if self._context_tokens is None:
            slots = await self._send("GET", "/slots")
            self._context_tokens = int(slots[0]["n_ctx"])
        return self._context_tokens

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[GenerationEvent, None]:
        """Stream an answer like `Backend.generate`; closing the generator stops the model."""
        # The server chooses a new placeholder for images at every start.
        media_marker = (
            (await self._send("GET", "/props"))["media_marker"] if request.encoded_images else ""
        )
        # With a projector, the server accepts only text at OpenAI's path.
        path = "/completions" if self._has_vision else "/v1/completions"
        body = to_wire(request, self._model, media_marker)
        chat_request = ChatRequest(path, body, self._model, request.stop, NO_FORMAT)
        async with aclosing(self._request_runner.run(chat_request)) as events:
            async for event in events:
                yield event

    async def tokenize(
        self, texts: Sequence[str], *, parse_special: bool, add_special: bool = False
    ) -> list[list[int]]:
        """Return each text's token ids; `add_special` adds the model's start and end tokens."""
        if not texts:
            return []
        content: list[str | int] = []
        for text in texts:
            content += [text, _TEXT_BOUNDARY_TOKEN]
        body = {"content": content, "parse_special": parse_special, "add_special": add_special}
        token_lists: list[list[int]] = [[]]
        for token in (await self._post("/tokenize", body))["tokens"]:
            if token == _TEXT_BOUNDARY_TOKEN:
                token_lists.append([])
            else:
                token_lists[-1].append(token)
        return token_lists[:-1]

    async def detokenize(self, token: int) -> str:
        return str((await self._post("/detokenize", {"tokens": [token]}))["content"])

    async def save_slot(self, slot_number: int, file_name: str) -> int:
        response = await self._post(f"/slots/{slot_number}?action=save", {"filename": file_name})
        return int(response["n_saved"])

    async def restore_slot(self, slot_number: int, file_name: str) -> int:
        """Load a slot from a file and return its token count; raise `EngineRefused` if damaged."""
        response = await self._post(f"/slots/{slot_number}?action=restore", {"filename": file_name})
        return int(response["n_restored"])

    async def erase_slot(self, slot_number: int) -> None:
        await self._post(f"/slots/{slot_number}?action=erase", {})

    async def wait_until_ready(self) -> None:
        try:
            await self._process.wait_until_ready(_RESTART_TIMEOUT_SECONDS)
        except ChildProcessFailed as error:
            raise EngineFailed(str(error)) from error

    async def has_crashed(self, known_restart_count: int) -> bool:
        """Return whether the engine crashed since the given restart count; kill it if it hangs."""
        await asyncio.sleep(_EXIT_DETECTION_DELAY_SECONDS)
        if not self._process.is_ready or self._process.restart_count != known_restart_count:
            return True
        try:
            await self._send("GET", "/slots")  # the decoding thread answers this request
        except EngineFailed:
            self._process.kill()
            await asyncio.sleep(_EXIT_DETECTION_DELAY_SECONDS)
            return True
        return False

    async def _post(self, path: str, body: Mapping[str, object]) -> Any:
        return await self._send("POST", path, msgspec.json.encode(body))

    async def _send(self, method: str, path: str, body: bytes | None = None) -> Any:
        deadline = asyncio.get_running_loop().time() + self._first_token_seconds
        try:
            async with await self._client.request(method, path, body, deadline) as response:
                content = await response.read_all(deadline, _MAX_RESPONSE_BYTES)
        except (TimeoutError, ConnectionFailed) as error:
            reason = str(error) or type(error).__name__
            message = f"the engine of {self._model} did not answer {path} ({reason})"
            raise EngineFailed(message) from error
        if response.status != HTTPStatus.OK:
            status = response.status
            raise EngineRefused(f"the engine of {self._model} refused {path} with status {status}")
        return msgspec.json.decode(content)


@asynccontextmanager
async def run_engine(config: EngineConfig) -> AsyncIterator[Engine]:
    """Run the configured engine during the block; raise `ChildProcessFailed` or `SettingsError`."""
    settings, prefix = config.settings, setting_prefix(config.provider)
    name = require_engine(settings, config.provider)
    options: dict[str, object] = {
        "model": config.model,
        "slots_folder": config.slots_folder,
        "context_tokens": settings.context_tokens,
        "gpu_layers": settings.gpu_layers,
    }
    if settings.threads is not None:
        options["threads"] = settings.threads
    if name == "xllamacpp":
        require_cpu_flags(prefix)
        child_module = "bot.backends.llama_cpp.xllamacpp_child"
        options["parallel"] = settings.parallel
        if config.projector is not None:
            options["projector"] = config.projector
    else:
        child_module = "bot.backends.llama_cpp.bindings_child"
        if config.projector is not None:
            raise SettingsError(
                f"the engine llama_cpp_python does not support projectors; "
                f"unset {prefix}PROJECTOR_PATH or set {prefix}ENGINE=xllamacpp"
            )
    settings = limit_slots_to_engine(settings)
    if "first_token_seconds" not in settings.model_fields_set:
        settings = settings.model_copy(update={"first_token_seconds": _FIRST_TOKEN_TIMEOUT_SECONDS})
    process_name = f"the engine of {config.model.stem}"
    log_file = config.data_dir / "llama-engine.log"
    async with run_unix_server(process_name, child_module, options, log_file) as server:
        yield Engine(config, settings, server, f"{name} {version(name)}")


def select_engine(settings: LlamaCppSettings) -> str | None:
    names = [name for name in _ENGINE_PACKAGES if settings.engine in {"auto", name}]
    return next((name for name in names if find_spec(_ENGINE_PACKAGES[name][0]) is not None), None)


def limit_slots_to_engine(settings: LlamaCppSettings) -> LlamaCppSettings:
    """Return the settings, with a single slot if they select the engine `llama_cpp_python`."""
    if select_engine(settings) == "llama_cpp_python":
        return settings.model_copy(update={"parallel": 1})
    return settings


def setting_prefix(provider: str) -> str:
    return f"TROUPE_PROVIDERS__{provider.upper()}__"


def require_engine(settings: LlamaCppSettings, provider: str) -> str:
    """Return the engine to start; raise `SettingsError` if it is not installed."""
    name = select_engine(settings)
    if name is not None:
        return name
    missing_engine = next(iter(_ENGINE_PACKAGES)) if settings.engine == "auto" else settings.engine
    package, install_note = _ENGINE_PACKAGES[missing_engine]
    prefix = setting_prefix(provider)
    raise SettingsError(
        f"the engine {missing_engine} is not installed: {install_command(package)} {install_note};"
        f" or unset {prefix}ENGINE to use one that is installed, or set {prefix}KIND=openai and"
        f" {prefix}BASE_URL to a server that has a model"
    )


async def prepare_model(
    provider: str,
    model: str,
    settings: LlamaCppSettings,
    data_dir: Path,
    report_progress: Callable[[str], None],
) -> None:
    """Check that the engine is installed, then download the default model if needed."""
    require_engine(settings, provider)
    await store.prepare_model(model, settings, data_dir, report_progress)

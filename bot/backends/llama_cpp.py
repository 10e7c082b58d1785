"""Models on this machine: each in an engine process of its own, started when first asked."""

import asyncio
import os
import secrets
import signal
import sys
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx2
import msgspec
from pydantic import SecretStr
from typing_extensions import override

from bot.backends import models, processor
from bot.backends.completions import answer_limit, to_token_wire
from bot.backends.gguf import read_tokens
from bot.backends.llama_tokens import Tokenizer, TokenizerFailed
from bot.backends.openai_compatible import OpenAICompatible, Request
from bot.chat.prompt import Delta, Finish, Prompt, Token
from bot.children import Child, ChildFailed, supervised
from bot.errors import BackendInterrupted, BackendUnavailable, SettingsError, TemplateError
from bot.ports import Backend, Counts, Tokenizes
from bot.settings import ProviderSettings
from bot.templates.rendering import OwnTemplate, Rendered, Renderer

# Reading a full context takes one core half a minute; a service far away has no such excuse.
_FIRST_TOKEN_SECONDS = 120.0
_START_SECONDS = 120.0  # a large file from a slow disk
_RESTART_SECONDS = 30.0
_PROBE_SECONDS = 15.0  # the engine answers between two batches
_NOTICES_DEATH_SECONDS = 0.2
_TEMPLATE_NOTICE = "This preset's template cannot be used; an operator has to mend it."
_MOST_COUNTED = 256
_ANSWER_SHARE = 4  # a quarter of the context is for an answer without a limit of its own
_LONGEST_SOCKET_PATH = 100  # bytes; the kernel takes about 107


class LlamaCpp(Backend, Counts, Tokenizes):
    """Every model in the data directory, and any GGUF named by its path."""

    def __init__(
        self,
        settings: ProviderSettings,
        data_dir: Path,
        renderer: Renderer,
        name: str = "local",
    ) -> None:
        self._settings = settings
        self._data_dir = data_dir
        self._renderer = renderer
        self._name = name
        self._engines: dict[Path, _Engine] = {}
        # What was counted last is most likely what is asked next: it is not written twice.
        self._counted: dict[str, tuple[Prompt, Rendered]] = {}
        self._open = AsyncExitStack()
        self._one_start_at_a_time = asyncio.Lock()

    @override
    async def generate(self, prompt: Prompt) -> AsyncGenerator[Delta | Finish, None]:
        engine = await self._engine(prompt.model)
        rendered = await self._rendered(prompt, engine)
        for tries_left in (1, 0):
            deaths = engine.child.restarts
            try:
                request = await engine.request(prompt, rendered)
                async with aclosing(engine.client.answer(request)) as pieces:
                    async for piece in pieces:
                        yield piece
            except BackendUnavailable:
                if not (await engine.died(deaths) and tries_left):
                    raise
                await self._engine(prompt.model)
            except BackendInterrupted:
                await engine.died(deaths)
                raise
            else:
                return

    @override
    async def check(self) -> str:
        engine = await self._engine("default")
        return f"{engine.model.stem} on this machine"

    @override
    async def close(self) -> None:
        self._engines.clear()
        await self._open.aclose()

    @override
    async def explain(self, prompt: Prompt) -> Sequence[Token]:
        engine = await self._engine(prompt.model)
        rendered = await self._rendered(prompt, engine)
        return await engine.tokenizer.explain(rendered.pieces)

    @override
    async def count(self, prompt: Prompt) -> int:
        engine = await self._engine(prompt.model)
        rendered = await self._rendered(prompt, engine)
        if len(self._counted) >= _MOST_COUNTED:
            self._counted.clear()
        self._counted[prompt.conversation] = prompt, rendered
        return len(await engine.ids(rendered))

    @override
    async def room(self, prompt: Prompt) -> int | None:
        engine = await self._engine(prompt.model)
        context = await engine.context_tokens()
        return context - (answer_limit(prompt) or context // _ANSWER_SHARE)

    async def _rendered(self, prompt: Prompt, engine: "_Engine") -> Rendered:
        counted, rendered = self._counted.pop(prompt.conversation, (None, None))
        if counted is prompt and rendered is not None:
            return rendered
        try:
            return await self._renderer.render(prompt.messages, prompt.template, engine.template)
        except TemplateError as error:
            what = f"the template for {engine.model.stem} cannot be used: {error}"
            raise BackendUnavailable(what, _TEMPLATE_NOTICE) from error

    async def start(self) -> None:
        """Load the default model now rather than at the first question.

        Raises:
            BackendUnavailable: there is none, or it does not start.
        """
        await self._engine("default")

    async def _engine(self, word: str) -> "_Engine":
        try:
            model = models.find(word, self._settings, self._data_dir)
            async with self._one_start_at_a_time:
                if model not in self._engines:
                    processor.check(self._name)
                    opening = _running(model, self._settings, self._name, self._data_dir)
                    self._engines[model] = await self._open.enter_async_context(opening)
            await self._engines[model].child.wait_serving(_RESTART_SECONDS)
        except (SettingsError, ChildFailed) as error:
            notice = "The model on this machine cannot be used; an operator has to mend it."
            raise BackendUnavailable(str(error), notice) from error
        return self._engines[model]


def make(name: str, settings: ProviderSettings, data_dir: Path, renderer: Renderer) -> Backend:
    return LlamaCpp(settings, data_dir, renderer, name)


@dataclass(frozen=True, slots=True)
class _Engine:
    model: Path
    child: Child
    client: OpenAICompatible
    probe: httpx2.AsyncClient
    template: OwnTemplate
    tokenizer: Tokenizer
    tokenizing_seconds: float
    slots: "list[_Slot]" = field(default_factory=list)  # as the engine tells them, once asked

    async def ids(self, rendered: Rendered) -> list[int]:
        """Turn a rendered prompt into ids; raises `BackendUnavailable` when the engine does not."""
        try:
            async with asyncio.timeout(self.tokenizing_seconds):
                return await self.tokenizer.ids(rendered.pieces)
        except (TokenizerFailed, TimeoutError) as error:
            raise BackendUnavailable(f"{self.model.stem} does not tokenize: {error}") from error

    async def context_tokens(self) -> int:
        """How much one conversation may hold: what was asked for, or the model's own limit."""
        if not self.slots:
            try:
                async with asyncio.timeout(self.tokenizing_seconds):
                    answer = await self.probe.get("/slots")
                self.slots.extend(msgspec.json.decode(answer.content, type=list[_Slot]))
            except (TimeoutError, httpx2.TransportError, msgspec.DecodeError) as error:
                raise BackendUnavailable(f"{self.model.stem} does not tell its context") from error
        return self.slots[0].n_ctx

    async def request(self, prompt: Prompt, rendered: Rendered) -> Request:
        """Write down the question; raises `BackendUnavailable` when it cannot be tokenized."""
        ids = await self.ids(rendered)
        ends = (*prompt.stop, *rendered.stop, self.template.eos_token)
        stop = tuple(dict.fromkeys(word for word in ends if word))
        name = self.model.stem
        return Request("/completions", to_token_wire(prompt, name, ids, stop), name, stop)

    async def died(self, deaths: int) -> bool:
        """After a failed answer: whether the engine has died since there had been `deaths`.

        One that lives but does not react is ended, so that it is started anew.
        """
        await asyncio.sleep(_NOTICES_DEATH_SECONDS)
        if not self.child.serving or self.child.restarts != deaths:
            return True
        await self._end_if_stuck()
        return False

    async def _end_if_stuck(self) -> None:
        try:
            async with asyncio.timeout(_PROBE_SECONDS):
                await self.probe.get("/slots")  # answered by the thread that does the work
        except (TimeoutError, httpx2.TransportError):
            if self.child.pid is not None:
                with suppress(ProcessLookupError):
                    os.kill(self.child.pid, signal.SIGKILL)


class _Slot(msgspec.Struct):
    n_ctx: int


@asynccontextmanager
async def _running(
    model: Path, settings: ProviderSettings, name: str, data_dir: Path
) -> AsyncIterator[_Engine]:
    """Keep an engine for a model up; raises `ChildFailed` when it does not start."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(_private_folder()))
        socket, key_file = folder / "engine.sock", folder / "key"
        key = secrets.token_urlsafe(32)
        key_file.write_text(key, encoding="ascii")
        probe = await stack.enter_async_context(
            httpx2.AsyncClient(
                transport=httpx2.AsyncHTTPTransport(uds=str(socket)),
                base_url="http://engine",
                headers={"Authorization": f"Bearer {key}"},
                timeout=None,  # its callers have their own
            )
        )
        child = await stack.enter_async_context(
            supervised(
                f"the engine of {model.stem}",
                _command(model, socket, key_file, settings),
                ready=lambda: _answers(probe),
                log_file=data_dir / "llama-engine.log",
                start_seconds=_START_SECONDS,
            )
        )
        client_settings = _client_settings(settings, model, key)
        client = OpenAICompatible(
            client_settings,
            name,
            transport=httpx2.AsyncHTTPTransport(uds=str(socket)),
            max_retries=0,
        )
        stack.push_async_callback(client.close)
        tokens = await asyncio.to_thread(read_tokens, model)
        yield _Engine(
            model,
            child,
            client,
            probe,
            OwnTemplate(tokens.chat_template, tokens.bos_token, tokens.eos_token),
            Tokenizer(probe, tokens),
            client_settings.first_token_seconds,
        )


def _client_settings(settings: ProviderSettings, model: Path, key: str) -> ProviderSettings:
    given = "first_token_seconds" in settings.model_fields_set
    first_token = settings.first_token_seconds if given else _FIRST_TOKEN_SECONDS
    return settings.model_copy(
        update={
            "base_url": "http://engine/v1",
            "api_key": SecretStr(key),
            "model": model.stem,
            "first_token_seconds": first_token,
        }
    )


def _command(model: Path, socket: Path, key_file: Path, settings: ProviderSettings) -> list[str]:
    threads = settings.threads or max(1, (os.cpu_count() or 1) - 1)
    options = {
        "model": model,
        "socket": socket,
        "key-file": key_file,
        "context-tokens": settings.context_tokens,
        "parallel": settings.parallel,
        "threads": threads,
    }
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    return [sys.executable, "-m", "bot.backends.llama_engine", *words]


async def _answers(probe: httpx2.AsyncClient) -> bool:
    try:
        async with asyncio.timeout(1):
            return (await probe.get("/health")).is_success
    except (TimeoutError, httpx2.TransportError):
        return False


def _private_folder() -> "tempfile.TemporaryDirectory[str]":
    """A folder that only we can enter, with a path short enough for a socket in it."""
    folder = tempfile.TemporaryDirectory(prefix="troupe-")
    if len(os.fsencode(folder.name)) > _LONGEST_SOCKET_PATH - len("/engine.sock"):
        folder.cleanup()
        return tempfile.TemporaryDirectory(prefix="troupe-", dir="/tmp")
    return folder

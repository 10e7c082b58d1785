"""Any service that speaks OpenAI's chat completions, far away or next door.

The openai client brings connections and authentication. Messages go around its typed transform and
the stream around its objects: those two cost ten times everything else in a turn (150 µs for each
message of the history, 130 µs for each chunk). What remains is mostly waking up for every chunk
(160 µs over aiohttp, 260 over httpx), so a stream that flows is read in sips.
"""

import asyncio
import random
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import httpx2
import openai
from typing_extensions import override

from bot.backends import faults, retrying
from bot.backends.clocks import Clocks
from bot.backends.completions import Reading, to_wire
from bot.backends.connection import HttpRefusal, connect, request_options
from bot.backends.counting import PromptCounter
from bot.backends.faults import Endpoint, Fault
from bot.backends.retrying import CircuitBreaker, RetryBudget
from bot.backends.thoughts import ANY, Thinking
from bot.chat.prompt import Delta, Finish, FinishReason, Prompt, Thought
from bot.clock import SystemClock
from bot.errors import BackendInterrupted, BackendUnavailable
from bot.ports import Backend, Clock, Counts
from bot.settings import ProviderSettings
from bot.templates.rendering import Renderer

_CHECK_SECONDS = 10.0
_PROMPT_DELTAS = 4  # these come as soon as they can; a short answer has no more
_SIP_SECONDS = 0.04  # far less than any chat's pace of edits
_FULL_CHUNK_BYTES = 4096  # more is waiting: read on
_AT_ONCE_SECONDS = 0.001
_CUT_OFF = "The model stopped in the middle of its answer."
_LISTS_NO_MODELS = frozenset({404, 405, 501})


@dataclass(frozen=True, slots=True)
class Request:
    """A question in the form that goes out."""

    path: str
    body: bytes
    model: str  # for what is said when it fails
    stop: Sequence[str]  # searched for here, whatever the service does
    thinking: Thinking = ANY


class OpenAICompatible(Backend, Counts):
    """One provider, with its own connections, retry budget and circuit breaker."""

    def __init__(
        self,
        settings: ProviderSettings,
        name: str,
        *,
        transport: httpx2.AsyncBaseTransport | None = None,
        max_retries: int = retrying.MAX_RETRIES,
        breaker: CircuitBreaker | None = None,
        clock: Clock | None = None,
        dice: random.Random | None = None,
    ) -> None:
        self._settings = settings
        self._endpoint = Endpoint(name, settings.base_url or "")
        self._max_retries = max_retries
        self._clock = clock or SystemClock()
        self._dice = dice or random.SystemRandom()
        self._budget = RetryBudget()
        self._breaker = breaker or CircuitBreaker()
        self._counter = PromptCounter()
        self._client = connect(settings, transport)
        self._options = request_options(settings)

    @override
    async def generate(self, prompt: Prompt) -> AsyncGenerator[Delta | Thought | Finish, None]:
        model = self._model(prompt.model)
        body = to_wire(prompt, model, names=bool(self._settings.message_names))
        request = Request("/chat/completions", body, model, prompt.stop)
        async with aclosing(self.answer(request)) as pieces:
            async for piece in pieces:
                if isinstance(piece, Finish):
                    self._counter.learn(prompt, model, piece.usage.prompt_tokens)
                yield piece

    @override
    async def count(self, prompt: Prompt) -> int:
        return await self._counter.count(prompt, self._model(prompt.model))

    @override
    async def room(self, prompt: Prompt) -> int | None:
        return None  # a service refuses what is too long, and says so

    async def answer(self, request: Request) -> AsyncGenerator[Delta | Thought | Finish, None]:
        """Send a request that is ready; behaves as `generate` does."""
        deadline = asyncio.get_running_loop().time() + self._settings.total_seconds
        self._budget.call()
        retries = 0
        while True:
            if not self._breaker.admits(self._clock.monotonic()):
                raise BackendUnavailable(f"{self._endpoint} fails too often; it gets a rest")
            shown = False
            try:
                async with aclosing(self._attempt(request, deadline)) as pieces:
                    async for piece in pieces:
                        shown = shown or isinstance(piece, Delta)
                        yield piece
            except Fault as fault:
                self._breaker.record(self._clock.monotonic(), well=not fault.ill)
                if shown:
                    raise BackendInterrupted(str(fault), fault.notice or _CUT_OFF) from fault
                pause = self._pause(fault, retries)
                left = deadline - asyncio.get_running_loop().time()
                if pause is None or pause >= left:
                    raise BackendUnavailable(str(fault), fault.notice) from fault
            else:
                self._breaker.record(self._clock.monotonic(), well=True)
                return
            retries += 1
            await self._clock.sleep(pause)

    @override
    async def check(self) -> str:
        try:
            async with asyncio.timeout(_CHECK_SECONDS):
                models = await self._client.get(
                    "/models", cast_to=httpx2.Response, options=self._options
                )
                await models.aclose()
        except HttpRefusal as refused:
            fault = self._refusal(refused, self._settings.model or "default")
            # Not every service lists its models, but every one says when a key is wrong.
            if refused.status in _LISTS_NO_MODELS:
                return f"answers at {self._endpoint.base_url}, but lists no models"
            raise BackendUnavailable(str(fault), fault.notice) from fault
        except (openai.APIConnectionError, aiohttp.ClientError, TimeoutError) as error:
            fault = faults.unreachable(self._endpoint, _reason(error))
            raise BackendUnavailable(str(fault)) from error
        return f"answers at {self._endpoint.base_url}"

    @override
    async def close(self) -> None:
        await self._client.close()

    def _model(self, asked: str) -> str:
        if asked != "default":
            return asked
        if self._settings.model is None:
            raise BackendUnavailable(
                f"{self._endpoint} has no default model; set {self._endpoint.setting('MODEL')}",
                "No model is chosen for this preset; an operator has to set one.",
            )
        return self._settings.model

    def _pause(self, fault: Fault, retries: int) -> float | None:
        """Seconds until the next try; None when there should be none."""
        if not fault.again or retries >= self._max_retries:
            return None
        if fault.pause_seconds > retrying.MAX_PAUSE_SECONDS or not self._budget.take():
            return None
        return fault.pause_seconds + self._dice.uniform(0, retrying.backoff_ceiling(retries))

    async def _attempt(
        self, request: Request, deadline: float
    ) -> AsyncGenerator[Delta | Thought | Finish, None]:
        """Ask once; raises `Fault`. Closing it closes the connection, which stops the model."""
        loop = asyncio.get_running_loop()
        clocks = Clocks(self._settings, self._endpoint, deadline)
        response = await clocks.within(self._post(request))
        try:
            reading = self._reading(response, request)
            deltas = 0
            async with aclosing(response.aiter_raw()) as chunks:
                while not reading.done:
                    asked = loop.time()
                    chunk = await self._next(chunks, reading, clocks)
                    at_once = loop.time() - asked < _AT_ONCE_SECONDS
                    heard = reading.feed(chunk) if chunk else reading.end()
                    if heard.progress:
                        clocks.progress(spoken=bool(heard.text))
                    if reading.reason is not None:
                        clocks.finished()
                    if heard.thought:
                        yield Thought(heard.thought)
                    if heard.text:
                        yield Delta(heard.text)
                        deltas += 1
                    if heard.fault and reading.reason is None:
                        raise heard.fault
                    # Some transports give one event at a time, however many have come meanwhile.
                    more = len(chunk) >= _FULL_CHUNK_BYTES or (
                        at_once and chunk.count(b"data:") < 2
                    )
                    if deltas > _PROMPT_DELTAS and not more and reading.reason is None:
                        await asyncio.sleep(_SIP_SECONDS)
        finally:
            await response.aclose()
        yield Finish(reading.reason or FinishReason.STOP, reading.usage)

    def _reading(self, response: httpx2.Response, request: Request) -> Reading:
        kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind == "text/html":
            raise faults.garbled(self._endpoint, "a web page")
        streamed = kind != "application/json"
        now = self._clock.now()
        return Reading(
            self._endpoint,
            request.model,
            stop=request.stop,
            streamed=streamed,
            now=now,
            thinking=request.thinking,
        )

    async def _next(
        self, chunks: AsyncGenerator[bytes, None], reading: Reading, clocks: Clocks
    ) -> bytes:
        """The next bytes, none at the end; raises `Fault`."""
        try:
            return await clocks.within(anext(chunks, b""))
        except (Fault, httpx2.TransportError, aiohttp.ClientError) as error:
            if reading.reason is not None:
                return b""  # the answer is whole, only its usage is missing
            if isinstance(error, Fault):
                raise
            raise faults.cut(self._endpoint, _reason(error)) from error

    async def _post(self, request: Request) -> httpx2.Response:
        """Send the request and get an answer whose body is still to be read; raises `Fault`."""
        try:
            return await self._client.post(
                request.path,
                cast_to=httpx2.Response,
                content=request.body,
                options=self._options,
            )
        except HttpRefusal as refused:
            raise self._refusal(refused, request.model) from None
        except (openai.APIConnectionError, aiohttp.ClientError) as error:
            raise faults.unreachable(self._endpoint, _reason(error)) from error

    def _refusal(self, refused: HttpRefusal, model: str) -> Fault:
        return faults.from_status(
            self._endpoint, model, refused.status, refused.headers, refused.body, self._clock.now()
        )


def make(name: str, settings: ProviderSettings, _data_dir: Path, _renderer: Renderer) -> Backend:
    return OpenAICompatible(settings, name)


def _reason(error: Exception) -> str:
    cause = error.__cause__ or error
    return str(cause) or type(cause).__name__

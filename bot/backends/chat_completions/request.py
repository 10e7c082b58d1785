"""Ask over HTTP for one answer: with retries, with clocks, read as it streams in.

What remains of a turn's cost is mostly waking up for every chunk (160 µs over aiohttp, 260 over
httpx), so a stream that flows is read in sips.
"""

import asyncio
import random
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Protocol

import aiohttp
import httpx2

from bot.backends.chat_completions import errors as faults
from bot.backends.chat_completions import retries as retrying
from bot.backends.chat_completions.errors import Endpoint, Fault
from bot.backends.chat_completions.reasoning import ANY, Thinking
from bot.backends.chat_completions.retries import CircuitBreaker, RetryBudget
from bot.backends.chat_completions.timeouts import Clocks
from bot.backends.chat_completions.wire import Reading
from bot.chat.prompt import Delta, Finish, FinishReason, ReasoningDelta
from bot.errors import BackendInterrupted, BackendUnavailable
from bot.ports import Clock
from bot.runtime.clock import SystemClock
from bot.settings import ProviderSettings

_PROMPT_DELTAS = 4  # these come as soon as they can; a short answer has no more
_SIP_SECONDS = 0.04  # far less than any chat's pace of edits
_FULL_CHUNK_BYTES = 4096  # more is waiting: read on
_AT_ONCE_SECONDS = 0.001
_CUT_OFF = "The model stopped in the middle of its answer."
_MAX_ERROR_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Request:
    """A question in the form that goes out."""

    path: str
    body: bytes
    model: str  # for what is said when it fails
    stop: Sequence[str]  # searched for here, whatever the service does
    thinking: Thinking = ANY


class HttpRefusal(Exception):
    """An HTTP answer that is an error, read no further than it is of use."""

    def __init__(self, status: int, headers: httpx2.Headers, body: bytes) -> None:
        super().__init__(status)
        self.status = status
        self.headers = headers
        self.body = body


class Unreached(Exception):
    """No answer at all; says why."""


class Connection(Protocol):
    """The way to one service."""

    async def post(self, path: str, body: bytes) -> httpx2.Response:
        """Send this and give an answer whose body is still to be read.

        Raises:
            HttpRefusal: the answer is an error.
            Unreached: there is none.
        """
        ...


class Answering:
    """The questions to one service: they share a retry budget and a circuit breaker."""

    def __init__(
        self,
        settings: ProviderSettings,
        endpoint: Endpoint,
        connection: Connection,
        *,
        max_retries: int = retrying.MAX_RETRIES,
        breaker: CircuitBreaker | None = None,
        clock: Clock | None = None,
        dice: random.Random | None = None,
    ) -> None:
        self._settings = settings
        self._endpoint = endpoint
        self._connection = connection
        self._max_retries = max_retries
        self._clock = clock or SystemClock()
        self._dice = dice or random.SystemRandom()
        self._budget = RetryBudget()
        self._breaker = breaker or CircuitBreaker()

    async def answer(
        self, request: Request
    ) -> AsyncGenerator[Delta | ReasoningDelta | Finish, None]:
        """Send a request that is ready; behaves as `Backend.generate` does."""
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

    def _pause(self, fault: Fault, retries: int) -> float | None:
        """Seconds until the next try; None when there should be none."""
        if not fault.again or retries >= self._max_retries:
            return None
        if fault.pause_seconds > retrying.MAX_PAUSE_SECONDS or not self._budget.take():
            return None
        return fault.pause_seconds + self._dice.uniform(0, retrying.backoff_ceiling(retries))

    async def _attempt(
        self, request: Request, deadline: float
    ) -> AsyncGenerator[Delta | ReasoningDelta | Finish, None]:
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
                        yield ReasoningDelta(heard.thought)
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
            raise faults.cut(self._endpoint, reason(error)) from error

    async def _post(self, request: Request) -> httpx2.Response:
        try:
            return await self._connection.post(request.path, request.body)
        except HttpRefusal as refused:
            raise self.refusal(refused, request.model) from None
        except Unreached as error:
            raise faults.unreachable(self._endpoint, str(error)) from error

    def refusal(self, refused: HttpRefusal, model: str) -> Fault:
        """What an error of the service means."""
        return faults.from_status(
            self._endpoint, model, refused.status, refused.headers, refused.body, self._clock.now()
        )


def reason(error: Exception) -> str:
    """What a client's error says; some say it only in their cause."""
    cause = error.__cause__ or error
    return str(cause) or type(cause).__name__


async def stop_at_errors(response: httpx2.Response) -> None:
    """Raise `HttpRefusal` for an error; a client would read its whole body, however long."""
    if response.status_code < httpx2.codes.MULTIPLE_CHOICES:
        return
    body = b""
    async with aclosing(response.aiter_raw()) as chunks:
        async for chunk in chunks:
            body += chunk
            if len(body) >= _MAX_ERROR_BYTES:
                break
    raise HttpRefusal(response.status_code, response.headers, body[:_MAX_ERROR_BYTES])

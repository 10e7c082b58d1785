"""Any service that speaks OpenAI's chat completions, far away or next door.

The openai client brings connections and authentication. Messages go around its typed transform and
the stream around its objects: those two cost ten times everything else in a turn (150 µs for each
message of the history, 130 µs for each chunk).
"""

import asyncio
import random
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path

import httpx2
import openai
from openai import RequestOptions
from typing_extensions import override

from bot.backends import faults, retrying
from bot.backends.clocks import Clocks
from bot.backends.completions import Reading, to_wire
from bot.backends.faults import Endpoint, Fault
from bot.backends.retrying import CircuitBreaker, RetryBudget
from bot.chat.prompt import Delta, Finish, FinishReason, Prompt
from bot.clock import SystemClock
from bot.errors import BackendInterrupted, BackendUnavailable
from bot.ports import Backend, Clock
from bot.settings import ProviderSettings

_MAX_ERROR_BYTES = 64 * 1024
_CHECK_SECONDS = 10.0
_MAX_CONNECTIONS = 1000  # a waiting chat holds one
_CUT_OFF = "The model stopped in the middle of its answer."
_LISTS_NO_MODELS = frozenset({404, 405, 501})


class _Refused(Exception):
    """An HTTP answer that is an error, read no further than it is of use."""

    def __init__(self, status: int, headers: httpx2.Headers, body: bytes) -> None:
        super().__init__(status)
        self.status = status
        self.headers = headers
        self.body = body


class OpenAICompatible(Backend):
    """One provider, with its own connections, retry budget and circuit breaker."""

    def __init__(
        self,
        settings: ProviderSettings,
        name: str,
        *,
        transport: httpx2.AsyncBaseTransport | None = None,
        max_retries: int = retrying.MAX_RETRIES,
        clock: Clock | None = None,
        dice: random.Random | None = None,
    ) -> None:
        self._settings = settings
        self._endpoint = Endpoint(name, settings.base_url or "")
        self._max_retries = max_retries
        self._clock = clock or SystemClock()
        self._dice = dice or random.SystemRandom()
        self._budget = RetryBudget()
        self._breaker = CircuitBreaker()
        self._client = _client(settings, transport)
        self._options: RequestOptions = {"headers": _headers(settings), "follow_redirects": False}

    @override
    async def generate(self, prompt: Prompt) -> AsyncGenerator[Delta | Finish, None]:
        model = self._model(prompt.model)
        body = to_wire(prompt, model)
        deadline = asyncio.get_running_loop().time() + self._settings.total_seconds
        self._budget.call()
        retries = 0
        while True:
            if not self._breaker.admits(self._clock.monotonic()):
                raise BackendUnavailable(f"{self._endpoint} fails too often; it gets a rest")
            shown = False
            try:
                async with aclosing(self._attempt(body, model, deadline)) as pieces:
                    async for piece in pieces:
                        shown = True
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
        except _Refused as refused:
            fault = self._refusal(refused, self._settings.model or "default")
            # Not every service lists its models, but every one says when a key is wrong.
            if refused.status in _LISTS_NO_MODELS:
                return f"answers at {self._endpoint.base_url}, but lists no models"
            raise BackendUnavailable(str(fault), fault.notice) from fault
        except (openai.APIConnectionError, TimeoutError) as error:
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
        self, body: bytes, model: str, deadline: float
    ) -> AsyncGenerator[Delta | Finish, None]:
        """Ask once; raises `Fault`. Closing it closes the connection, which stops the model."""
        clocks = Clocks(self._settings, self._endpoint, deadline)
        response = await clocks.within(self._post(body, model))
        try:
            kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
            if kind == "text/html":
                raise faults.garbled(self._endpoint, "a web page")
            streamed = kind != "application/json"
            reading = Reading(self._endpoint, model, streamed=streamed, now=self._clock.now())
            async with aclosing(response.aiter_raw()) as chunks:
                while not reading.done:
                    chunk = await self._next(chunks, reading, clocks)
                    heard = reading.feed(chunk) if chunk else reading.end()
                    if heard.progress:
                        clocks.progress(spoken=bool(heard.text))
                    if reading.reason is not None:
                        clocks.finished()
                    if heard.text:
                        yield Delta(heard.text)
                    if heard.fault and reading.reason is None:
                        raise heard.fault
        finally:
            await response.aclose()
        yield Finish(reading.reason or FinishReason.STOP, reading.usage)

    async def _next(
        self, chunks: AsyncGenerator[bytes, None], reading: Reading, clocks: Clocks
    ) -> bytes:
        """The next bytes, none at the end; raises `Fault`."""
        try:
            return await clocks.within(anext(chunks, b""))
        except (Fault, httpx2.TransportError) as error:
            if reading.reason is not None:
                return b""  # the answer is whole, only its usage is missing
            if isinstance(error, Fault):
                raise
            raise faults.cut(self._endpoint, _reason(error)) from error

    async def _post(self, body: bytes, model: str) -> httpx2.Response:
        """Send the request and get an answer whose body is still to be read; raises `Fault`."""
        try:
            return await self._client.post(
                "/chat/completions",
                cast_to=httpx2.Response,
                content=body,
                options=self._options,
            )
        except _Refused as refused:
            raise self._refusal(refused, model) from None
        except openai.APIConnectionError as error:
            raise faults.unreachable(self._endpoint, _reason(error)) from error

    def _refusal(self, refused: _Refused, model: str) -> Fault:
        return faults.from_status(
            self._endpoint, model, refused.status, refused.headers, refused.body, self._clock.now()
        )


def make(name: str, settings: ProviderSettings, _data_dir: Path) -> Backend:
    return OpenAICompatible(settings, name)


def _client(
    settings: ProviderSettings, transport: httpx2.AsyncBaseTransport | None
) -> openai.AsyncOpenAI:
    timeout = httpx2.Timeout(None, connect=settings.connect_seconds, pool=settings.connect_seconds)
    return openai.AsyncOpenAI(
        base_url=settings.base_url,
        api_key=settings.api_key.get_secret_value() if settings.api_key else "none",
        timeout=timeout,
        max_retries=0,  # the only retry loop is above
        http_client=openai.DefaultAsyncHttpxClient(
            transport=transport,
            trust_env=transport is None,  # a proxy is for what is far away
            timeout=timeout,
            limits=httpx2.Limits(max_connections=_MAX_CONNECTIONS),
            event_hooks={"response": [_stop_at_errors]},
        ),
    )


def _headers(settings: ProviderSettings) -> dict[str, str | openai.Omit]:
    headers: dict[str, str | openai.Omit] = {
        "X-Stainless-Raw-Response": "stream",  # tells the client to leave the body to us
        "Accept-Encoding": "identity",  # nobody can send us a bomb to unpack
        # The client would send what it finds in OPENAI_* variables, to whatever provider.
        "OpenAI-Organization": openai.Omit(),
        "OpenAI-Project": openai.Omit(),
    }
    if settings.api_key is None:
        headers["Authorization"] = openai.Omit()
    return headers


async def _stop_at_errors(response: httpx2.Response) -> None:
    # The client would read an error's whole body, however long, and keep its text.
    if response.status_code < httpx2.codes.MULTIPLE_CHOICES:
        return
    body = b""
    async with aclosing(response.aiter_raw()) as chunks:
        async for chunk in chunks:
            body += chunk
            if len(body) >= _MAX_ERROR_BYTES:
                break
    raise _Refused(response.status_code, response.headers, body[:_MAX_ERROR_BYTES])


def _reason(error: Exception) -> str:
    cause = error.__cause__ or error
    return str(cause) or type(cause).__name__

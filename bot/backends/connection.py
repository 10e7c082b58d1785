"""The openai client's connections to one provider: its own key, nothing from the environment."""

from collections.abc import Awaitable

import aiohttp
import httpx2
import openai
from openai import RequestOptions
from typing_extensions import override

from bot.backends.answering import Connection, Unreached, reason, stop_at_errors
from bot.settings import ProviderSettings

_BROKEN = (
    aiohttp.ServerDisconnectedError,
    aiohttp.ClientOSError,
    aiohttp.ClientConnectionResetError,
)
# Every waiting chat holds a connection, and a calm chat should not need a new one for each message.
_LIMITS = httpx2.Limits(max_connections=1000, keepalive_expiry=30)


class OpenAIConnection(Connection):
    """Over aiohttp: half the CPU of the client's usual one."""

    def __init__(
        self, settings: ProviderSettings, transport: httpx2.AsyncBaseTransport | None = None
    ) -> None:
        self._client = _client(settings, transport)
        self._options = _options(settings)
        self._has_answered = False  # so there may be connections that were kept

    @override
    async def post(self, path: str, body: bytes) -> httpx2.Response:
        try:
            response = await self._post(path, body)
        except Unreached as error:
            if not (self._has_answered and _was_closed(error)):
                raise
            response = await self._post(path, body)
        self._has_answered = True
        return response

    async def _post(self, path: str, body: bytes) -> httpx2.Response:
        return await _reached(
            self._client.post(path, cast_to=httpx2.Response, content=body, options=self._options)
        )

    async def list_models(self) -> None:
        """Raise as `post` does."""
        asked = self._client.get("/models", cast_to=httpx2.Response, options=self._options)
        await (await _reached(asked)).aclose()

    async def close(self) -> None:
        await self._client.close()


async def _reached(answer: Awaitable[httpx2.Response]) -> httpx2.Response:
    try:
        return await answer
    except (openai.APIConnectionError, aiohttp.ClientError) as error:
        raise Unreached(reason(error)) from error


def _was_closed(error: BaseException) -> bool:
    """Whether the connection broke before any answer came.

    Some servers (llama.cpp's) say that they keep a connection and close it: whoever asks the next
    question just then is cut off, and needs no patience, only another connection.
    """
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, _BROKEN):
        cause = cause.__cause__
    return cause is not None and not isinstance(cause, aiohttp.ClientConnectorError)


def _client(
    settings: ProviderSettings, transport: httpx2.AsyncBaseTransport | None
) -> openai.AsyncOpenAI:
    timeout = httpx2.Timeout(None, connect=settings.connect_seconds, pool=settings.connect_seconds)
    return openai.AsyncOpenAI(
        base_url=settings.base_url,
        api_key=settings.api_key.get_secret_value() if settings.api_key else "none",
        timeout=timeout,
        max_retries=0,  # the only retry loop is ours
        http_client=openai.DefaultAioHttpClient(
            transport=transport,
            trust_env=transport is None,  # a proxy is for what is far away
            timeout=timeout,
            limits=_LIMITS,
            event_hooks={"response": [stop_at_errors]},
        ),
    )


def _options(settings: ProviderSettings) -> RequestOptions:
    """What goes with every request of this provider."""
    headers: dict[str, str | openai.Omit] = {
        "X-Stainless-Raw-Response": "stream",  # tells the client to leave the body to us
        "Accept-Encoding": "identity",  # nobody can send us a bomb to unpack
        # The client would send what it finds in OPENAI_* variables, to whatever provider.
        "OpenAI-Organization": openai.Omit(),
        "OpenAI-Project": openai.Omit(),
    }
    if settings.api_key is None:
        headers["Authorization"] = openai.Omit()
    return {"headers": headers, "follow_redirects": False}

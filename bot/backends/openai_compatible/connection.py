"""The openai client's connections to one provider: its own key, nothing from the environment."""

import aiohttp
import httpx2
import openai
from typing_extensions import override

from bot.backends.chat_completions.request import Connection, Unreached, reason, stop_at_errors
from bot.settings import ProviderSettings

_BROKEN = (
    aiohttp.ServerDisconnectedError,
    aiohttp.ClientOSError,
    aiohttp.ClientConnectionResetError,
)
# Every waiting chat holds a connection, and a calm chat should not need a new one for each message.
_LIMITS = httpx2.Limits(max_connections=1000, keepalive_expiry=30)


class OpenAIConnection(Connection):
    """Over aiohttp: half the CPU of the client's usual one.

    Requests go around the client's own methods: the typed objects that those make of each cost
    more than sending it.
    """

    def __init__(
        self, settings: ProviderSettings, transport: httpx2.AsyncBaseTransport | None = None
    ) -> None:
        self._connections = _connections(settings, transport)
        self._headers = _headers(settings, self._connections)
        self._has_answered = False  # so there may be connections that were kept

    @override
    async def post(self, path: str, body: bytes) -> httpx2.Response:
        try:
            response = await self._send("POST", path, body)
        except Unreached as error:
            if not (self._has_answered and _was_closed(error)):
                raise
            response = await self._send("POST", path, body)
        self._has_answered = True
        return response

    async def list_models(self) -> None:
        """Raise as `post` does."""
        await (await self._send("GET", "/models")).aclose()

    async def close(self) -> None:
        await self._connections.aclose()

    async def _send(self, method: str, path: str, body: bytes | None = None) -> httpx2.Response:
        request = self._connections.build_request(method, path, content=body, headers=self._headers)
        try:
            return await self._connections.send(request, stream=True)
        except (httpx2.TransportError, aiohttp.ClientError) as error:
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


def _connections(
    settings: ProviderSettings, transport: httpx2.AsyncBaseTransport | None
) -> httpx2.AsyncClient:
    """The client's own, with our limits and no redirects: a key is for this provider only."""
    return openai.DefaultAioHttpClient(
        base_url=settings.base_url or "",
        transport=transport,
        trust_env=transport is None,  # a proxy is for what is far away
        timeout=httpx2.Timeout(
            None, connect=settings.connect_seconds, pool=settings.connect_seconds
        ),
        limits=_LIMITS,
        follow_redirects=False,
        event_hooks={"response": [stop_at_errors]},
    )


def _headers(settings: ProviderSettings, connections: httpx2.AsyncClient) -> dict[str, str]:
    """What the client says with every request to this provider."""
    key = settings.api_key.get_secret_value() if settings.api_key else "none"
    client = openai.AsyncOpenAI(base_url=settings.base_url, api_key=key, http_client=connections)
    said = {**client.default_headers, **client.auth_headers}
    said["Accept-Encoding"] = "identity"  # nobody can send us a bomb to unpack
    # The client would send what it finds in OPENAI_* variables, to whatever provider.
    unsaid = {"OpenAI-Organization", "OpenAI-Project"}
    if settings.api_key is None:
        unsaid.add("Authorization")
    return {
        name: value for name, value in said.items() if isinstance(value, str) and name not in unsaid
    }

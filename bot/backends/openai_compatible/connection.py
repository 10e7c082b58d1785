"""Send requests through the openai client, with one of the provider's keys.

Requests are plain dictionaries, and our own parser decodes the events. The client's typed messages
and chunks cost ten times as much CPU time as the rest of an answer, and its decoder fails on events
that some services send (docs/decisions/0006).
"""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from http import HTTPStatus
from typing import Any, cast

import httpx2
import msgspec
from openai import APIStatusError, AsyncAzureOpenAI, AsyncOpenAI, Omit, RequestOptions, not_given
from pydantic import SecretStr
from typing_extensions import override

from bot import __version__
from bot.backends.chat_completions.key_rotation import KeyedConnection
from bot.backends.chat_completions.request_runner import (
    MAX_ERROR_BYTES,
    HttpStatusError,
    read_model_list,
    request_with_idle_retry,
)
from bot.backends.chat_completions.streaming import MAX_RESPONSE_BYTES
from bot.backends.openai_compatible.settings import OpenAISettings
from bot.runtime.http_client import HttpClient, HttpResponse

_MODEL_LIST_TIMEOUT_SECONDS = 10.0
_DEFAULT_AUDIO_FILE_NAME = "voice.ogg"  # services check the suffix
_STAINLESS_HEADERS = tuple(
    f"X-Stainless-{name}"
    for name in (
        *("Lang", "Package-Version", "OS", "Arch", "Runtime", "Runtime-Version", "Async"),
        *("Retry-Count", "Read-Timeout"),
    )
)
_PLACEHOLDER_KEY = "none"  # the client requires a key; this one is not sent
_parse_url = lru_cache(maxsize=64)(httpx2.URL)
RESPONSE_EXTENSION_KEY = "troupe_response"
"""The name of the httpx response extension that holds our own `HttpResponse`."""

_CLIENT_OPTIONS: Mapping[str, object] = {
    "max_retries": 0,
    "security": {"bearer_auth": True},
    "idempotency_key": "-",  # never sent, but without it the client generates a key
    # Without these, the client copies its defaults for each request.
    "params": {},
    "post_parser": not_given,
    "follow_redirects": None,
    "synthesize_event_and_data": None,
    "stream_mode": "legacy",
    "extra_json": None,
}
_CONNECTION_HEADERS = frozenset({"host", "connection", "content-length"})


class OpenAIConnection(KeyedConnection):
    """An openai client for one provider and key, without retries or redirects."""

    def __init__(self, settings: OpenAISettings, key: SecretStr | None) -> None:
        self._headers = _build_headers(settings, key)
        self._client = _make_client(settings, key)
        is_azure_client = isinstance(self._client, AsyncAzureOpenAI)
        # The client spends half as much time on complete URLs.
        self._url_prefix = "" if is_azure_client else str(self._client.base_url).removesuffix("/")

    @override
    async def post(
        self,
        path: str,
        body: Mapping[str, object],
        deadline: float,
        headers: Mapping[str, str] | None = None,
    ) -> HttpResponse:
        seconds = deadline - asyncio.get_running_loop().time()
        with _translate_errors():
            response = await self._client.post(
                self._url_prefix + path,
                # For Azure, the client reads the body to put the deployment into the path.
                **({"content": msgspec.json.encode(body)} if self._url_prefix else {"body": body}),
                cast_to=httpx2.Response,
                stream=True,
                options=cast(
                    RequestOptions,
                    {
                        **_CLIENT_OPTIONS,
                        "headers": {**self._headers, **headers} if headers else self._headers,
                        "timeout": seconds,
                    },
                ),
            )
        return cast(HttpResponse, response.extensions[RESPONSE_EXTENSION_KEY])

    @override
    async def list_models(self) -> Sequence[str]:
        with _translate_errors():
            response = await self._client.models.with_raw_response.list(
                extra_headers=self._headers, timeout=_MODEL_LIST_TIMEOUT_SECONDS
            )
        return read_model_list(response.content)

    async def embed(self, model: str, inputs: list[str], seconds: float) -> bytes:
        """Return the body of an embeddings response; raises the same errors as `post`."""
        with _translate_errors():
            response = await self._client.embeddings.with_raw_response.create(
                model=model,
                input=inputs,
                encoding_format="float",
                extra_headers=self._headers,
                timeout=seconds,
            )
        return response.content

    async def transcribe(self, model: str, name: str, audio: bytes, seconds: float) -> bytes:
        """Return the body of a transcription response; raises the same errors as `post`."""
        with _translate_errors():
            response = await self._client.audio.transcriptions.with_raw_response.create(
                file=(name or _DEFAULT_AUDIO_FILE_NAME, audio),
                model=model,
                response_format="json",
                extra_headers=self._headers,
                timeout=seconds,
            )
        return response.content

    async def moderate(self, model: str, texts: list[str], seconds: float) -> bytes:
        """Return the body of a moderation response; raises the same errors as `post`."""
        with _translate_errors():
            response = await self._client.moderations.with_raw_response.create(
                model=model, input=texts, extra_headers=self._headers, timeout=seconds
            )
        return response.content

    @override
    async def close(self) -> None:
        await self._client.close()


@contextmanager
def _translate_errors() -> Iterator[None]:
    try:
        yield
    except APIStatusError as error:
        response = error.response
        raise HttpStatusError(response.status_code, response.headers, response.content) from None


def _make_client(settings: OpenAISettings, key: SecretStr | None) -> AsyncOpenAI:
    url = httpx2.URL(settings.base_url or "")
    version, url_parameters = settings.api_version, dict(url.params)
    troupe_client = HttpClient(
        f"{url.scheme}://{url.netloc.decode('ascii')}", {}, connect_seconds=settings.connect_seconds
    )
    httpx_client = MinimalHttpxClient(HttpTransport(troupe_client))
    api_key = _PLACEHOLDER_KEY if key is None else key.get_secret_value()
    base_url = str(url.copy_with(query=None))
    if settings.is_azure and base_url.endswith("/openai"):  # the deployment is part of the path
        return AsyncAzureOpenAI(
            api_key=api_key,
            base_url=base_url,
            api_version=version,
            max_retries=0,
            default_query=url_parameters,
            http_client=httpx_client,
        )
    return AsyncOpenAI(
        api_key=api_key,
        base_url=base_url,
        max_retries=0,
        default_query={**url_parameters, **({"api-version": version} if version else {})},
        http_client=httpx_client,
    )


def _build_headers(settings: OpenAISettings, key: SecretStr | None) -> dict[str, str | Omit]:
    headers: dict[str, str | Omit] = {
        "User-Agent": f"troupe/{__version__}",
        # Otherwise the client reads these from environment variables meant for OpenAI itself.
        "OpenAI-Organization": Omit(),
        "OpenAI-Project": Omit(),
        # Without this, the client describes this machine in each request.
        **dict.fromkeys(_STAINLESS_HEADERS, Omit()),
    }
    if key is None or settings.is_azure:
        headers["Authorization"] = Omit()
    if key is not None and settings.is_azure:
        headers["api-key"] = key.get_secret_value()
    return headers | settings.basic_auth_headers


class MinimalHttpxClient(httpx2.AsyncClient):
    """An httpx client that neither merges URLs nor follows redirects, to save CPU time."""

    def __init__(self, transport: "HttpTransport") -> None:
        super().__init__(transport=transport)
        self._send_via_transport = transport.handle_async_request

    @override
    def build_request(self, method: str, url: httpx2.URL | str, **options: Any) -> httpx2.Request:
        timeout = httpx2.Timeout(options.pop("timeout"))
        extensions = {"timeout": timeout.as_dict()}
        return httpx2.Request(method, _parse_url(url), extensions=extensions, **options)

    @override
    async def send(
        self, request: httpx2.Request, *, stream: bool = False, **_: Any
    ) -> httpx2.Response:
        response = await self._send_via_transport(request)
        response.request = request
        if not stream:
            try:
                await response.aread()
            finally:
                await response.aclose()
        return response


class HttpTransport(httpx2.AsyncBaseTransport):
    """Sends httpx requests through Troupe's client; the read timeout limits the whole response."""

    def __init__(self, client: HttpClient) -> None:
        self._client = client

    @override
    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        deadline = asyncio.get_running_loop().time() + request.extensions["timeout"]["read"]
        response = await request_with_idle_retry(
            self._client,
            request.method,
            request.url.raw_path.decode("ascii"),
            await request.aread() or None,
            deadline,
            {
                name: value.decode()
                for key, value in request.headers.raw
                if (name := key.decode().lower()) not in _CONNECTION_HEADERS
            },
        )
        is_error = response.status >= HTTPStatus.MULTIPLE_CHOICES
        return httpx2.Response(
            response.status,
            # The client needs the headers of errors only. It must not decompress zip bombs.
            headers={
                name: value
                for name, value in response.headers.items()
                if is_error and name.lower() != "content-encoding"
            },
            stream=_ResponseBody(response, deadline),
            extensions={RESPONSE_EXTENSION_KEY: response},
        )

    @override
    async def aclose(self) -> None:
        await self._client.close()


class _ResponseBody(httpx2.AsyncByteStream):
    """A response's body, truncated if it is too long."""

    def __init__(self, response: HttpResponse, deadline: float) -> None:
        self._response = response
        self._deadline = deadline

    @override
    async def __aiter__(self) -> AsyncIterator[bytes]:
        is_error = self._response.status >= HTTPStatus.MULTIPLE_CHOICES
        max_bytes = MAX_ERROR_BYTES if is_error else MAX_RESPONSE_BYTES
        yield await self._response.read_all(self._deadline, max_bytes)

    @override
    async def aclose(self) -> None:
        await self._response.close()

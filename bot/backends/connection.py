"""Connections to one provider: its own key, nothing from the environment, bounded errors."""

from contextlib import aclosing

import httpx2
import openai
from openai import RequestOptions

from bot.settings import ProviderSettings

_MAX_ERROR_BYTES = 64 * 1024
# Every waiting chat holds a connection, and a calm chat should not need a new one for each message.
_LIMITS = httpx2.Limits(max_connections=1000, keepalive_expiry=30)


class HttpRefusal(Exception):
    """An HTTP answer that is an error, read no further than it is of use."""

    def __init__(self, status: int, headers: httpx2.Headers, body: bytes) -> None:
        super().__init__(status)
        self.status = status
        self.headers = headers
        self.body = body


def connect(
    settings: ProviderSettings, transport: httpx2.AsyncBaseTransport | None
) -> openai.AsyncOpenAI:
    """Make the connections of one provider; each of its errors is raised as `HttpRefusal`."""
    timeout = httpx2.Timeout(None, connect=settings.connect_seconds, pool=settings.connect_seconds)
    return openai.AsyncOpenAI(
        base_url=settings.base_url,
        api_key=settings.api_key.get_secret_value() if settings.api_key else "none",
        timeout=timeout,
        max_retries=0,  # the only retry loop is ours
        http_client=openai.DefaultAioHttpClient(  # over aiohttp: half the CPU of the usual one
            transport=transport,
            trust_env=transport is None,  # a proxy is for what is far away
            timeout=timeout,
            limits=_LIMITS,
            event_hooks={"response": [_stop_at_errors]},
        ),
    )


def request_options(settings: ProviderSettings) -> RequestOptions:
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
    raise HttpRefusal(response.status_code, response.headers, body[:_MAX_ERROR_BYTES])

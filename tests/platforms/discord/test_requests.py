"""Translation of failed requests to Discord."""

from types import SimpleNamespace
from typing import Any

import aiohttp
import discord
import pytest
from aiohttp.client_reqrep import ConnectionKey

from bot.errors import (
    ContentRefused,
    MessageNotFound,
    OutcomeUnknown,
    PlatformError,
    RateLimited,
    Refused,
    TokenRejected,
    Unreachable,
    WordsRefused,
)
from bot.platforms.discord.requests import translate
from bot.platforms.discord.rest.refusals import ChannelNotFound, ThreadExists, WebhookNotFound

KEY = ConnectionKey("discord.com", 443, True, True, None, None, None)


def http_error(
    status: int, code: int = 0, *, retry_after: str | None = None
) -> discord.HTTPException:
    headers = {"Retry-After": retry_after} if retry_after else {}
    response: Any = SimpleNamespace(status=status, reason="", headers=headers)
    return discord.HTTPException(response, {"code": code, "message": "no"})


@pytest.mark.parametrize(
    ("error", "meaning"),
    [
        (http_error(400, 50035), ContentRefused),
        (http_error(400, 200000), WordsRefused),
        (http_error(400, 200001), WordsRefused),
        (http_error(403, 50001), Refused),
        (http_error(403, 50013), Refused),
        (http_error(400, 50083), Refused),
        (http_error(400, 160005), Refused),
        (http_error(404, 10003), ChannelNotFound),
        (http_error(400, 160004), ThreadExists),
        (http_error(404, 10008), MessageNotFound),
        (http_error(401), TokenRejected),
        (http_error(401, 50027), WebhookNotFound),
        (http_error(429), RateLimited),
        (http_error(500), OutcomeUnknown),
        (http_error(503), OutcomeUnknown),
        (discord.RateLimited(30.0), RateLimited),
        (discord.LoginFailure("no"), TokenRejected),
        (aiohttp.ClientConnectorError(KEY, ConnectionRefusedError(111, "refused")), Unreachable),
        (aiohttp.ConnectionTimeoutError(), Unreachable),
        (aiohttp.ServerDisconnectedError(), OutcomeUnknown),
        (aiohttp.ClientOSError(104, "reset"), OutcomeUnknown),
        (aiohttp.ClientPayloadError(), OutcomeUnknown),
        (TimeoutError(), OutcomeUnknown),
        (ConnectionResetError(104, "reset"), OutcomeUnknown),
    ],
)
def test_request_errors_are_translated(error: Exception, meaning: type[PlatformError]) -> None:
    assert type(translate(error)) is meaning


@pytest.mark.parametrize(
    ("error", "seconds"),
    [
        (discord.RateLimited(30.0), 30.0),
        (http_error(429, retry_after="7"), 7.0),
        (http_error(429), 5.0),
        (http_error(429, retry_after="Sat, 21 Nov 2026 10:00:00 GMT"), 5.0),
    ],
)
def test_rate_limit_error_has_retry_after(error: Exception, seconds: float) -> None:
    limited = translate(error)
    assert isinstance(limited, RateLimited)
    assert limited.retry_after_seconds == seconds

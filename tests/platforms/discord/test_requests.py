"""What a failed request to Discord means."""

from types import SimpleNamespace
from typing import Any

import aiohttp
import discord
import pytest
from aiohttp.client_reqrep import ConnectionKey

from bot.errors import (
    MessageNotFound,
    OutcomeUnknown,
    PlatformError,
    PlatformFatal,
    RateLimited,
    Refused,
    Unreachable,
)
from bot.platforms.discord.requests import translate

KEY = ConnectionKey("discord.com", 443, True, True, None, None, None)


def said(status: int, code: int = 0, *, retry_after: str | None = None) -> discord.HTTPException:
    headers = {"Retry-After": retry_after} if retry_after else {}
    response: Any = SimpleNamespace(status=status, reason="", headers=headers)
    return discord.HTTPException(response, {"code": code, "message": "no"})


@pytest.mark.parametrize(
    ("error", "meaning"),
    [
        (said(400, 50035), Refused),
        (said(403, 50001), Refused),
        (said(404, 10003), Refused),
        (said(404, 10008), MessageNotFound),
        (said(401), PlatformFatal),
        (said(401, 50027), Refused),
        (said(429), RateLimited),
        (said(500), OutcomeUnknown),
        (said(503), OutcomeUnknown),
        (discord.RateLimited(30.0), RateLimited),
        (discord.LoginFailure("no"), PlatformFatal),
        (aiohttp.ClientConnectorError(KEY, ConnectionRefusedError(111, "refused")), Unreachable),
        (aiohttp.ConnectionTimeoutError(), Unreachable),
        (aiohttp.ServerDisconnectedError(), OutcomeUnknown),
        (aiohttp.ClientOSError(104, "reset"), OutcomeUnknown),
        (aiohttp.ClientPayloadError(), OutcomeUnknown),
        (TimeoutError(), OutcomeUnknown),
        (ConnectionResetError(104, "reset"), OutcomeUnknown),
    ],
)
def test_every_failure_has_one_meaning(error: Exception, meaning: type[PlatformError]) -> None:
    assert type(translate(error)) is meaning


@pytest.mark.parametrize(
    ("error", "seconds"),
    [
        (discord.RateLimited(30.0), 30.0),
        (said(429, retry_after="7"), 7.0),
        (said(429), 5.0),
        (said(429, retry_after="Sat, 21 Nov 2026 10:00:00 GMT"), 5.0),
    ],
)
def test_rate_limit_says_how_long(error: Exception, seconds: float) -> None:
    limited = translate(error)
    assert isinstance(limited, RateLimited)
    assert limited.retry_after_seconds == seconds

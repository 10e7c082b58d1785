"""One request to Discord: its timeout, and its failures as a `PlatformError`."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import aiohttp
import discord

from bot.errors import (
    MessageNotFound,
    OutcomeUnknown,
    PlatformError,
    PlatformFatal,
    RateLimited,
    Refused,
    Unreachable,
)
from bot.platforms.discord.settings import BOT_REJECTED

REQUEST_SECONDS = 10.0
REQUEST_ERRORS: Final = (discord.DiscordException, aiohttp.ClientError, OSError)
_UNKNOWN_MESSAGE, _INVALID_WEBHOOK_TOKEN = 10008, 50027
_DEFAULT_RETRY_SECONDS = 5.0


@asynccontextmanager
async def bounded_request(client: discord.Client) -> AsyncIterator[None]:
    """Bound the requests in this block by a timeout.

    Raises:
        PlatformError: what `translate` made of the failure.
    """
    try:
        async with asyncio.timeout(REQUEST_SECONDS):
            try:
                yield
            except asyncio.CancelledError:
                # After a global 429 discord.py blocks all requests, and only the request that was
                # just cancelled would have unblocked them.
                client.http._global_over.set()  # noqa: SLF001
                raise
    except REQUEST_ERRORS as error:
        raise translate(error) from error
    except RuntimeError as error:
        if client.is_closed():  # aiohttp raises it before anything is sent
            raise Unreachable("the connection to Discord has ended") from error
        raise


def translate(error: Exception) -> PlatformError:
    """Return what a failed request means; `error` is one of `REQUEST_ERRORS`."""
    match error:
        case discord.RateLimited():
            return RateLimited(error.retry_after)
        case discord.LoginFailure():
            return PlatformFatal(BOT_REJECTED)
        case discord.HTTPException():
            return _by_status(error)
        case aiohttp.ClientConnectorError() | aiohttp.ConnectionTimeoutError():
            return Unreachable(f"Discord cannot be reached: {error}")
        case TimeoutError():
            return OutcomeUnknown(f"Discord did not answer within {REQUEST_SECONDS:.0f} s")
        case _:
            return OutcomeUnknown(f"the answer of Discord was lost: {type(error).__name__} {error}")


def _by_status(error: discord.HTTPException) -> PlatformError:
    answer = f"Discord answered {error.status} ({error.code}): {error.text}"
    if error.code == _UNKNOWN_MESSAGE:
        return MessageNotFound(answer)
    if error.code == _INVALID_WEBHOOK_TOKEN:
        return Refused(answer)
    match error.status:
        case 401:
            return PlatformFatal(BOT_REJECTED)
        case 429:
            return RateLimited(_retry_after(error))
        case status if status >= 500:
            return OutcomeUnknown(answer)
        case _:
            return Refused(answer)


def _retry_after(error: discord.HTTPException) -> float:
    try:
        return float(error.response.headers["Retry-After"])
    except (KeyError, ValueError):
        return _DEFAULT_RETRY_SECONDS

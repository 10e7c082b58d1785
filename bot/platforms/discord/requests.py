"""One request to Discord: bounded in time, and what its failure means said in our words."""

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

REQUEST_SECONDS = 10.0
REQUEST_ERRORS: Final = (discord.DiscordException, aiohttp.ClientError, OSError)
INVALID_TOKEN = (
    "Discord does not know this bot token; copy a new one from the developer portal"
    " (Bot > Reset Token) into TROUPE_DISCORD__TOKEN"
)
_UNKNOWN_MESSAGE, _INVALID_WEBHOOK_TOKEN = 10008, 50027
_DEFAULT_RETRY_SECONDS = 5.0


@asynccontextmanager
async def bounded_request(client: discord.Client) -> AsyncIterator[None]:
    """Ask Discord something within this block; fails with a `PlatformError` only."""
    try:
        async with asyncio.timeout(REQUEST_SECONDS):
            try:
                yield
            except asyncio.CancelledError:
                # After a global 429 discord.py shuts a gate for all requests, and only the one
                # that was just cancelled would have opened it again.
                client.http._global_over.set()  # noqa: SLF001
                raise
    except REQUEST_ERRORS as error:
        raise translate(error) from error
    except RuntimeError as error:
        if client.is_closed():  # aiohttp refuses a closed session before anything is sent
            raise Unreachable("the connection to Discord has ended") from error
        raise


def translate(error: Exception) -> PlatformError:
    """Say what a failed request means: `error` is one of `REQUEST_ERRORS`."""
    match error:
        case discord.RateLimited():
            return RateLimited(error.retry_after)
        case discord.LoginFailure():
            return PlatformFatal(INVALID_TOKEN)
        case discord.HTTPException():
            return _by_status(error)
        case aiohttp.ClientConnectorError() | aiohttp.ConnectionTimeoutError():
            return Unreachable(f"Discord cannot be reached: {error}")
        case TimeoutError():
            return OutcomeUnknown(f"Discord did not answer within {REQUEST_SECONDS:.0f} s")
        case _:
            return OutcomeUnknown(f"the answer of Discord was lost: {type(error).__name__} {error}")


def _by_status(error: discord.HTTPException) -> PlatformError:
    said = f"Discord said {error.status} ({error.code}): {error.text}"
    if error.code == _UNKNOWN_MESSAGE:
        return MessageNotFound(said)
    if error.code == _INVALID_WEBHOOK_TOKEN:
        return Refused(said)
    match error.status:
        case 401:
            return PlatformFatal(INVALID_TOKEN)
        case 429:
            return RateLimited(_retry_after(error))
        case status if status >= 500:
            return OutcomeUnknown(said)
        case _:
            return Refused(said)


def _retry_after(error: discord.HTTPException) -> float:
    try:
        return float(error.response.headers["Retry-After"])
    except (KeyError, ValueError):
        return _DEFAULT_RETRY_SECONDS

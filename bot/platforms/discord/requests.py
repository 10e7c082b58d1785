"""One request over discord.py: its timeout, and its failures as a `PlatformError`."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import aiohttp
import discord

from bot.errors import OutcomeUnknown, PlatformError, RateLimited, TokenRejected, Unreachable
from bot.platforms.discord.rest.client import REQUEST_SECONDS
from bot.platforms.discord.rest.refusals import translate_refusal
from bot.platforms.discord.settings import BOT_REJECTED

REQUEST_ERRORS: Final = (discord.DiscordException, aiohttp.ClientError, OSError)


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
            return TokenRejected(BOT_REJECTED)
        case discord.HTTPException():
            retry_after = error.response.headers.get("Retry-After")
            return translate_refusal(error.status, error.code, error.text, retry_after)
        case aiohttp.ClientConnectorError() | aiohttp.ConnectionTimeoutError():
            return Unreachable(f"Discord cannot be reached: {error}")
        case TimeoutError():
            return OutcomeUnknown(f"Discord did not answer within {REQUEST_SECONDS:.0f} s")
        case _:
            return OutcomeUnknown(f"the answer of Discord was lost: {type(error).__name__} {error}")

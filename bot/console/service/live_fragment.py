"""Send a part of a page again whenever it has changed, as server-sent events.

The id of an event is a digest of what it shows: a page that reconnects with the newest one is sent
nothing until something changes, and any other one what is so now.
"""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from aiohttp import web

from bot.console.routes import (
    ConsoleRequest,
)
from bot.errors import StoreError
from bot.ports import Clock

Render: TypeAlias = Callable[[], Awaitable[str]]

_SECONDS_BETWEEN = 2.0
_WRITE_SECONDS = 20.0  # then a reader is gone
_STREAM_SECONDS = 300.0  # then the page connects again
_COMMENT_EVERY = 10  # times that nothing has changed: proxies end idle connections


async def stream_fragment(
    request: ConsoleRequest, response: web.StreamResponse, render: Render, clock: Clock
) -> None:
    """Send what `render` returns, now and when it differs, until its reader is gone or out."""
    response.headers["Content-Type"] = "text/event-stream"
    await response.prepare(request.http)
    shown = request.http.headers.get("Last-Event-ID", "")
    ends_at = clock.monotonic() + _STREAM_SECONDS
    unchanged = 0
    try:
        while clock.monotonic() < ends_at and await request.is_still_let_in():
            html = await render()
            digest = hashlib.sha256(html.encode()).hexdigest()[:16]
            unchanged = unchanged + 1 if digest == shown else 0
            if digest != shown:
                lines = "".join(f"data: {line}\n" for line in html.splitlines())
                await _write(response, f"id: {digest}\n{lines}\n")
                shown = digest
            elif unchanged % _COMMENT_EVERY == 1:
                await _write(response, ": unchanged\n\n")
            await clock.sleep(_SECONDS_BETWEEN)
    except (ConnectionError, TimeoutError, StoreError):
        return  # the page is gone, has stopped reading, or the database fails


async def _write(response: web.StreamResponse, text: str) -> None:
    async with asyncio.timeout(_WRITE_SECONDS):
        await response.write(text.encode())

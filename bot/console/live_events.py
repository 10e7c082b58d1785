"""Server-sent events: the changed messages of a channel."""

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence

from aiohttp import web

from bot.chat.web_channel import WebMessage
from bot.console.routes import ConsoleRequest, protected
from bot.errors import StoreError
from bot.ports import Clock
from bot.storage.web_channels import SqlWebChannels

RenderChanges = Callable[[Sequence[WebMessage]], Awaitable[tuple[Sequence[str], str]]]
"""Returns each message's HTML (empty if it is not shown), and the header's HTML."""

_MAX_CHANGES = 50
_POLL_SECONDS = 5.0  # for changes of other processes whose signal was lost
_WRITE_SECONDS = 20.0  # then a reader is gone
_STREAM_SECONDS = 300.0  # then the page connects again
_CHECK_SECONDS = 5.0  # between checks of the session


async def stream_events(
    request: ConsoleRequest, events: AsyncGenerator[str, None], clock: Clock
) -> web.StreamResponse:
    """Send events until the page closes, its session ends, or it should reconnect."""
    response = protected(web.StreamResponse())
    response.headers["Content-Type"] = "text/event-stream"
    await response.prepare(request.http)
    ends_at = clock.monotonic() + _STREAM_SECONDS
    check_at = clock.monotonic() + _CHECK_SECONDS
    # The page is gone, has stopped reading, or the database fails.
    with contextlib.suppress(ConnectionError, TimeoutError, StoreError):
        async with contextlib.aclosing(events):
            async for event in events:
                if clock.monotonic() >= check_at:
                    if clock.monotonic() >= ends_at or not await request.is_still_admitted():
                        break
                    check_at = clock.monotonic() + _CHECK_SECONDS
                async with asyncio.timeout(_WRITE_SECONDS):
                    await response.write(event.encode())
    return response


async def channel_events(
    channels: SqlWebChannels, channel_id: str, after: int, render: RenderChanges
) -> AsyncGenerator[str, None]:
    """Yield a channel's changes since a revision.

    An event's id is the channel's revision: a page that reconnects gets each message changed since
    then once, in its current form. So a slow page skips intermediate versions.
    """
    is_changed = asyncio.Event()

    def note(channel_ids: Sequence[str]) -> None:
        if channel_id in channel_ids:
            is_changed.set()

    stop_watching = channels.on_change(note)
    try:
        while True:
            is_changed.clear()
            changes = await channels.changed(channel_id, after, _MAX_CHANGES)
            pages, about = await render(changes)
            for one, html in zip(changes, pages, strict=True):
                shown = {"id": one.id, "position": one.position, "html": html, "about": about}
                yield f"id: {one.revision}\ndata: {json.dumps(shown)}\n\n"
                after = one.revision
            if not changes:
                yield ": waiting\n\n"
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_POLL_SECONDS):
                        await is_changed.wait()
    finally:
        stop_watching()

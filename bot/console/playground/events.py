"""Send what changes in a channel to an open page, as server-sent events.

The id of an event is the revision of the channel: a page that reconnects gets what changed since,
each message once, as it reads now. So a page that reads slowly skips what was overwritten, and
holds up nobody.
"""

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Sequence

from aiohttp import web

from bot.chat.playground.web_channel import WebChannel, WebMessage
from bot.console.routes import (
    ConsoleRequest,
)
from bot.errors import StoreError
from bot.ports import Clock, WebChannels

RenderChanges = Callable[[Sequence[WebMessage]], Awaitable[Sequence[str]]]
"""Returns the HTML of each message; empty for one that is not shown."""

_MAX_CHANGES = 50
_POLL_SECONDS = 5.0  # for changes of other processes whose signal was lost
_WRITE_SECONDS = 20.0  # then a reader is gone
_STREAM_SECONDS = 300.0  # then the page connects again
_CHECK_SECONDS = 5.0  # between looks whether the reader is still let in


class ChannelEvents:
    """Streams the changes of one channel to one page."""

    def __init__(
        self, channels: WebChannels, channel: WebChannel, render: RenderChanges, clock: Clock
    ) -> None:
        self._channels = channels
        self._channel = channel
        self._render = render
        self._clock = clock
        self._is_changed = asyncio.Event()

    async def stream(
        self, request: ConsoleRequest, response: web.StreamResponse, after: int
    ) -> None:
        """Send what changes after a revision until the page is gone or its session has ended."""
        await response.prepare(request.http)
        ends_at = self._clock.monotonic() + _STREAM_SECONDS
        check_at = self._clock.monotonic() + _CHECK_SECONDS
        stop_watching = self._channels.on_change(self._note)
        try:
            while self._clock.monotonic() < ends_at:
                if self._clock.monotonic() >= check_at:
                    if not await request.is_still_let_in():
                        return
                    check_at = self._clock.monotonic() + _CHECK_SECONDS
                self._is_changed.clear()
                changes = await self._channels.changed(self._channel.id, after, _MAX_CHANGES)
                await self._write(response, changes)
                if changes:
                    after = changes[-1].revision
                else:
                    await self._wait()
        except (ConnectionError, TimeoutError, StoreError):
            return  # the page is gone, has stopped reading, or connects to a database that fails
        finally:
            stop_watching()

    async def _write(self, response: web.StreamResponse, changes: Sequence[WebMessage]) -> None:
        events = [
            f"id: {one.revision}\ndata: {_encode(one, html)}\n\n"
            for one, html in zip(changes, await self._render(changes), strict=True)
        ]
        async with asyncio.timeout(_WRITE_SECONDS):
            await response.write("".join(events or [": waiting\n\n"]).encode())

    async def _wait(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_POLL_SECONDS):
                await self._is_changed.wait()

    def _note(self, channel_ids: Sequence[str]) -> None:
        if self._channel.id in channel_ids:
            self._is_changed.set()


def _encode(message: WebMessage, html: str) -> str:
    return json.dumps({"id": message.id, "position": message.position, "html": html})

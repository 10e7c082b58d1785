"""Server-sent events: changed messages of a channel, and a part of a page that changes."""

import asyncio
import contextlib
import hashlib
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from aiohttp import web

from bot.chat.web_channel import WebChannel, WebMessage
from bot.console.routes import (
    ConsoleRequest,
)
from bot.errors import StoreError
from bot.ports import Clock
from bot.storage.web_channels import SqlWebChannels

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
        self, channels: SqlWebChannels, channel: WebChannel, render: RenderChanges, clock: Clock
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


Render: TypeAlias = Callable[[], Awaitable[str]]

_SECONDS_BETWEEN = 2.0
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

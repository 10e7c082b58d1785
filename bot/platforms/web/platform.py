"""The web platform: reads what pages have stored, and hands it to the intake."""

import asyncio
import contextlib
from dataclasses import replace
from datetime import UTC, datetime

from typing_extensions import override

from bot.chat.incoming import Incoming, Pressed, Said
from bot.chat.playground.web_channel import WEB_PLATFORM, WebChannel, WebMessage
from bot.errors import PlatformFatal
from bot.platforms.local_platform import LocalPlatform
from bot.platforms.spec import PlatformContext
from bot.platforms.stored_cursors import read_cursors, to_number
from bot.platforms.web.incoming import to_incoming
from bot.platforms.web.surface import WebSurface
from bot.ports import Intake, Platform, SilenceExplainer, Surface, WebChannels

_POLL_SECONDS = 2.0  # for changes of other processes whose signal was lost
_MAX_CHANGES = 100
_CURSORS = f"{WEB_PLATFORM}:"


class WebPlatform(LocalPlatform, SilenceExplainer):
    """Reads the changes of each channel after its cursor, which is stored with what was read.

    So a message is received once, whatever process stored it and whenever this one dies.
    """

    kind = WEB_PLATFORM
    account = "the playground of the console"

    def __init__(self, channels: WebChannels, context: PlatformContext) -> None:
        self._channels = channels
        self._context = context
        self._surface = WebSurface(channels, context.clock, context.limits_of)
        self._read_to: dict[str, int] = {}
        """By channel: the revision up to which its changes were read."""
        self._is_changed = asyncio.Event()

    @property
    @override
    def surface(self) -> Surface:
        return self._surface

    @override
    async def run(self, intake: Intake) -> None:
        stored = await intake.cursors(_CURSORS)
        read = read_cursors(stored, lambda name, at: (name.removeprefix(_CURSORS), to_number(at)))
        self._read_to = dict(read)
        stop_watching = self._channels.on_change(lambda _ids: self._is_changed.set())
        try:
            while True:
                self._is_changed.clear()
                for channel in await self._channels.all():
                    self._surface.set_look(channel.id, channel.look)
                    if channel.revision > self._read_to.get(channel.id, 0):
                        await self._read_changes(channel, intake)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_POLL_SECONDS):
                        await self._is_changed.wait()
        finally:
            stop_watching()

    @override
    async def explain_silence(self, said: Said, explanation: str) -> None:
        note = self._note(f"{said.message_id}:note", explanation)
        await self._channels.add(said.address.chat, [replace(note, reply_to=said.message_id)])

    async def _read_changes(self, channel: WebChannel, intake: Intake) -> None:
        known = self._read_to.get(channel.id, 0)
        changes = await self._channels.changed(channel.id, known, _MAX_CHANGES)
        events: list[Incoming] = []
        for message in changes:
            if message.author is None:
                continue
            event = to_incoming(channel, message, await self._replied_to(channel, message), known)
            if isinstance(event, Pressed) and await self._is_refused(channel, message, event):
                continue
            if event is not None:
                events.append(event)
        if not changes:
            self._read_to[channel.id] = channel.revision
            return
        newest = changes[-1].revision
        if events:
            await intake.receive(events, {f"{_CURSORS}{channel.id}": str(newest)})
        self._read_to[channel.id] = newest
        if newest < channel.revision:
            self._is_changed.set()

    async def _replied_to(self, channel: WebChannel, message: WebMessage) -> WebMessage | None:
        if message.reply_to is None or message.press is not None:
            return None
        return await self._channels.find(channel.id, message.reply_to)

    async def _is_refused(self, channel: WebChannel, message: WebMessage, press: Pressed) -> bool:
        refusal = await self._context.press_refusal(press)
        if refusal is not None:
            await self._channels.add(channel.id, [self._note(f"{message.id}:note", refusal)])
        return refusal is not None

    def _note(self, note_id: str, text: str) -> WebMessage:
        now = datetime.fromtimestamp(self._context.clock.now(), UTC)
        return WebMessage(note_id, None, text, now, is_note=True)


def make(_settings: None, context: PlatformContext) -> Platform:
    """Make the platform over the channels of the database.

    Raises:
        PlatformFatal: it was given none.
    """
    if context.web_channels is None:
        raise PlatformFatal("the web platform needs the channels of the database")
    return WebPlatform(context.web_channels, context)

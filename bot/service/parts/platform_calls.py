"""What other parts ask of the platform that a message came from."""

import contextlib
from collections.abc import Callable, Mapping, Sequence

from bot.chat.incoming import Address, MediaItem, Request, Said
from bot.errors import PlatformError, Refused
from bot.ports import FileSource, HistoryReader, Platform, SilenceExplainer
from bot.routing.preset_resolver import PresetResolver
from bot.texts.text import Text, language_of, translate


class PlatformCalls:
    """Calls the platform of an address.

    Args:
        platforms: returns those of this process by `Address.source`; called when one is needed, as
            platforms are built with parts that call them.
        resolver: knows where a preset observes.
    """

    def __init__(
        self, platforms: Callable[[], Mapping[str, Platform]], resolver: PresetResolver
    ) -> None:
        self._platforms = platforms
        self._resolver = resolver

    async def is_admin(self, incoming: Request) -> bool:
        """Return whether who asks is an administrator of the chat."""
        return await self._platforms()[incoming.address.source].is_admin(incoming)

    def asks_by_replies(self, address: Address) -> bool:
        """Return whether people write free values of menus in replies there."""
        return self._platforms()[address.source].surface.limits(address).asks_by_replies

    async def explain_silence(self, said: Said, explanation: Text) -> None:
        """Tell who spoke why nobody answers, where the platform can tell them alone."""
        platform = self._platforms()[said.address.source]
        if isinstance(platform, SilenceExplainer):
            shown = translate(explanation, language_of(said.locale))
            with contextlib.suppress(PlatformError):  # the channel was deleted
                await platform.explain_silence(said, shown)

    async def download(self, address: Address, item: MediaItem, max_bytes: int) -> bytes:
        """Return the bytes of a file of a message.

        Raises:
            Refused: the platform keeps no files, or not this one.
        """
        platform = self._platforms()[address.source]
        if not isinstance(platform, FileSource):
            raise Refused(f"{platform.name} keeps no files")
        return await platform.download(item, max_bytes)

    async def read_before(self, said: Said, limit: int) -> Sequence[Said]:
        """Return what was said before a message, where the platform keeps it and it may be read."""
        platform = self._platforms()[said.address.source]
        observes = await self._resolver.observes(said.scopes)
        if not (isinstance(platform, HistoryReader) and observes):
            return ()
        return await platform.read_before(said, limit)

    async def read_start(self, said: Said) -> Said | None:
        """Return the message that the thread of a message is about, where it may be read."""
        platform = self._platforms()[said.address.source]
        observes = await self._resolver.observes(said.scopes)
        return (
            await platform.read_start(said)
            if isinstance(platform, HistoryReader) and observes
            else None
        )

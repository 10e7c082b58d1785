"""After a restore: what people wrote before it is not answered, and what was forgotten stays so.

Platforms deliver it again, since the restored database does not know it.
"""

from dataclasses import replace

from bot.chat.console.operation import Restore
from bot.chat.incoming import Incoming, Said, address_of
from bot.chat.session import InboxMessage
from bot.ports import Restores


class RestoredMessages:
    """Knows which messages are from before the restore."""

    def __init__(self, restores: Restores) -> None:
        self._restores = restores
        self._newest: Restore | None = None

    async def load(self) -> None:
        """Read whether the database was restored; raises `StoreError`."""
        newest = await self._restores.newest()
        if newest is not None:  # histories of one channel share its messages
            forgotten = {(address_of(key).channel, name) for key, name in newest.forgotten}
            newest = replace(newest, forgotten=frozenset(forgotten))
        self._newest = newest

    def is_context(self, message: InboxMessage) -> bool:
        """Return whether a message has been answered before, as far as anybody knows."""
        newest = self._newest
        return newest is not None and message.incoming.at.timestamp() <= newest.answered_until

    def is_void(self, said: Said) -> bool:
        """Return whether a message was followed or forgotten before, so that nothing is done."""
        newest = self._newest
        if newest is None or (at := said.at.timestamp()) > newest.answered_until:
            return False
        if said.wake is not None and said.text.startswith("/"):
            return True  # its effect is in the backup or in the tombstones, or is nothing to repeat
        channel, key = said.address.channel, said.address.conversation
        until = max(newest.forgotten_until.get(one, 0.0) for one in (key, channel))
        return at <= until or self._is_forgotten(channel, said.message_id)

    def keep(self, event: Incoming) -> Incoming | None:
        """Return what to store of an event that a platform delivers; None: nothing of it."""
        if self._newest is None or not isinstance(event, Said):
            return event
        if self.is_void(event):
            return None
        quote = event.quote
        if quote is not None and self._is_forgotten(event.address.channel, quote.message_id):
            quote = replace(quote, text="", attachments=())
        return replace(event, quote=quote)

    def _is_forgotten(self, channel: str, message_id: str | None) -> bool:
        newest = self._newest
        return newest is not None and (channel, message_id or "") in newest.forgotten

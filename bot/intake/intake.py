"""Store received messages in the inbox, then wake the conversations that they belong to."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from typing_extensions import override

from bot.chat.incoming import Incoming
from bot.chat.storable import make_storable
from bot.ports import Inbox, Intake
from bot.telemetry.metrics import MESSAGES_RECEIVED


def _announce_nothing(_messages: Sequence[Incoming]) -> None:
    return


class InboxIntake(Intake):
    """Stores messages, then tells who works on them."""

    def __init__(
        self,
        inbox: Inbox,
        wake: Callable[[Sequence[str]], None],
        announce: Callable[[Sequence[Incoming]], None] = _announce_nothing,
    ) -> None:
        """Take the inbox, and who is told after messages are committed.

        Args:
            inbox: stores the messages.
            wake: takes their conversations.
            announce: takes the messages, some of which overtake those before them.
        """
        self._inbox = inbox
        self._wake = wake
        self._announce = announce

    @override
    async def receive(self, messages: Sequence[Incoming], cursors: Mapping[str, str]) -> None:
        await self._inbox.receive([_with_storable_text(one) for one in messages], cursors)
        for one in messages:
            MESSAGES_RECEIVED.labels(one.address.platform).inc()
        self._announce(messages)
        self._wake(list(dict.fromkeys(one.address.conversation for one in messages)))

    @override
    async def cursors(self, prefix: str) -> Mapping[str, str]:
        return await self._inbox.cursors(prefix)


def _with_storable_text(incoming: Incoming) -> Incoming:
    quote = incoming.quote
    return replace(
        incoming,
        text=make_storable(incoming.text),
        quote=make_storable(quote) if quote else quote,
        author=replace(incoming.author, name=make_storable(incoming.author.name)),
    )

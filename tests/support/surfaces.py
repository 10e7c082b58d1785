"""Helpers for the tests of all surfaces."""

from collections.abc import Set

from bot.chat.incoming import Address
from bot.chat.outgoing import Attachment, MessageContent, MessageSearch, OutgoingMessage
from bot.ports import Surface


async def find(
    surface: Surface,
    at: Address,
    text: str,
    file: Attachment | None = None,
    *,
    after: str | None,
    known: Set[str],
) -> str | None:
    message = OutgoingMessage(at, MessageContent(text), nonce="n", file=file)
    return await surface.find(message, MessageSearch(after, known))

"""Delete from web channels what was deleted from the history.

On other platforms what people wrote is the vendor's to keep; here it is ours.
"""

from collections.abc import Collection

from typing_extensions import override

from bot.chat.incoming import Address, address_of
from bot.chat.playground.web_channel import WEB_PLATFORM, WebMessage, inbox_key
from bot.chat.session import Claim
from bot.ports import ConversationMemory, Conversations, HistoryIndex, Inbox, WebChannels

_MAX_MESSAGES = 100_000


class ForgottenWebMessages(ConversationMemory):
    """Empties what people wrote that no turn holds any more, and the answers to it.

    Commands, which are no turns, stay, and so does what was not processed yet.
    """

    def __init__(
        self,
        channels: WebChannels,
        conversations: Conversations,
        index: HistoryIndex,
        inbox: Inbox,
    ) -> None:
        self._channels = channels
        self._conversations = conversations
        self._index = index
        self._inbox = inbox

    @override
    async def end_session(self, conversation: str) -> None:
        """Do nothing: what was said before stays to be read."""

    @override
    async def forget(self, conversation: str) -> None:
        address = address_of(conversation)
        if address.platform != WEB_PLATFORM:
            return
        histories = await self._index.conversations(address)
        follows_forgotten = False
        for message in await self._channels.newest(address.chat, _MAX_MESSAGES):
            if message.author is not None:
                follows_forgotten = await self._is_forgotten(address, message, histories)
            if follows_forgotten and not await self._has_turn(message, histories):
                await self._channels.replace(address.chat, message.emptied())

    async def _is_forgotten(
        self, address: Address, message: WebMessage, histories: Collection[str]
    ) -> bool:
        if not message.is_shown or message.text.startswith("/"):
            return False
        if await self._has_turn(message, histories):
            return False
        key = inbox_key(address.chat, message)
        return not await self._inbox.find_in_progress(address, key)

    async def _has_turn(self, message: WebMessage, histories: Collection[str]) -> bool:
        for key in histories:
            if await self._conversations.find_turns(Claim(key, 0, ""), [message.id]):
                return True
        return False

"""Map groups that became supergroups to their first chat id, so that conversations continue.

A supergroup has a new chat id, and its messages are numbered from 1 again. Addresses keep the first
chat id, so that history, settings and the outbox stay valid; only requests use the current id. We
add an offset to the supergroup's message ids, to distinguish them from those of the group.

See https://core.telegram.org/bots/api#message (migrate_to_chat_id) and #responseparameters.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from typing import TypeVar

import structlog
from aiogram.types import Update

from bot.chat.incoming import (
    Address,
    ButtonPress,
    ChatJoin,
    ForgetRequest,
    Incoming,
    IncomingMessage,
    MessageDeletion,
    MessageEdit,
    ReactionChange,
    SayRequest,
    source_name,
)
from bot.errors import StoreError
from bot.platforms.receiving import parse_cursors
from bot.platforms.telegram.api import ChatMoved
from bot.platforms.telegram.incoming import list_scopes
from bot.ports import Intake
from bot.value_class import value_class

_MESSAGE_ID_OFFSET = 10**12
"""Added to a supergroup's message ids, so that they exceed all ids of the former group."""

ResultT = TypeVar("ResultT")
_log = structlog.get_logger(__name__)


@value_class
class CurrentChat:
    """The current id of an address's chat, for requests."""

    id: int
    has_moved: bool = False

    def to_telegram_id(self, message_id: str | None) -> int | None:
        """Convert a stored message id to Telegram's, or return None if it is not in this chat."""
        if message_id is None or not message_id.isdecimal():  # ephemeral, see `incoming.py`
            return None
        number = int(message_id)
        if not self.has_moved:
            return number
        return number - _MESSAGE_ID_OFFSET if number > _MESSAGE_ID_OFFSET else None

    def to_stored_id(self, message_id: int) -> str:
        return str(message_id + _MESSAGE_ID_OFFSET if self.has_moved else message_id)


class MovedChats:
    """Tracks groups that became supergroups with new chat ids, and stores the ids as cursors."""

    def __init__(self, intake: Intake | None = None, bot_id: str = "") -> None:
        self._intake = intake
        self._cursor_prefix = f"{source_name('telegram', bot_id)}:moved:"
        self._first_chat_ids: dict[int, int] = {}  # by current id
        self._current_chat_ids: dict[int, int] = {}  # by first id
        self._is_loaded = False
        self._seen_group_ids: set[int] = set()

    async def load(self, intake: Intake) -> None:
        """Load stored moves, including those that other processes stored; raises `StoreError`."""
        self._intake = intake
        stored_moves = parse_cursors(
            await intake.cursors(self._cursor_prefix),
            lambda name, first_id: (int(first_id), int(name.removeprefix(self._cursor_prefix))),
        )
        for first_id, current_id in stored_moves:
            self._set_current_chat(first_id, current_id)
        self._is_loaded = True

    async def load_moved_chats(self, events: Iterable[Incoming], intake: Intake) -> None:
        """Load stored moves if any event comes from a group that this process has not seen yet."""
        chat_ids = {int(one.address.chat) for one in events}
        new_group_ids = {chat for chat in chat_ids - self._seen_group_ids if chat < 0}
        if new_group_ids:
            await self.load(intake)
            self._seen_group_ids |= new_group_ids

    def record_moves(self, updates: Iterable[Update]) -> Mapping[str, str]:
        """Record the moves announced in updates; return the cursors to store with the updates."""
        cursors: dict[str, str] = {}
        for update in updates:
            message = update.message
            if message is not None and message.migrate_to_chat_id is not None:
                cursors |= self._register_move(message.chat.id, message.migrate_to_chat_id)
            elif message is not None and message.migrate_from_chat_id is not None:
                cursors |= self._register_move(message.migrate_from_chat_id, message.chat.id)
        return cursors

    def map_to_first_chats(self, events: Iterable[Incoming]) -> list[Incoming]:
        """Return events with their groups' first addresses, but without announcements of moves."""
        return [one for one in map(self._map_to_first_chat, events) if one is not None]

    def _map_to_first_chat(self, incoming: Incoming) -> Incoming | None:
        first_id = self._first_chat_ids.get(int(incoming.address.chat))
        if first_id is None:
            return incoming
        address = replace(incoming.address, chat=str(first_id))
        match incoming:
            case IncomingMessage():
                return _move_to_first_chat(incoming, address)
            case MessageEdit():
                return replace(incoming, said=_move_to_first_chat(incoming.said, address))
            case ButtonPress():
                return replace(
                    incoming,
                    address=address,
                    scopes=list_scopes(address),
                    message_id=_add_id_offset(incoming.message_id),
                )
            case ReactionChange():
                message_id = _add_id_offset(incoming.message_id) or incoming.message_id
                scopes = list_scopes(address)
                return replace(incoming, address=address, scopes=scopes, message_id=message_id)
            case ChatJoin():
                return None  # the bot was already in the group before the move
            case MessageDeletion() | ForgetRequest() | SayRequest():
                return incoming  # Telegram never sends these

    async def call_in_chat(
        self, address: Address, request: Callable[[CurrentChat], Awaitable[ResultT]]
    ) -> ResultT:
        """Send a request to an address's current chat; if it just moved, retry in the new chat."""
        chat = await self._find_current_chat(address)
        try:
            return await request(chat)
        except ChatMoved as error:  # a request to the old chat has no effect
            await self._store_move(chat.id, error.new_chat_id)
        return await request(await self._find_current_chat(address))

    async def _find_current_chat(self, address: Address) -> CurrentChat:
        first_id = int(address.chat)
        if first_id < 0 and not self._is_loaded and self._intake is not None:
            try:
                await self.load(self._intake)
            except StoreError as error:
                _log.warning("moved_chats_not_read", reason=str(error))
        new_id = self._current_chat_ids.get(first_id)
        return CurrentChat(first_id) if new_id is None else CurrentChat(new_id, has_moved=True)

    async def _store_move(self, old_id: int, new_id: int) -> None:
        cursors = self._register_move(old_id, new_id)
        if self._intake is None:
            return
        try:
            await self._intake.receive((), cursors)
        except StoreError as error:  # Telegram repeats the error at the next request
            _log.warning("moved_chat_not_stored", reason=str(error))

    def _register_move(self, old_id: int, new_id: int) -> Mapping[str, str]:
        first_id = self._first_chat_ids.get(new_id, self._first_chat_ids.get(old_id, old_id))
        if new_id == first_id:
            return {}
        if new_id not in self._first_chat_ids:
            _log.info("telegram_chat_moved", first=first_id, now=new_id)
            self._set_current_chat(first_id, new_id)
        return {f"{self._cursor_prefix}{new_id}": str(first_id)}

    def _set_current_chat(self, first_id: int, current_id: int) -> None:
        self._first_chat_ids[current_id] = first_id
        self._current_chat_ids[first_id] = current_id


def _move_to_first_chat(message: IncomingMessage, address: Address) -> IncomingMessage:
    quote = message.quote
    if quote is not None:
        quote = replace(quote, message_id=_add_id_offset(quote.message_id))
    return replace(
        message,
        address=address,
        scopes=list_scopes(address),
        message_id=_add_id_offset(message.message_id),
        quote=quote,
    )


def _add_id_offset(message_id: str | None) -> str | None:
    is_number = message_id is not None and message_id.isdecimal()
    return str(int(message_id or 0) + _MESSAGE_ID_OFFSET) if is_number else message_id

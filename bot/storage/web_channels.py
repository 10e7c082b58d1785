"""Web channels in SQL: a message is one row, which a change replaces under a new revision.

Readers ask for what changed after the revision that they know. So a reader that was slow or away
gets each message once, as it reads now, however often it was edited meanwhile.

On other platforms what people wrote is the vendor's to keep; here it is ours, so that what is
deleted from a history is deleted from its channel.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec
from sqlalchemy import Connection, Row, bindparam, delete, func, insert, select, update
from typing_extensions import override

from bot.chat.incoming import Address, address_of
from bot.chat.session import Claim, Turn
from bot.chat.storable import make_storable
from bot.chat.web_channel import WEB_PLATFORM, WebChannel, WebMessage, inbox_key
from bot.errors import Refused
from bot.ports import ConversationMemory, Signals
from bot.storage.conversations import SqlConversations
from bot.storage.database import Database
from bot.storage.history_index import SqlHistoryIndex
from bot.storage.inbox import SqlInbox
from bot.storage.rows import decode_all
from bot.storage.tables import conversation, turn, upsert, web_channel, web_message

_TOPIC = "web_channels"
_encode = msgspec.json.Encoder().encode
_decode_channel = msgspec.json.Decoder(WebChannel).decode
_decode_message = msgspec.json.Decoder(WebMessage).decode

_COLUMNS = select(web_message.c.content, web_message.c.position, web_message.c.revision)
_OF_CHANNEL = _COLUMNS.where(web_message.c.channel == bindparam("of"))
_BY_ID = _OF_CHANNEL.where(web_message.c.id == bindparam("message_id"), ~web_message.c.is_deleted)
_NEWEST = (
    _OF_CHANNEL.where(~web_message.c.is_deleted)
    .order_by(web_message.c.position.desc())
    .limit(bindparam("most"))
)
_CHANGED = (
    _OF_CHANNEL.where(web_message.c.revision > bindparam("after"))
    .order_by(web_message.c.revision)
    .limit(bindparam("most"))
)
_CHANNELS = select(web_channel.c.content, web_channel.c.revision).order_by(web_channel.c.created_at)
# The row of the channel is locked until the commit, so that revisions are committed in their order.
_NEXT = (
    update(web_channel)
    .where(web_channel.c.id == bindparam("of"))
    .values(revision=web_channel.c.revision + 1)
    .returning(web_channel.c.revision)
)
_ADD = upsert(web_message, lambda adding: adding.on_conflict_do_nothing())


class SqlWebChannels:
    """Channels in SQL; other processes hear of a change by a signal."""

    def __init__(self, database: Database, signals: Signals) -> None:
        self._database = database
        self._signals = signals
        self._handlers: dict[object, Callable[[Sequence[str]], None]] = {}
        signals.subscribe(_TOPIC, self._tell_handlers)

    async def create(self, channel: WebChannel) -> None:
        """Add a channel without messages."""
        row = {
            "id": channel.id,
            "revision": 0,
            "content": _encode(channel),
            "created_at": channel.created_at.timestamp(),
        }
        await self._database.write(lambda c: c.execute(insert(web_channel), row).rowcount)

    async def update(self, channel: WebChannel) -> None:
        """Replace everything of a channel but its messages."""
        change = update(web_channel).where(web_channel.c.id == channel.id)
        content = _encode(channel)
        await self._database.write(lambda c: c.execute(change.values(content=content)).rowcount)
        self._signals.publish(_TOPIC, [channel.id])

    async def delete(self, channel_id: str) -> None:
        """Delete a channel with its messages; one that does not exist is no error."""

        def unit(connection: Connection) -> None:
            connection.execute(delete(web_message).where(web_message.c.channel == channel_id))
            connection.execute(delete(web_channel).where(web_channel.c.id == channel_id))

        await self._database.write(unit)
        self._signals.publish(_TOPIC, [channel_id])

    async def get(self, channel_id: str) -> WebChannel | None:
        chosen = _CHANNELS.where(web_channel.c.id == channel_id)
        rows = await self._database.read(lambda c: c.execute(chosen).all())
        return next(iter(decode_all("web_channel", rows, _to_channel)), None)

    async def all(self) -> Sequence[WebChannel]:
        """Return every channel, the oldest first."""
        rows = await self._database.read(lambda c: c.execute(_CHANNELS).all())
        return decode_all("web_channel", rows, _to_channel)

    async def add(self, channel_id: str, messages: Sequence[WebMessage]) -> None:
        """Append messages; one whose id is known is left as it is.

        Raises:
            Refused: there is no such channel.
        """
        stored = [_storable(one) for one in messages]

        def unit(connection: Connection) -> bool:
            for one in stored:
                revision = connection.execute(_NEXT, {"of": channel_id}).scalar()
                if revision is None:
                    return False
                row = {
                    "channel": channel_id,
                    "id": one.id,
                    "position": revision,
                    "revision": revision,
                    "is_deleted": one.is_deleted,
                    "content": _encode(one),
                }
                connection.execute(_ADD[connection.dialect.name], row)
            return True

        if not await self._database.write(unit):
            raise Refused(f"there is no channel {channel_id!r}")
        self._signals.publish(_TOPIC, [channel_id])

    async def replace(self, channel_id: str, message: WebMessage) -> bool:
        """Replace a message; return False if there is none of its id, or it was deleted."""
        stored = _storable(message)
        change = update(web_message).where(
            web_message.c.channel == channel_id,
            web_message.c.id == message.id,
            ~web_message.c.is_deleted,
        )

        def unit(connection: Connection) -> bool:
            revision = connection.execute(_NEXT, {"of": channel_id}).scalar()
            changed = change.values(
                revision=revision, is_deleted=stored.is_deleted, content=_encode(stored)
            )
            return revision is not None and connection.execute(changed).rowcount > 0

        is_replaced = await self._database.write(unit)
        self._signals.publish(_TOPIC, [channel_id])
        return is_replaced

    async def find(self, channel_id: str, message_id: str) -> WebMessage | None:
        """Return a message that was not deleted."""
        asked = {"of": channel_id, "message_id": message_id}
        return next(iter(await self._read(_BY_ID, asked)), None)

    async def newest(self, channel_id: str, limit: int) -> Sequence[WebMessage]:
        """Return the newest messages that were not deleted, oldest first."""
        return (await self._read(_NEWEST, {"of": channel_id, "most": limit}))[::-1]

    async def changed(self, channel_id: str, after: int, limit: int) -> Sequence[WebMessage]:
        """Return what was changed after a revision, in the order of the changes."""
        return await self._read(_CHANGED, {"of": channel_id, "after": after, "most": limit})

    def on_change(self, handler: Callable[[Sequence[str]], None]) -> Callable[[], None]:
        """Call a handler with the ids of channels that changed; return what ends that.

        A change of another process may be missed. The handler must not block or raise.
        """
        key = object()
        self._handlers[key] = handler

        def end() -> None:
            self._handlers.pop(key, None)

        return end

    async def _read(self, statement: Any, values: Mapping[str, object]) -> list[WebMessage]:
        rows: Iterable[Row[*tuple[Any, ...]]] = await self._database.read(
            lambda c: c.execute(statement, values).all()
        )
        return decode_all("web_message", rows, _to_message)

    def _tell_handlers(self, channel_ids: Sequence[str]) -> None:
        for handler in list(self._handlers.values()):
            handler(channel_ids)


def _storable(message: WebMessage) -> WebMessage:
    return replace(message, text=make_storable(message.text))


def _to_channel(row: Row[*tuple[Any, ...]]) -> WebChannel:
    return replace(_decode_channel(row.content), revision=row.revision)


def _to_message(row: Row[*tuple[Any, ...]]) -> WebMessage:
    return replace(_decode_message(row.content), position=row.position, revision=row.revision)


_MAX_TURNS = 400
_NEWEST_TURN = func.max(turn.c.id)
_RECENT = (
    select(turn.c.conversation)
    .group_by(turn.c.conversation)
    .order_by(_NEWEST_TURN.desc())
    .limit(bindparam("most"))
)
_KNOWN = select(conversation.c.key).where(conversation.c.key == bindparam("of"))


class SqlHistoryCopies:
    def __init__(self, database: Database, conversations: SqlConversations) -> None:
        self._database = database
        self._conversations = conversations

    async def recent(self, limit: int) -> Sequence[str]:
        """Return the keys of conversations, those with the newest turns first."""
        rows = await self._database.read(lambda c: c.execute(_RECENT, {"most": limit}).all())
        return [row.conversation for row in rows]

    async def copy(self, source: str, target: str) -> Sequence[Turn]:
        """Copy the newest turns of the current session; return them as they were copied.

        A target that is in use is left as it is, and nothing is returned.
        """
        session = await self._conversations.load_session(Claim(source, 0, ""), _MAX_TURNS)
        turns = [replace(one, message_id=f"copy-{at}") for at, one in enumerate(session.turns)]

        def unit(connection: Connection) -> bool:
            if connection.execute(_KNOWN, {"of": target}).scalar() is not None:
                return False
            connection.execute(insert(conversation), {"key": target, "platform": WEB_PLATFORM})
            parent: int | None = None
            for one in turns:
                added = insert(turn).values(_to_row(one, target, parent)).returning(turn.c.id)
                parent = connection.execute(added).scalar_one()
            return True

        return turns if await self._database.write(unit) else ()


def _to_row(one: Turn, target: str, parent: int | None) -> dict[str, object]:
    is_person = one.speaker is not None
    return {
        "conversation": target,
        "session": 1,
        "role": one.role,
        "speaker_id": one.speaker.id if one.speaker else None,
        "speaker_name": one.speaker.name if one.speaker else None,
        "text": one.text,
        "at": one.at.timestamp(),
        "preset": one.preset,
        "preset_version": one.preset_version,
        "parent": parent,
        "message_id": one.message_id if is_person else None,
        "observed": one.observed,
    }


_MAX_MESSAGES = 100_000


class ForgottenWebMessages(ConversationMemory):
    """Empties what people wrote that no turn holds any more, and the answers to it.

    Commands, which are no turns, stay, and so does what was not processed yet.
    """

    def __init__(
        self,
        channels: SqlWebChannels,
        conversations: SqlConversations,
        index: SqlHistoryIndex,
        inbox: SqlInbox,
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

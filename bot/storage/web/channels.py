"""Web channels in SQL: a message is one row, which a change replaces under a new revision.

Readers ask for what changed after the revision that they know. So a reader that was slow or away
gets each message once, as it reads now, however often it was edited meanwhile.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec
from sqlalchemy import Connection, Row, bindparam, delete, insert, select, update
from typing_extensions import override

from bot.chat.playground.web_channel import WebChannel, WebMessage
from bot.chat.storable import make_storable
from bot.errors import Refused
from bot.ports import Signals, WebChannels
from bot.storage.decoding import decode_all
from bot.storage.sql.database import Database
from bot.storage.sql.tables import upsert, web_channel, web_message

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


class SqlWebChannels(WebChannels):
    """Channels in SQL; other processes hear of a change by a signal."""

    def __init__(self, database: Database, signals: Signals) -> None:
        self._database = database
        self._signals = signals
        self._handlers: dict[object, Callable[[Sequence[str]], None]] = {}
        signals.subscribe(_TOPIC, self._tell_handlers)

    @override
    async def create(self, channel: WebChannel) -> None:
        row = {
            "id": channel.id,
            "revision": 0,
            "content": _encode(channel),
            "created_at": channel.created_at.timestamp(),
        }
        await self._database.write(lambda c: c.execute(insert(web_channel), row).rowcount)

    @override
    async def update(self, channel: WebChannel) -> None:
        change = update(web_channel).where(web_channel.c.id == channel.id)
        content = _encode(channel)
        await self._database.write(lambda c: c.execute(change.values(content=content)).rowcount)
        self._signals.publish(_TOPIC, [channel.id])

    @override
    async def delete(self, channel_id: str) -> None:
        def unit(connection: Connection) -> None:
            connection.execute(delete(web_message).where(web_message.c.channel == channel_id))
            connection.execute(delete(web_channel).where(web_channel.c.id == channel_id))

        await self._database.write(unit)
        self._signals.publish(_TOPIC, [channel_id])

    @override
    async def get(self, channel_id: str) -> WebChannel | None:
        chosen = _CHANNELS.where(web_channel.c.id == channel_id)
        rows = await self._database.read(lambda c: c.execute(chosen).all())
        return next(iter(decode_all("web_channel", rows, _to_channel)), None)

    @override
    async def all(self) -> Sequence[WebChannel]:
        rows = await self._database.read(lambda c: c.execute(_CHANNELS).all())
        return decode_all("web_channel", rows, _to_channel)

    @override
    async def add(self, channel_id: str, messages: Sequence[WebMessage]) -> None:
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

    @override
    async def replace(self, channel_id: str, message: WebMessage) -> bool:
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

    @override
    async def find(self, channel_id: str, message_id: str) -> WebMessage | None:
        asked = {"of": channel_id, "message_id": message_id}
        return next(iter(await self._read(_BY_ID, asked)), None)

    @override
    async def newest(self, channel_id: str, limit: int) -> Sequence[WebMessage]:
        return (await self._read(_NEWEST, {"of": channel_id, "most": limit}))[::-1]

    @override
    async def changed(self, channel_id: str, after: int, limit: int) -> Sequence[WebMessage]:
        return await self._read(_CHANGED, {"of": channel_id, "after": after, "most": limit})

    @override
    def on_change(self, handler: Callable[[Sequence[str]], None]) -> Callable[[], None]:
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

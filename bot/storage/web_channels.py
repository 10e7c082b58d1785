"""Web channels in SQL: a message is a row, and each change gives it a new revision.

Readers ask for changes since a revision. So a reader that was offline gets each message once, in
its current form, however often it was edited meanwhile.

Other platforms store their messages themselves. Here we store them, so deleting messages from a
history must also delete them from the channel.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
from typing_extensions import override

from bot.chat.incoming import Address, parse_address, to_storable_text
from bot.chat.session import Claim, Turn
from bot.chat.web_channel import WEB_PLATFORM, WebChannel, WebMessage, inbox_key
from bot.errors import Refused
from bot.ports import ConversationMemory, Signals
from bot.storage.conversations import Conversations
from bot.storage.database import Database, Store, run_readonly, transaction
from bot.storage.history_index import SqlHistoryIndex
from bot.storage.inbox import SqlInbox
from bot.storage.rows import decode_all, to_turn_row
from bot.storage.statements import SQL, Rows, Unit

_MAX_POSITION = 2**62
_CHANGES_TOPIC = "web_channels"
_encode = msgspec.json.Encoder().encode
_decode_channel = msgspec.json.Decoder(WebChannel).decode
_decode_message = msgspec.json.Decoder(WebMessage).decode


class SqlWebChannels(Store):
    """Stores channels in SQL, and signals changes to other processes."""

    def __init__(self, database: Database, signals: Signals) -> None:
        super().__init__(database)
        self._signals = signals

    async def create(self, channel: WebChannel) -> None:
        row = {"content": _encode(channel), "created_at": channel.created_at.timestamp()}
        await self._database.execute(SQL["create_web_channel"], of=channel.id, **row)

    async def change(
        self, channel_id: str, change: Callable[[WebChannel], WebChannel]
    ) -> WebChannel | None:
        """Apply `change` to a channel, store and return the result; None if there is no channel.

        `change` receives the stored channel, so that no simultaneous change is lost.
        """
        changed_channel = await self._change_channel(channel_id, change)
        self._signals.publish(_CHANGES_TOPIC, [channel_id])
        return changed_channel

    @transaction
    def _change_channel(
        self, channel_id: str, change: Callable[[WebChannel], WebChannel]
    ) -> Unit[WebChannel | None]:
        rows = yield SQL["lock_web_channel"].query(of=channel_id)
        for channel in decode_all("web_channel", rows, _to_channel):
            changed_channel = change(channel)
            yield SQL["update_web_channel"].query(of=channel_id, content=_encode(changed_channel))
            return changed_channel
        return None

    async def delete(self, channel_id: str) -> None:
        """Delete a channel with its messages; a missing channel is not an error."""

        def delete_rows() -> Unit[None]:
            for statement in (SQL["delete_web_messages"], SQL["delete_web_channel"]):
                yield statement.query(of=channel_id)

        await self._database.run(delete_rows)
        self._signals.publish(_CHANGES_TOPIC, [channel_id])

    @run_readonly
    def get(self, channel_id: str) -> Unit[WebChannel | None]:
        rows = yield SQL["web_channel"].query_alone(of=channel_id)
        return next(iter(decode_all("web_channel", rows, _to_channel)), None)

    @run_readonly
    def all(self) -> Unit[Sequence[WebChannel]]:
        """Return all channels, oldest first."""
        return decode_all("web_channel", (yield SQL["web_channels"].query_alone()), _to_channel)

    async def add(self, channel_id: str, messages: Sequence[WebMessage]) -> None:
        """Append messages with new ids; raises `Refused` if the channel does not exist."""
        if not await self._add_messages(channel_id, messages):
            raise Refused(f"there is no channel {channel_id!r}")
        self._signals.publish(_CHANGES_TOPIC, [channel_id])

    @transaction
    def _add_messages(self, channel_id: str, messages: Sequence[WebMessage]) -> Unit[bool]:
        for one in messages:
            revisions = yield SQL["next_web_revision"].query(of=channel_id)
            if not revisions:
                return False
            yield SQL["add_web_message"].query(_to_row(channel_id, one, revisions[0][0]))
        return True

    async def replace(self, channel_id: str, message: WebMessage) -> bool:
        """Replace a message; return False if it is missing or deleted."""
        is_replaced = await self._replace_message(channel_id, message)
        self._signals.publish(_CHANGES_TOPIC, [channel_id])
        return is_replaced

    @transaction
    def _replace_message(self, channel_id: str, message: WebMessage) -> Unit[bool]:
        revisions = yield SQL["next_web_revision"].query(of=channel_id)
        if not revisions:
            return False
        row = _to_row(channel_id, message, revisions[0][0])
        return bool((yield SQL["replace_web_message"].query(row)))

    @run_readonly
    def find(self, channel_id: str, message_id: str) -> Unit[WebMessage | None]:
        """Return a message, unless it is deleted."""
        rows = yield SQL["web_message"].query_alone(of=channel_id, id=message_id)
        return next(iter(_to_messages(rows)), None)

    @run_readonly
    def newest(
        self, channel_id: str, limit: int, before: int = _MAX_POSITION
    ) -> Unit[Sequence[WebMessage]]:
        """Return the newest undeleted messages before a position, oldest first."""
        values = {"of": channel_id, "most": limit, "older_than": before}
        rows = yield SQL["newest_web_messages"].query_alone(values)
        return _to_messages(rows)[::-1]

    @run_readonly
    def list_changed_messages(
        self, channel_id: str, after: int, limit: int
    ) -> Unit[Sequence[WebMessage]]:
        """Return the messages changed since a revision, in order of change."""
        values = {"of": channel_id, "newer_than": after, "most": limit}
        return _to_messages((yield SQL["changed_web_messages"].query_alone(values)))

    def on_change(self, handler: Callable[[Sequence[str]], None]) -> Callable[[], None]:
        """Register a nonblocking handler for ids of changed channels; the result unregisters it."""
        return self._signals.subscribe(_CHANGES_TOPIC, handler)


def _to_row(channel_id: str, message: WebMessage, revision: int) -> dict[str, object]:
    content = _encode(replace(message, text=to_storable_text(message.text)))
    row = {"id": message.id, "is_deleted": message.is_deleted, "content": content}
    return {"of": channel_id, "revision": revision, **row}


def _to_channel(row: Sequence[Any]) -> WebChannel:
    content, revision = row
    return replace(_decode_channel(content), revision=revision)


def _to_messages(rows: Rows) -> list[WebMessage]:
    return decode_all("web_message", rows, _to_message)


def _to_message(row: Sequence[Any]) -> WebMessage:
    content, position, revision = row
    return replace(_decode_message(content), position=position, revision=revision)


_MAX_COPIED_TURNS = 400


class HistoryCopier(Store):
    """Copies a conversation's history into a new conversation."""

    def __init__(self, database: Database, conversations: Conversations) -> None:
        super().__init__(database)
        self._conversations = conversations

    @run_readonly
    def recent_conversations(self, limit: int) -> Unit[Sequence[str]]:
        """Return conversation keys, those with the most recent turns first."""
        return [row[0] for row in (yield SQL["recent_conversations"].query_alone(most=limit))]

    async def copy(self, source: str, target: str, until: float | None = None) -> Sequence[Turn]:
        """Copy a conversation's newest turns into an unused conversation; return the copied turns.

        At most 400 turns of the current session are copied, none after `until` (Unix seconds).
        """
        session = await self._conversations.load_session(Claim(source, 0, ""), _MAX_COPIED_TURNS)
        kept_turns = [one for one in session.turns if until is None or one.at.timestamp() <= until]
        turns = [replace(one, message_id=f"copy-{index}") for index, one in enumerate(kept_turns)]
        return turns if await self._store(turns, target) else ()

    @transaction
    def _store(self, turns: Sequence[Turn], target: str) -> Unit[bool]:
        if not (yield SQL["create_copy"].query(of=target, platform=WEB_PLATFORM)):
            return False
        common_values = {"conversation": target, "session": 1, "sent_as": None, "files": None}
        rows = [{**to_turn_row(one), **common_values} for one in turns]
        for row in rows:
            if row["speaker_id"] is None:
                row["message_id"] = None
        if rows:
            yield SQL["append_turn"].query_many(rows)
        return True


_MAX_SEARCHED_MESSAGES = 100_000


@dataclass(eq=False)
class WebMessageEraser(ConversationMemory):
    """Blanks the web messages of forgotten turns and answers, but not commands or their replies."""

    channels: SqlWebChannels
    conversations: Conversations
    index: SqlHistoryIndex
    inbox: SqlInbox

    @override
    async def end_session(self, conversation: str) -> None:
        """Do nothing, because earlier messages stay readable."""

    @override
    async def forget(self, conversation: str) -> None:
        address = parse_address(conversation)
        if address.platform != WEB_PLATFORM:
            return
        turn_counts = await self.index.count_turns(address)
        follows_forgotten_message = False
        for message in await self.channels.newest(address.chat, _MAX_SEARCHED_MESSAGES):
            if message.author is not None:
                follows_forgotten_message = await self._is_forgotten(address, message, turn_counts)
            if follows_forgotten_message and not await self._has_turn(message, turn_counts):
                await self.channels.replace(address.chat, message.to_tombstone())

    async def _is_forgotten(
        self, address: Address, message: WebMessage, histories: Collection[str]
    ) -> bool:
        if not message.is_shown or message.text.startswith("/"):
            return False
        if await self._has_turn(message, histories):
            return False
        key = inbox_key(address.chat, message)
        return not await self.inbox.find_in_progress(address, key)

    async def _has_turn(self, message: WebMessage, histories: Collection[str]) -> bool:
        for key in histories:
            if await self.conversations.find_turns(Claim(key, 0, ""), [message.id]):
                return True
        return False

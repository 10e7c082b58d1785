"""The inbox: events received from platforms, stored until they are answered."""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from typing_extensions import override

from bot.chat.incoming import Address, Incoming
from bot.ports import Intake
from bot.storage.database import ClockStore, run_readonly, transaction
from bot.storage.functions import SQL_FUNCTIONS
from bot.storage.rows import decode_all, decode_event, encode_event, get_event_kind
from bot.storage.statements import SQL, Unit, Values, to_dict

_EVENT_COLUMNS = ("platform", "bot_id", "external_key", "conversation", "kind", "payload")


class SqlInbox(ClockStore, Intake):
    """Stores received events, queues their conversations, and saves the read positions."""

    @override
    async def receive(self, messages: Sequence[Incoming], cursors: Mapping[str, str]) -> None:
        now, is_sqlite = self._clock.now(), self._database.is_sqlite
        rows = [to_inbox_row(message, now) for message in messages]
        store_unit = store_events if is_sqlite else _store_events_by_sql_function
        await self._database.run(lambda: store_unit(rows, cursors, now))

    @override
    @run_readonly
    def cursors(self, prefix: str) -> Unit[Mapping[str, str]]:
        return to_dict((yield SQL["cursors"].query_alone(prefix=prefix)))

    @run_readonly
    def find_in_progress(self, address: Address, external_key: str) -> Unit[Sequence[Incoming]]:
        """Return the unfinished message with this key, and messages that its answer also covers."""
        bot = {"platform": address.platform, "bot_id": address.bot_id}
        return _decode_events(
            (yield SQL["message_in_progress"].query_alone({**bot, "external_key": external_key}))
        )

    @transaction
    def newest_unanswered(
        self, conversations: Collection[str], limit: int, max_per_conversation: int
    ) -> Unit[Sequence[Incoming]]:
        """Return the newest unanswered events: `max_per_conversation` each, and `limit` in all."""
        args = {"conversations": json.dumps(sorted(conversations)), "of_each": max_per_conversation}
        return _decode_events((yield SQL["waiting_messages"].query_alone({**args, "most": limit})))


def _decode_events(rows: Iterable[Sequence[Any]]) -> list[Incoming]:
    """Decode rows of `kind` and `payload`, and skip unreadable ones."""
    return decode_all("inbox", rows, lambda row: decode_event(*row))


def to_inbox_row(message: Incoming, now: float) -> dict[str, Any]:
    return {
        "platform": message.address.platform,
        "bot_id": message.address.bot_id,
        "external_key": message.external_key,
        "conversation": message.address.conversation,
        "kind": get_event_kind(message),
        "payload": encode_event(message),
        "received_at": now,
    }


def _store_events_by_sql_function(
    rows: Sequence[Values], cursors: Mapping[str, str], now: float
) -> Unit[None]:
    conversation_rows = _conversation_rows(rows)
    yield SQL_FUNCTIONS["receive"].call.query_alone(
        {
            **{f"{name}s": [row[name] for row in rows] for name in _EVENT_COLUMNS},
            "received_at": now,
            "keys": [row["conversation"] for row in conversation_rows],
            "key_platforms": [row["platform"] for row in conversation_rows],
            "key_bot_ids": [row["bot_id"] for row in conversation_rows],
            "names": list(cursors),
            "places": list(cursors.values()),
        }
    )


def store_events(rows: Sequence[Values], cursors: Mapping[str, str], now: float) -> Unit[None]:
    """Store events and read positions, and queue conversations, in several statements (SQLite)."""
    if rows:
        yield SQL["store_message"].query_many(rows)
        yield SQL["make_ready"].query_many(
            [{**row, "key": row["conversation"], "now": now} for row in _conversation_rows(rows)]
        )
    if cursors:
        yield SQL["advance_cursor"].query_many(
            [{"name": name, "reached": position} for name, position in cursors.items()]
        )


def _conversation_rows(rows: Sequence[Values]) -> list[Values]:
    """Return one row per conversation, in a fixed order, to avoid deadlocks."""
    return [row for _, row in sorted({row["conversation"]: row for row in rows}.items())]

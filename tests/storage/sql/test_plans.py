"""Query plans of SQLite: open rows are found by partial indexes, not by scans."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, event

from bot.chat.outgoing import OutgoingPart
from bot.chat.session import Claim, TurnResult
from bot.runtime.clock import SystemClock
from bot.storage.sql.conversations import SqlConversations
from bot.storage.sql.database import Database
from bot.storage.sql.inbox import SqlInbox
from bot.storage.sql.outbox import SqlOutbox
from tests.samples import make_incoming

LANE = "telegram:5"
UNANSWERED, UNSENT = "INDEX ix_inbox_open", "INDEX ix_outbox_unsent"


class Chat:
    """A chat with one unanswered message and one queued answer."""

    def __init__(self, database: Database) -> None:
        clock = SystemClock()
        self.inbox = SqlInbox(database, clock)
        self.outbox = SqlOutbox(database, clock)
        self.conversations = SqlConversations(database, clock)

    async def open(self) -> Claim:
        await self.inbox.receive([make_incoming(key="5:1"), make_incoming(key="5:2")], {})
        claim = await self.conversations.claim(LANE, "me", 60.0)
        assert claim is not None
        message = await self.conversations.next_message(claim)
        assert message is not None
        await self.conversations.finish(
            claim, message, TurnResult(outgoing=[OutgoingPart(0, "Hi.")])
        )
        return claim


QUERIES: dict[str, tuple[str, Callable[[Chat, Claim], Awaitable[object]]]] = {
    "pending conversations": (
        UNANSWERED,
        lambda chat, _: chat.inbox.pending_conversations(9, ["telegram"]),
    ),
    "next message": (UNANSWERED, lambda chat, claim: chat.conversations.next_message(claim)),
    "more messages": (UNANSWERED, lambda chat, claim: chat.conversations.release(claim)),
    "due lanes": (UNSENT, lambda chat, _: chat.outbox.due_lanes(9)),
    "next row of a lane": (UNSENT, lambda chat, _: chat.outbox.take(LANE)),
    "expired sending rows": (
        UNSENT,
        lambda chat, _: chat.outbox.expire_sending(older_than_seconds=0, settle_seconds=0),
    ),
}


@pytest.mark.parametrize("query", QUERIES)
async def test_queries_for_open_rows_use_the_partial_indexes(
    query: str, database: Database
) -> None:
    index, run = QUERIES[query]
    chat = Chat(database)
    claim = await chat.open()
    statements: list[tuple[str, Any]] = []

    def record_statement(
        _c: object, _cursor: object, statement: str, values: Any, *_: object
    ) -> None:
        if not statement.startswith("BEGIN"):
            statements.append((statement, values))

    def plans(connection: Connection) -> str:
        explained = [
            connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {s}", v) for s, v in [*statements]
        ]
        return "\n".join(step.detail for plan in explained for step in plan)

    event.listen(Engine, "before_cursor_execute", record_statement)
    try:
        await run(chat, claim)
        found = await database.read(plans)
    finally:
        event.remove(Engine, "before_cursor_execute", record_statement)
    assert index in found

"""How SQLite finds what is open: among the rows that are, however much was ever said."""

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
from tests.samples import incoming

LANE = "telegram:5"
OPEN, UNSENT = "INDEX ix_inbox_open", "INDEX ix_outbox_unsent"


class Room:
    """A chat in which one message is heard and an answer is queued."""

    def __init__(self, database: Database) -> None:
        clock = SystemClock()
        self.inbox = SqlInbox(database, clock)
        self.outbox = SqlOutbox(database, clock)
        self.conversations = SqlConversations(database, clock)

    async def open(self) -> Claim:
        await self.inbox.receive([incoming(key="5:1"), incoming(key="5:2")], {})
        claim = await self.conversations.claim(LANE, "me", 60.0)
        assert claim is not None
        heard = await self.conversations.next_message(claim)
        assert heard is not None
        await self.conversations.finish(claim, heard, TurnResult(outgoing=[OutgoingPart(0, "Hi.")]))
        return claim


QUESTIONS: dict[str, tuple[str, Callable[[Room, Claim], Awaitable[object]]]] = {
    "who waits": (OPEN, lambda room, _: room.inbox.pending_conversations(9, ["telegram"])),
    "what is next": (OPEN, lambda room, claim: room.conversations.next_message(claim)),
    "is there more": (OPEN, lambda room, claim: room.conversations.release(claim)),
    "which lanes are due": (UNSENT, lambda room, _: room.outbox.due_lanes(9)),
    "what is to be sent": (UNSENT, lambda room, _: room.outbox.take(LANE)),
    "what is under way": (
        UNSENT,
        lambda room, _: room.outbox.expire_sending(older_than_seconds=0, settle_seconds=0),
    ),
}


@pytest.mark.parametrize("question", QUESTIONS)
async def test_what_is_done_is_not_read_to_find_what_is_open(
    question: str, database: Database
) -> None:
    index, ask = QUESTIONS[question]
    room = Room(database)
    claim = await room.open()
    asked: list[tuple[str, Any]] = []

    def note(_c: object, _cursor: object, statement: str, values: Any, *_: object) -> None:
        if not statement.startswith("BEGIN"):
            asked.append((statement, values))

    def plans(connection: Connection) -> str:
        explained = [connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {s}", v) for s, v in [*asked]]
        return "\n".join(step.detail for plan in explained for step in plan)

    event.listen(Engine, "before_cursor_execute", note)
    try:
        await ask(room, claim)
        found = await database.read(plans)
    finally:
        event.remove(Engine, "before_cursor_execute", note)
    assert index in found

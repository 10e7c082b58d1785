"""Which indexes SQLite uses: no statement of a message's path reads more than it returns."""

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest
from sqlalchemy import Connection
from typing_extensions import override

from bot.chat.outgoing import MessageContent, OutgoingPart
from bot.chat.session import Claim, InboxMessage, TurnResult
from bot.runtime.clock import SystemClock
from bot.storage.engine.statements import Query, StartUnit, Unit
from bot.storage.sql.conversations import SqlConversations
from bot.storage.sql.database import Database
from bot.storage.sql.inbox import SqlInbox
from bot.storage.sql.outbox import SqlOutbox
from bot.storage.units.lanes import SenderIdentity
from tests.samples import begin, make_incoming

T = TypeVar("T")
LANE = "telegram:5"


class RecordingDatabase(Database):
    """Notes the queries of the units that it runs."""

    def __init__(self, database: Database) -> None:
        super().__init__(database._connections)
        self._database = database
        self.queries: list[Query] = []

    @override
    async def run(self, start: StartUnit[T]) -> T:
        return await self._database.run(lambda: self._recorded(start()))

    def _recorded(self, unit: Unit[T]) -> Unit[T]:
        rows = None
        while True:
            try:
                query = unit.send(rows) if rows is not None else next(unit)
            except StopIteration as ended:
                value: T = ended.value
                return value
            self.queries.append(query)
            rows = yield query


class Chat:
    """A chat with one answer queued and one message left."""

    def __init__(self, database: Database) -> None:
        clock, sender = SystemClock(), SenderIdentity("me", 0)
        self.database = RecordingDatabase(database)
        self.inbox = SqlInbox(self.database, clock)
        self.outbox = SqlOutbox(self.database, clock, sender)
        self.conversations = SqlConversations(self.database, clock, sender)
        self.claim = Claim("", 0, "")
        self.message: InboxMessage | None = None

    async def open(self) -> None:
        await self.receive("5")
        self.claim, message = await begin(self.conversations)
        result = TurnResult(outgoing=[OutgoingPart(0, MessageContent("Hi."))])
        finished = await self.conversations.finish(self.claim, message, result)
        self.message = finished.next_message
        assert finished.row is not None
        await self.outbox.reschedule(finished.row, 0)
        self.database.queries.clear()

    async def receive(self, prefix: str) -> None:
        """Receive two messages."""
        messages = [make_incoming(key=f"{prefix}:{number}") for number in (1, 2)]
        await self.inbox.receive(messages, {"telegram:offset": "1"})

    async def finish(self) -> object:
        assert self.message is not None
        return await self.conversations.finish(self.claim, self.message, TurnResult())

    async def send(self) -> object:
        [row] = await self.outbox.take([LANE])
        return await self.outbox.mark_sent(row, "1")


STEPS: dict[str, Callable[[Chat], Awaitable[object]]] = {
    "ready": lambda chat: chat.conversations.ready(9, ["telegram"]),
    "begin": lambda chat: chat.conversations.begin([LANE], "me", 60),
    "finish": Chat.finish,
    "due": lambda chat: chat.outbox.due_lanes(9, ["telegram"]),
    "send": Chat.send,
}


@pytest.mark.parametrize("step", STEPS)
async def test_no_step_of_a_message_scans_a_table(step: str, database: Database) -> None:
    chat = Chat(database)
    await chat.open()
    await STEPS[step](chat)
    queries = chat.database.queries

    def plans(connection: Connection) -> list[str]:
        return [line for query in queries for line in _plan(connection, query)]

    found = await database.read(plans)
    assert found
    assert [line for line in found if line.startswith("SCAN") and "USING" not in line] == []


def _plan(connection: Connection, query: Query) -> list[str]:
    sql = query.statement.compiled("sqlite")
    values: dict[str, Any] = {**sql.defaults, **(query.many[0] if query.many else query.values)}
    cursor = connection.connection.cursor()
    cursor.execute(f"EXPLAIN QUERY PLAN {sql.text}", values)
    return [str(row[3]) for row in cursor.fetchall()]

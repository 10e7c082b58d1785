"""A chat with a queued answer and a waiting message, and all steps that change it."""

from collections.abc import Awaitable, Callable

from typing_extensions import override

from bot.chat.incoming import Address
from bot.chat.outgoing import MessageContent, OutgoingPart
from bot.chat.session import Claim, InboxMessage, Turn, TurnRange, TurnResult
from bot.runtime.clock import SystemClock
from bot.storage.conversations import Conversations
from bot.storage.database import Database
from bot.storage.inbox import SqlInbox
from bot.storage.outbox import SenderIdentity, SqlOutbox
from bot.storage.receipts import Receipts
from bot.storage.retention import delete_expired
from bot.storage.summaries import SqlSummaries
from tests.samples import ALICE, begin, make_incoming
from tests.support.store import present

LANE = "telegram:5"


class LateClock(SystemClock):
    """A clock that is far ahead, so that all stored rows are old."""

    @override
    def now(self) -> float:
        return super().now() + 100 * 86_400.0


class Chat:
    def __init__(self, database: Database) -> None:
        clock, sender = SystemClock(), SenderIdentity("me", 0)
        self.database = database
        self.inbox = SqlInbox(database, clock)
        self.outbox = SqlOutbox(database, clock, sender)
        self.conversations = Conversations(database, clock, sender)
        self.claim = Claim("", 0, "")
        self.message: InboxMessage | None = None

    async def open(self) -> None:
        await self.receive("5")
        self.claim, message = await begin(self.conversations)
        result = TurnResult(outgoing=[OutgoingPart(0, MessageContent("Hi."))])
        finished = await self.conversations.finish(self.claim, message, result)
        self.message = finished.next_message
        await self.outbox.reschedule(present(finished.row), 0)

    async def receive(self, prefix: str) -> None:
        """Receive two messages."""
        messages = [make_incoming(key=f"{prefix}:{number}") for number in (1, 2)]
        await self.inbox.receive(messages, {"telegram:offset": "1"})

    async def open_part(self) -> object:
        part = OutgoingPart(0, MessageContent("…"))
        return await self.conversations.open_part(self.claim, present(self.message), part)

    async def finish(self) -> object:
        message = present(self.message)
        said = [Turn("user", "a", ALICE, message.incoming.at)] * 2
        result = TurnResult(said, replaced_range=TurnRange(0, 1))
        return await self.conversations.finish(self.claim, message, result)

    async def send(self) -> object:
        [row] = await self.outbox.reserve_due_rows([LANE])
        await self.outbox.has_later_rows(row)
        return await self.outbox.mark_sent(row, "1")

    async def poll(self) -> object:
        await self.conversations.list_ready_conversations(9, ["telegram"])
        await self.inbox.newest_unanswered(
            [LANE, *(f"discord:{number}" for number in range(3000))], 500, 20
        )
        return await self.outbox.list_due_lanes(9, ["telegram"])

    async def probe(self) -> object:
        [row] = await self.outbox.reserve_due_rows([LANE])
        await self.outbox.list_message_ids(Address("telegram", "5"))
        return await self.outbox.find_sent_ids([row.id])

    async def restart(self) -> None:
        await self.conversations.release_all("me")
        await self.outbox.release_all()

    async def change(self) -> object:
        """Look up what an edit or a deletion of a message changes."""
        await self.conversations.find_turns(self.claim, ["1", "2"])
        return await self.conversations.load_exchange(self.claim, "1", 40)

    async def look_back(self) -> object:
        await self.conversations.load_session(self.claim, 40)
        summaries = SqlSummaries(self.database)
        await summaries.current(LANE)
        await summaries.load_turns_since(LANE, ALICE.id, None)
        return await Receipts(self.database).find_for_last_message(LANE)


STEPS: dict[str, Callable[[Chat], Awaitable[object]]] = {
    "receive": lambda chat: chat.receive("6"),
    "poll": Chat.poll,
    "begin": lambda chat: chat.conversations.claim_next([LANE], "me", 60),
    "open": Chat.open_part,
    "finish": Chat.finish,
    "send": Chat.send,
    "renew": lambda chat: chat.conversations.renew([chat.claim], 60),
    "restart": Chat.restart,
    "probe": Chat.probe,
    "change": Chat.change,
    "look back": Chat.look_back,
    "forget": lambda chat: chat.conversations.forget(chat.claim),
    "release": lambda chat: chat.conversations.release(chat.claim),
    "retention": lambda chat: delete_expired(chat.database, LateClock(), 14),
}
OVER_ALL_ROWS = {"retention", "restart"}
"""One step deletes in batches; the other reads all open rows once when a process starts."""

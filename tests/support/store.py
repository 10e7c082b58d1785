"""The stores on an empty database, and the processing steps of a message."""

import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar

from sqlalchemy import update

from bot.chat.incoming import IncomingMessage
from bot.chat.outgoing import MessageContent, OutboxOperation, OutboxRow, OutgoingPart
from bot.chat.prompt import FinishReason, Image, Message, Prompt, TemplateChoice, Usage
from bot.chat.receipt import DroppedItem, PromptSpan, Receipt, Timings
from bot.chat.session import MAX_OWN_CRASHES, Claim, ClaimedMessage, InboxMessage, Turn, TurnResult
from bot.runtime.clock import SystemClock
from bot.storage.chat_settings import SqlChatSettings
from bot.storage.codec import TextEncryption
from bot.storage.conversations import Conversations
from bot.storage.database import Database, open_database
from bot.storage.dead_letters import DeadLetters
from bot.storage.inbox import SqlInbox
from bot.storage.outbox import SenderIdentity, SqlOutbox
from bot.storage.presets import PresetVersions
from bot.storage.stories import SqlStories
from bot.storage.tables import inbox, lane
from tests.samples import ALICE, begin, make_incoming, read_session

RECEIPT = Receipt(
    preset="nora",
    preset_version=3,
    provider="local",
    prompt=Prompt(
        (Message("system", "Be Nora. 日本"), Message("user", "a", (Image("https://x/y"), "a"))),
        "m",
        "telegram:5",
        stop=("\nAnn:",),
        parameters={"temperature": 0.5, "logit_bias": {"5": -100}, "seed": None},
        template=TemplateChoice(strings={"user_template": "{{user}}"}),
    ),
    layout=(
        PromptSpan("system", 0, 1, 10),
        PromptSpan("stories", 1, 1, 3, "The Inn", 0.5),
        PromptSpan("newest", 1),
    ),
    dropped=(DroppedItem("history", "", "the budget was used up", 12),),
    tokens=120,
    limit=1600,
    answer="Hi 🙂",
    reason=FinishReason.STOP,
    usage=Usage(121, 100, 4),
    timings=Timings(0.1, None, 2.5),
)


T = TypeVar("T")


def present(value: T | None) -> T:
    assert value is not None
    return value


@dataclass
class Store:
    database: Database
    inbox: SqlInbox
    conversations: Conversations
    """Queues outgoing rows without taking them."""
    sending_conversations: Conversations
    """Takes rows for `outbox` in the same unit that queues them."""
    outbox: SqlOutbox
    other_outbox: SqlOutbox
    """The outbox of a second sender."""
    patient_outbox: SqlOutbox
    """The outbox of a sender with platforms that may accept a request up to a minute late."""
    chat_settings: SqlChatSettings
    preset_versions: PresetVersions
    stories: SqlStories
    letters: DeadLetters

    async def rows(self, statement: Any) -> list[Any]:
        return await self.database.read(lambda c: list(c.execute(statement).all()))

    async def scalars(self, statement: Any) -> list[Any]:
        return await self.database.read(lambda c: list(c.execute(statement).scalars()))

    async def scalar(self, statement: Any) -> Any:
        return await self.database.read(lambda c: c.execute(statement).scalar())

    async def write(self, statement: Any, values: Any = None) -> int:
        """Execute a statement that changes rows; return their number."""
        return await self.database.write(lambda c: c.execute(statement, values).rowcount)


@contextlib.asynccontextmanager
async def open_store(url: str, encryption: TextEncryption) -> AsyncIterator[Store]:
    clock = SystemClock()
    async with open_database(url, encryption) as database:
        yield Store(
            database,
            SqlInbox(database, clock),
            Conversations(database, clock),
            Conversations(database, clock, SenderIdentity("me", 0)),
            SqlOutbox(database, clock, SenderIdentity("me", 0)),
            SqlOutbox(database, clock, SenderIdentity("other", 0)),
            SqlOutbox(database, clock, SenderIdentity("patient", 60)),
            SqlChatSettings(database, clock),
            PresetVersions(database, clock),
            SqlStories(database),
            DeadLetters(database, clock),
        )


LEASE = 60.0
LANE = "telegram:5"
NOON = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)


async def claimed(
    store: Store, key: str = LANE, owner: str = "me", lease: float = LEASE
) -> ClaimedMessage | None:
    """Claim a conversation; return None if it is empty or claimed by another owner."""
    begun = await store.conversations.claim_next([key], owner, lease)
    return begun[0] if begun else None


async def take_message(store: Store, key: str = "5:1") -> tuple[Claim, InboxMessage]:
    await store.inbox.receive([make_incoming(key=key)], {})
    return await begin(store.conversations)


async def finish(
    store: Store, key: str = "5:1", *, begins_next: bool = True, **result: Any
) -> tuple[Claim, InboxMessage]:
    """Receive a message and finish it with a `TurnResult` of these fields."""
    claim, message = await take_message(store, key)
    await store.conversations.finish(claim, message, TurnResult(**result), begins_next=begins_next)
    return claim, message


def in_parts(*contents: str | MessageContent | OutgoingPart) -> list[OutgoingPart]:
    """Return these texts or contents as parts of an answer, numbered in order."""
    return [
        one
        if isinstance(one, OutgoingPart)
        else OutgoingPart(number, MessageContent(one) if isinstance(one, str) else one)
        for number, one in enumerate(contents)
    ]


async def answer(
    store: Store, *parts: str | OutgoingPart, key: str = "5:1"
) -> tuple[Claim, InboxMessage]:
    return await finish(store, key, outgoing=in_parts(*parts))


async def texts_of(store: Store, key: str = LANE) -> list[str]:
    """Return the texts of a history as read by a new process."""
    return [one.text for one in (await read_session(store.database, key)).turns]


async def take(store: Store, outbox: SqlOutbox | None = None) -> OutboxRow | None:
    rows = await (outbox or store.outbox).reserve_due_rows([LANE])
    return rows[0] if rows else None


async def taken(store: Store, outbox: SqlOutbox | None = None) -> OutboxRow:
    row = await take(store, outbox)
    assert row is not None
    return row


async def send_all(store: Store) -> list[OutboxRow]:
    """Send all rows of the lane, with the message ids "m<part>"; return the rows."""
    rows = []
    row = await take(store)
    while row is not None:
        rows.append(row)
        is_send = row.operation is OutboxOperation.SEND
        row = await store.outbox.mark_sent(row, f"m{row.part_number}" if is_send else None)
    return rows


async def ready(store: Store, *platforms: str) -> Sequence[str]:
    return await store.conversations.list_ready_conversations(10, platforms or ["telegram"])


async def due(store: Store, *platforms: str) -> Sequence[str]:
    return await store.outbox.list_due_lanes(10, platforms or ["telegram"])


def said(text: str) -> Turn:
    return Turn("user", text, ALICE, datetime(2026, 11, 21, tzinfo=UTC))


async def expire_lease(store: Store) -> None:
    await store.write(update(lane).values(due_at=1.0))


async def set_aside(store: Store, text: str = "poison") -> None:
    """Receive a message, and finish it as a dead letter."""
    await store.inbox.receive([make_incoming(text)], {})
    await store.write(update(inbox).values(own_crashes=MAX_OWN_CRASHES, crashes=MAX_OWN_CRASHES))
    claim, message = await begin(store.conversations)
    notice = OutgoingPart(0, MessageContent("it was set aside"))
    await store.conversations.finish(claim, message, TurnResult(outgoing=[notice]))
    await store.outbox.mark_sent(await taken(store), "77")


async def refuse_answer(store: Store) -> None:
    await answer(store, "an answer")
    await store.outbox.give_up(await taken(store), "the chat is closed")


async def answer_in(database: Database, number: int) -> None:
    """Receive, claim, and finish a message, and mark its answer as sent."""
    clock, sender = SystemClock(), SenderIdentity("me", 0)
    conversations = Conversations(database, clock, sender)
    incoming = make_incoming(chat=str(number), key=f"{number}:1")
    key = incoming.address.conversation
    await SqlInbox(database, clock).receive([incoming], {"telegram:offset": "1"})
    [begun] = await conversations.claim_next([key], "me", 15)
    result = TurnResult(outgoing=[OutgoingPart(0, MessageContent("hi"))])
    finished = await conversations.finish(begun.claim, begun.message, result)
    assert finished.row is not None
    outbox = SqlOutbox(database, clock, sender)
    assert await outbox.mark_sent(finished.row, "90") is None
    assert await outbox.find_sent_ids([finished.row.id]) == {finished.row.id: "90"}


async def store_answer(
    database: Database,
    *receipts: Receipt,
    incoming: IncomingMessage | None = None,
    turns: Sequence[Turn] = (),
) -> None:
    clock, incoming = SystemClock(), incoming or make_incoming()
    conversations = Conversations(database, clock, SenderIdentity("me", 10))
    await SqlInbox(database, clock).receive([incoming], {})
    claim, message = await begin(conversations, incoming.address.conversation)
    await conversations.finish(claim, message, TurnResult(turns, receipts=receipts))
    await conversations.release(claim)

"""Steps of a message on the repositories, for the tests of what they promise."""

from collections.abc import Sequence
from datetime import UTC, datetime

from sqlalchemy import update

from bot.chat.outgoing import (
    MessageContent,
    OutboxRow,
    OutgoingPart,
)
from bot.chat.session import (
    Claim,
    ClaimedMessage,
    InboxMessage,
    Turn,
    TurnResult,
)
from bot.storage.outbox import SqlOutbox
from bot.storage.tables import (
    lane,
)
from tests.contracts.conftest import Store
from tests.samples import ALICE, make_incoming

LEASE = 60.0
LANE = "telegram:5"
NOON = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)


async def claimed(
    store: Store, key: str = LANE, owner: str = "me", lease: float = LEASE
) -> ClaimedMessage | None:
    begun = await store.conversations.begin([key], owner, lease)
    return begun[0] if begun else None


async def begin(store: Store, key: str = "5:1") -> tuple[Claim, InboxMessage]:
    await store.inbox.receive([make_incoming(key=key)], {})
    begun = await claimed(store)
    assert begun is not None
    return begun.claim, begun.message


async def answer(store: Store, *texts: str) -> tuple[Claim, InboxMessage]:
    claim, message = await begin(store)
    outgoing = [OutgoingPart(part, MessageContent(text)) for part, text in enumerate(texts)]
    await store.conversations.finish(claim, message, TurnResult(outgoing=outgoing))
    return claim, message


async def take(store: Store, outbox: SqlOutbox | None = None) -> OutboxRow | None:
    rows = await (outbox or store.outbox).take([LANE])
    return rows[0] if rows else None


async def taken(store: Store, outbox: SqlOutbox | None = None) -> OutboxRow:
    row = await take(store, outbox)
    assert row is not None
    return row


async def ready(store: Store, *platforms: str) -> Sequence[str]:
    return await store.conversations.ready(10, platforms or ["telegram"])


async def due(store: Store, *platforms: str) -> Sequence[str]:
    return await store.outbox.due_lanes(10, platforms or ["telegram"])


def said(text: str) -> Turn:
    return Turn("user", text, ALICE, datetime(2026, 11, 21, tzinfo=UTC))


async def expire_lease(store: Store) -> None:
    """Let the lease of the sender that has the lane end now."""
    await store.database.write(lambda c: c.execute(update(lane).values(due_at=1.0)).rowcount)

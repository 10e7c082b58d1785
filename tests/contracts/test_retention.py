"""What has done its service is forgotten after its time, on SQLite and on PostgreSQL."""

import pytest
from sqlalchemy import func, select, update

from bot.chat.outgoing import OutgoingPart
from bot.chat.session import Claim, InboxMessage, TurnResult
from bot.runtime.clock import SystemClock
from bot.storage.sql.retention import delete_expired
from bot.storage.sql.tables import inbox, outbox
from tests.contracts.conftest import Store
from tests.samples import incoming

DAY = 86_400.0


async def under_work(store: Store) -> tuple[Claim, InboxMessage]:
    await store.inbox.receive([incoming()], {})
    claim = await store.conversations.claim("telegram:5", "me", 60)
    assert claim is not None
    heard = await store.conversations.next_message(claim)
    assert heard is not None
    return claim, heard


async def send(store: Store, how_many: int) -> None:
    for _ in range(how_many):
        row = await store.outbox.take("telegram:5")
        assert row is not None
        await store.outbox.mark_sent(row, str(row.id))


async def age(store: Store, days: float) -> None:
    seconds = days * DAY
    heard = update(inbox).values(received_at=inbox.c.received_at - seconds)
    begun = update(outbox).values(started_at=outbox.c.started_at - seconds)
    await store.database.write(lambda c: c.execute(heard).rowcount + c.execute(begun).rowcount)


async def kept(store: Store) -> tuple[int, int]:
    counts = [select(func.count()).select_from(table) for table in (inbox, outbox)]
    heard, said = [
        await store.database.read(lambda c, one=one: c.execute(one).scalar_one())  # type: ignore[misc]
        for one in counts
    ]
    return heard, said


@pytest.mark.parametrize(
    ("days", "left"), [(6.9, (1, 2)), (7.1, (1, 0)), (13.9, (1, 0)), (14.1, (0, 0))]
)
async def test_what_is_answered_and_sent_is_forgotten(
    store: Store, days: float, left: tuple[int, int]
) -> None:
    claim, heard = await under_work(store)
    parts = [OutgoingPart(0, "a"), OutgoingPart(1, "b")]
    await store.conversations.finish(claim, heard, TurnResult(outgoing=parts))
    await send(store, 2)
    await age(store, days)
    assert await delete_expired(store.database, SystemClock(), 14) == 3 - sum(left)
    assert await kept(store) == left


async def test_what_is_not_answered_or_not_sent_is_kept_however_old(store: Store) -> None:
    claim, heard = await under_work(store)
    await store.conversations.open(claim, heard, OutgoingPart(0, "…"))
    await send(store, 1)
    await age(store, 100)
    await delete_expired(store.database, SystemClock(), 14)
    assert await kept(store) == (1, 1), "its answer will be an edit of the message"
    await store.conversations.finish(claim, heard, TurnResult(outgoing=[OutgoingPart(0, "a")]))
    await delete_expired(store.database, SystemClock(), 14)
    assert await kept(store) == (0, 2), "the edit still needs the id"
    row = await store.outbox.take("telegram:5")
    assert row is not None
    assert row.external_id is not None

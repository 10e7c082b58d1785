"""Contract of retention: old rows are deleted, on SQLite and on PostgreSQL."""

import pytest
from sqlalchemy import func, select, update

from bot.chat.outgoing import MessageContent, OutgoingPart
from bot.chat.session import Claim, InboxMessage, Turn, TurnResult
from bot.runtime.clock import SystemClock
from bot.storage.sql.retention import delete_expired
from bot.storage.sql.tables import inbox, outbox
from tests.contracts.conftest import Store
from tests.samples import begin, make_incoming

DAY = 86_400.0


async def take_message(store: Store) -> tuple[Claim, InboxMessage]:
    await store.inbox.receive([make_incoming()], {})
    return await begin(store.conversations)


async def send_rows(store: Store, how_many: int) -> None:
    for _ in range(how_many):
        [row] = await store.outbox.take(["telegram:5"])
        await store.outbox.mark_sent(row, str(row.id))
        await store.outbox.release_all()


async def make_older(store: Store, days: float) -> None:
    seconds = days * DAY
    messages = update(inbox).values(received_at=inbox.c.received_at - seconds)
    rows = update(outbox).values(started_at=outbox.c.started_at - seconds)
    await store.database.write(lambda c: c.execute(messages).rowcount + c.execute(rows).rowcount)


async def count_rows(store: Store) -> tuple[int, int]:
    counts = [select(func.count()).select_from(table) for table in (inbox, outbox)]
    inbox_rows, outbox_rows = [
        await store.database.read(lambda c, one=one: c.execute(one).scalar_one())  # type: ignore[misc]
        for one in counts
    ]
    return inbox_rows, outbox_rows


@pytest.mark.parametrize(
    ("days", "left"), [(6.9, (1, 2)), (7.1, (1, 0)), (13.9, (1, 0)), (14.1, (0, 0))]
)
async def test_answered_messages_and_sent_rows_are_deleted(
    store: Store, days: float, left: tuple[int, int]
) -> None:
    claim, message = await take_message(store)
    parts = [OutgoingPart(0, MessageContent("a")), OutgoingPart(1, MessageContent("b"))]
    await store.conversations.finish(claim, message, TurnResult(outgoing=parts))
    await send_rows(store, 2)
    await make_older(store, days)
    assert await delete_expired(store.database, SystemClock(), 14) == 3 - sum(left)
    assert await count_rows(store) == left


async def test_unanswered_messages_and_unsent_turns_are_kept(store: Store) -> None:
    claim, message = await take_message(store)
    await store.conversations.open(claim, message, OutgoingPart(0, MessageContent("…")))
    await send_rows(store, 1)
    await make_older(store, 100)
    await delete_expired(store.database, SystemClock(), 14)
    assert await count_rows(store) == (1, 1), "the answer will be an edit of this message"
    await store.conversations.finish(
        claim, message, TurnResult(outgoing=[OutgoingPart(0, MessageContent("a"))])
    )
    await delete_expired(store.database, SystemClock(), 14)
    assert await count_rows(store) == (0, 2), "the edit needs the message's id"
    [row] = await store.outbox.take(["telegram:5"])
    assert row.external_id is not None


async def test_answer_is_found_by_its_messages_after_its_outbox_rows_were_deleted(
    store: Store,
) -> None:
    claim, message = await take_message(store)
    parts = [OutgoingPart(0, MessageContent("a")), OutgoingPart(1, MessageContent("b"))]
    names = tuple(message.part_name(part.part) for part in parts)
    answer = Turn("assistant", "a b", None, message.incoming.at, sent_as=names)
    await store.conversations.finish(claim, message, TurnResult([answer], outgoing=parts))
    await send_rows(store, 2)
    ids = [str(one) for one in (1, 2)]
    before = [await store.conversations.find_turns(claim, [one]) for one in ids]
    await make_older(store, 7.1)
    await delete_expired(store.database, SystemClock(), 14)
    assert await count_rows(store) == (1, 0)
    assert [await store.conversations.find_turns(claim, [one]) for one in ids] == before
    assert [[found.turn for found in one] for one in before] == [[answer], [answer]]

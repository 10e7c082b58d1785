"""Contract of retention: old rows are deleted, on SQLite and on PostgreSQL."""

import pytest
from sqlalchemy import Table, func, select, update

from bot.chat.session import Claim, InboxMessage, Summary, Turn, TurnResult, fingerprint_turns
from bot.runtime.clock import SystemClock
from bot.service.jobs import delete_expired_once
from bot.settings import Settings
from bot.storage.leases import SqlRoleLeases
from bot.storage.retention import delete_expired, delete_expired_turns
from bot.storage.summaries import SqlSummaries
from bot.storage.tables import inbox, kept_message_id, outbox, receipt, role_lease, summary, turn
from tests.samples import begin, make_incoming
from tests.support.store import RECEIPT, Store, answer, in_parts, take_message

DAY = 86_400.0


async def send_rows(store: Store, how_many: int) -> list[str]:
    """Send `how_many` rows of the lane; return the ids of the sent messages."""
    ids = []
    for _ in range(how_many):
        [row] = await store.outbox.reserve_due_rows(["telegram:5"])
        ids.append(str(row.id))
        await store.outbox.mark_sent(row, ids[-1])
        await store.outbox.release_all()
    return ids


async def make_older(store: Store, days: float) -> None:
    for column in (inbox.c.received_at, outbox.c.started_at):
        await store.write(update(column.table).values({column: column - days * DAY}))


async def count(store: Store, table: Table) -> int:
    return int(await store.scalar(select(func.count()).select_from(table)))


async def count_rows(store: Store) -> tuple[int, int]:
    return await count(store, inbox), await count(store, outbox)


@pytest.mark.parametrize(
    ("days", "left"), [(6.9, (1, 2)), (7.1, (1, 0)), (13.9, (1, 0)), (14.1, (0, 0))]
)
async def test_old_finished_rows_are_deleted(
    store: Store, days: float, left: tuple[int, int]
) -> None:
    await answer(store, "a", "b")
    await send_rows(store, 2)
    await make_older(store, days)
    assert await delete_expired(store.database, SystemClock(), 14) == 3 - sum(left)
    assert await count_rows(store) == left


async def test_unanswered_messages_and_unsent_turns_are_kept(store: Store) -> None:
    claim, message = await take_message(store)
    await store.conversations.open_part(claim, message, *in_parts("…"))
    await send_rows(store, 1)
    await make_older(store, 100)
    await delete_expired(store.database, SystemClock(), 14)
    assert await count_rows(store) == (1, 1), "the answer will be an edit of this message"
    await store.conversations.finish(claim, message, TurnResult(outgoing=in_parts("a")))
    await delete_expired(store.database, SystemClock(), 14)
    assert await count_rows(store) == (0, 2), "the edit needs the message's id"
    [row] = await store.outbox.reserve_due_rows(["telegram:5"])
    assert row.external_id is not None


async def test_answer_is_found_without_its_outbox_rows(store: Store) -> None:
    claim, message = await take_message(store)
    names = tuple(message.part_name(part) for part in (0, 1))
    answered = Turn("assistant", "a b", None, message.incoming.at, part_names=names)
    await store.conversations.finish(claim, message, TurnResult([answered], in_parts("a", "b")))
    ids = await send_rows(store, 2)
    before = [await store.conversations.find_turns(claim, [one]) for one in ids]
    await make_older(store, 7.1)
    await delete_expired(store.database, SystemClock(), 14)
    assert await count_rows(store) == (1, 0)
    assert [await store.conversations.find_turns(claim, [one]) for one in ids] == before
    assert [[found.turn for found in one] for one in before] == [[answered], [answered]]


async def say(store: Store, number: int) -> tuple[Claim, InboxMessage]:
    """Receive a message and answer it with one message."""
    incoming = make_incoming(f"question {number}", key=f"5:{number}")
    await store.inbox.receive([incoming], {})
    claim, message = await begin(store.conversations)
    asked = Turn("user", incoming.text, incoming.author, incoming.at, message_id=str(number))
    answered = Turn("assistant", "a", None, incoming.at, part_names=(message.part_name(0),))
    result = TurnResult([asked, answered], in_parts("a"), [RECEIPT])
    await store.conversations.finish(claim, message, result)
    await send_rows(store, 1)
    return claim, message


async def let_days_pass(store: Store, days: float) -> None:
    await make_older(store, days)
    for table in (turn, receipt):
        await store.write(update(table).values(at=table.c.at - days * DAY))


async def test_old_turns_are_deleted_with_derived_data(store: Store) -> None:
    await say(store, 1)
    summaries = SqlSummaries(store.database)
    sources = await summaries.load_whole_session("telegram:5")
    covered = sources.turns
    made = Summary(1, covered[-1].id, fingerprint_turns(covered), "They talked.")
    assert await summaries.save("telegram:5", made)
    await let_days_pass(store, 20)
    await delete_expired(store.database, SystemClock(), 14)  # keeps the ids of messages
    assert await count(store, kept_message_id) == 1
    claim, _ = await say(store, 2)
    await store.conversations.release(claim)

    assert await delete_expired_turns(store.database, SystemClock(), 30) == 0
    assert await delete_expired_turns(store.database, SystemClock(), 10) == 2

    assert await store.scalars(select(turn.c.text).order_by(turn.c.id)) == ["question 2", "a"]
    assert await count(store, summary) == await count(store, kept_message_id) == 0
    assert await delete_expired_turns(store.database, SystemClock(), 10) == 0


async def test_process_reloads_a_history_after_turns_were_deleted(store: Store) -> None:
    claim, _ = await say(store, 1)
    await store.conversations.release(claim)
    await let_days_pass(store, 20)
    await delete_expired_turns(store.database, SystemClock(), 10)
    await store.inbox.receive([make_incoming("again", key="5:2")], {})
    claim, _ = await begin(store.conversations)
    assert (await store.conversations.load_session(claim, 10)).turns == ()


async def test_turns_of_a_conversation_in_progress_are_kept_until_the_next_run(
    store: Store,
) -> None:
    await say(store, 1)
    await let_days_pass(store, 20)
    await store.inbox.receive([make_incoming("again", key="5:2")], {})
    claim, message = await begin(store.conversations)
    assert await delete_expired_turns(store.database, SystemClock(), 10) == 0
    await store.conversations.finish(claim, message, TurnResult())  # it is not fenced
    await store.conversations.release(claim)
    assert await delete_expired_turns(store.database, SystemClock(), 10) == 2


@pytest.mark.parametrize(("days", "left"), [(None, 2), (10, 0)])
async def test_job_deletes_turns_if_a_retention_time_is_set(
    store: Store, days: float | None, left: int
) -> None:
    await say(store, 1)
    await let_days_pass(store, 12)
    settings = Settings.model_construct(history_days=days, receipt_days=14)
    await delete_expired_once(store.database, settings, SystemClock())
    contents = await store.scalars(select(receipt.c.content))
    assert (await count(store, turn), sum(map(bool, contents))) == (left, left // 2)


async def test_leases_of_ended_processes_are_deleted_but_jobs_stay(store: Store) -> None:
    clock = SystemClock()
    jobs = {"receive telegram", "receive discord 0/1"}
    ended, died, running = (SqlRoleLeases(store.database, name, clock) for name in "abc")
    for role in ("shards of discord at a", "identify discord 0", *jobs):
        assert await ended.take(role, 60)
        await ended.release(role)
    assert await died.take("shards of discord at b", -8 * DAY)
    assert await running.take("shards of discord at c", 60)
    assert await running.take("shards of discord at d", -6 * DAY)

    assert await delete_expired(store.database, clock, 14) == 3

    left = await store.scalars(select(role_lease.c.role))
    assert set(left) == {*jobs, "shards of discord at c", "shards of discord at d"}
    assert await ended.take("identify discord 0", 60), "a row that is gone can be made again"

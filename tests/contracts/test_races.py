"""Test races between processes that have wrong clocks or are paused at bad moments."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace

import psutil
import pytest
from sqlalchemy import select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine
from typing_extensions import override

from bot.chat.memory import Memory, MemoryPlace, MemoryReader, MemorySubject, SubjectKind
from bot.chat.outgoing import MessageContent, OutboxRow, OutgoingPart
from bot.chat.receipt import PromptSpan
from bot.chat.session import ClaimedMessage, TurnResult
from bot.errors import StoreError
from bot.runtime.clock import SystemClock
from bot.storage.codec import TextEncryption
from bot.storage.conversations import Conversations
from bot.storage.database import Database, open_database
from bot.storage.dead_letters import DeadLetters
from bot.storage.inbox import SqlInbox
from bot.storage.memories import SqlMemories
from bot.storage.outbox import SenderIdentity, SqlOutbox
from bot.storage.reports import ServiceState
from bot.storage.retention import delete_expired, delete_expired_turns
from bot.storage.tables import lane
from bot.storage.tables import outbox as outbox_table
from bot.storage.tables import receipt as receipt_table
from tests.checkout import CHECKOUT
from tests.fakes import FakeClock
from tests.samples import ALICE, make_incoming
from tests.support.store import RECEIPT, Store, open_store, present
from tests.waiting import PATIENCE_SECONDS

LANE = "telegram:5"
_LEASE = 15.0


@pytest.fixture
def encryption() -> TextEncryption:
    """Return encryption without keys, because the started processes have no key."""
    return TextEncryption()


class WrongClock(SystemClock):
    """The clock of a machine that is `seconds` fast, or slow if negative."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    @override
    def now(self) -> float:
        return super().now() + self._seconds


AHEAD, BEHIND = WrongClock(60), WrongClock(-60)
ANSWER = TurnResult(outgoing=[OutgoingPart(0, MessageContent("hi"))])


@asynccontextmanager
async def stopped_process(mode: str, url: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Start a process and wait until it has stopped itself; kill it when the block ends."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.contracts.stopping_process", mode, url),
        cwd=CHECKOUT,
        env={**os.environ, "PYTHONPATH": str(CHECKOUT)},  # noqa: TID251 # PATH and HOME
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while psutil.Process(process.pid).status() != psutil.STATUS_STOPPED:
                assert process.returncode is None
                await asyncio.sleep(0.02)
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def wake(process: asyncio.subprocess.Process) -> str:
    """Continue a stopped process, and return its output."""
    process.send_signal(signal.SIGCONT)
    async with asyncio.timeout(PATIENCE_SECONDS):
        printed, _ = await process.communicate()
    return printed.decode().strip().splitlines()[-1]


async def answer(database: Database) -> None:
    """Queue an answer."""
    conversations = Conversations(database, SystemClock())
    await SqlInbox(database, SystemClock()).receive([make_incoming()], {})
    begun = present(await claim(conversations, "here"))
    await conversations.finish(begun.claim, begun.message, ANSWER)


async def claim(conversations: Conversations, owner: str) -> ClaimedMessage | None:
    begun = await conversations.claim_next([LANE], owner, _LEASE)
    return begun[0] if begun else None


@pytest.mark.service
async def test_process_with_a_fast_clock_cannot_take_a_live_lease(url: str) -> None:
    async with open_database(url) as database:
        here = Conversations(database, SystemClock())
        ahead = Conversations(database, AHEAD)
        await SqlInbox(database, AHEAD).receive([make_incoming()], {})
        begun = present(await claim(here, "here"))
        assert await ahead.list_ready_conversations(10, ["telegram"]) == []
        assert await claim(ahead, "ahead") is None
        await here.finish(begun.claim, begun.message, ANSWER)
        outbox = SqlOutbox(database, SystemClock(), SenderIdentity("here", 0))
        other = SqlOutbox(database, AHEAD, SenderIdentity("ahead", 0))
        assert len(await outbox.reserve_due_rows([LANE])) == 1
        assert await other.list_due_lanes(10, ["telegram"]) == []
        assert await other.reserve_due_rows([LANE]) == []


@pytest.mark.service
async def test_process_with_a_slow_clock_waits_for_the_settle_time(url: str) -> None:
    async with open_database(url) as database:
        await answer(database)
        outbox = SqlOutbox(database, BEHIND, SenderIdentity("behind", 10))
        [row] = await outbox.reserve_due_rows([LANE])
        await outbox.mark_unknown(row, 10)
        assert await outbox.list_due_lanes(10, ["telegram"]) == []
        assert await outbox.reserve_due_rows([LANE]) == []


@pytest.mark.service
async def test_clock_wrong_by_years_neither_deletes_nor_releases_anything(url: str) -> None:
    years = FakeClock(SystemClock().now() + 2 * 365 * 86_400)
    async with open_database(url) as database:
        conversations = Conversations(database, SystemClock())
        await SqlInbox(database, SystemClock()).receive(
            [make_incoming(), make_incoming(key="2")], {}
        )
        begun = present(await claim(conversations, "here"))
        await conversations.finish(begun.claim, begun.message, ANSWER)
        outbox = SqlOutbox(database, BEHIND, SenderIdentity("behind", 0))
        [row] = await outbox.reserve_due_rows([LANE])
        assert await delete_expired(database, years, 14) == 0
        assert await delete_expired_turns(database, years, 30) == 0
        assert (await ServiceState(database, years).load_queue_state()).answered_now_count == 1
        assert max(await ServiceState(database, years).queue_ages()) < 60
        await outbox.release_all()
        assert await SqlOutbox(database, BEHIND, SenderIdentity("next", 0)).reserve_due_rows([LANE])
        assert row.content.text == "hi"


ENDS: Mapping[str, Callable[[SqlOutbox, OutboxRow], Awaitable[object]]] = {
    "sent": lambda outbox, row: outbox.mark_sent(row, "1"),
    "dead": lambda outbox, row: outbox.give_up(row, "refused"),
    "again": lambda outbox, row: outbox.queue_as_new_message(row, "refused", is_message_gone=True),
    "set aside": lambda outbox, row: outbox.give_up(row, "hopeless", "sorry"),
    "later": lambda outbox, row: outbox.reschedule(row, 1),
    "retry": lambda outbox, row: DeadLetters(outbox._database, outbox._clock).retry(
        f"out-{row.id}"
    ),
}


@pytest.mark.service
@pytest.mark.parametrize("end", ENDS)
async def test_lane_is_locked_before_its_rows(url: str, end: str) -> None:
    async with open_database(url) as database:
        await answer(database)
        outbox = SqlOutbox(database, SystemClock(), SenderIdentity("here", 0))
        [row] = await outbox.reserve_due_rows([LANE])
        if end == "retry":
            await outbox.give_up(row, "refused")

        async def run() -> None:
            await ENDS[end](outbox, row)

        engine = create_async_engine(url)
        async with engine.connect() as other, asyncio.TaskGroup() as group:
            await other.execute(select(lane).with_for_update())
            group.create_task(run())
            await _wait_for_locks(other, 1)
            await other.execute(select(outbox_table.c.id).with_for_update(nowait=True))
            await other.rollback()
        await engine.dispose()


@pytest.mark.service
@pytest.mark.parametrize("first", ["answer", "deletion"])
async def test_memory_deleted_while_it_is_recalled_is_removed_from_the_receipt(
    url: str, first: str
) -> None:
    async with open_store(url, TextEncryption()) as store:
        memories = SqlMemories(store.database, SystemClock())
        place, about = (
            MemoryPlace(LANE, LANE, is_private=False),
            MemorySubject(SubjectKind.PERSON, ALICE.id),
        )
        memory = Memory(about, "Alice keeps bees", ALICE.id, place, is_derived=False)
        number = present(await memories.add(memory)).id
        receipt = replace(RECEIPT, layout=(PromptSpan("memory", 0, memory=number),))

        async def finish_answer(key: str) -> None:
            await store.inbox.receive([make_incoming(key=key)], {})
            begun = present(await claim(store.conversations, "here"))
            result = replace(ANSWER, receipts=[receipt])
            await store.conversations.finish(begun.claim, begun.message, result)

        async def delete() -> None:
            await memories.forget(number, MemoryReader(ALICE.id, place))

        await finish_answer("5:1")
        engine = create_async_engine(url)
        # Both change such a row after they have locked the memory.
        held = select(lane) if first == "answer" else select(receipt_table.c.id)
        steps = [finish_answer("5:2"), delete()]
        async with engine.connect() as other, asyncio.TaskGroup() as group:
            await other.execute(held.with_for_update())
            for waiting, step in enumerate(steps if first == "answer" else steps[::-1], 1):
                group.create_task(step)
                await _wait_for_locks(other, waiting)
            await other.rollback()
        await engine.dispose()
        contents = await store.scalars(select(receipt_table.c.content))
        assert [bytes(one) for one in contents] == [b"", b""]


async def _wait_for_locks(connection: AsyncConnection, count: int) -> None:
    """Wait until `count` locks are waited for."""
    waits = text("SELECT count(*) FROM pg_locks WHERE NOT granted")
    async with asyncio.timeout(PATIENCE_SECONDS):
        while (await connection.execute(waits)).scalar_one() < count:
            await connection.execute(text("SELECT pg_sleep(0.01)"))


@pytest.mark.service
async def test_frozen_transaction_does_not_block_other_transactions_forever(url: str) -> None:
    async with open_database(url) as database:
        conversations = Conversations(database, SystemClock())
        await SqlInbox(database, SystemClock()).receive([make_incoming()], {})
        async with stopped_process("transaction", url) as process:
            begun = None
            async with asyncio.timeout(PATIENCE_SECONDS):
                while begun is None:
                    try:
                        begun = await claim(conversations, "here")
                    except StoreError:  # its row is locked
                        await asyncio.sleep(0.1)
            assert begun.claim.epoch == 1  # what the other one did is undone
            assert await wake(process) == "refused"
        assert await conversations.renew([begun.claim], _LEASE) == []


@pytest.mark.parametrize(("mode", "sent"), [("before", 0), ("within", 1)])
async def test_paused_sender_neither_sends_nor_reports(
    store: Store, empty_database: str, mode: str, sent: int
) -> None:
    await store.inbox.receive([make_incoming()], {})
    begun = present(await claim(store.conversations, "me"))
    parts = [OutgoingPart(0, MessageContent("hi")), OutgoingPart(1, MessageContent("there"))]
    await store.conversations.finish(begun.claim, begun.message, TurnResult(outgoing=parts))
    async with stopped_process(mode, empty_database) as process:
        lease_ends = update(lane).values(due_at=0.0)  # 20 s later
        await store.write(lease_ends)
        [row] = await store.outbox.reserve_due_rows([LANE])
        await asyncio.sleep(0.5)
        assert await wake(process) == f"sent {sent}"
    following = present(await store.outbox.mark_sent(row, "90"))
    assert following.content.text == "there"
    assert await store.outbox.find_sent_ids([row.id]) == {row.id: "90"}

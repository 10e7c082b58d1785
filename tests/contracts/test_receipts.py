"""Contract of receipts, on SQLite and on PostgreSQL."""

from dataclasses import replace

from sqlalchemy import func, select, update

from bot.chat.prompt import FinishReason, TemplateChoice, TemplateNames
from bot.runtime.clock import SystemClock
from bot.storage.receipts import Receipts
from bot.storage.retention import delete_expired
from bot.storage.tables import receipt
from tests.support.store import RECEIPT, Store, finish


async def test_receipt_is_found_by_number_and_by_conversation(store: Store) -> None:
    named = TemplateChoice(
        role_texts={"user": "U:", "stop_words": ["x"]},
        names=TemplateNames("Nils", "Ann", is_group=True),
    )
    other = replace(
        RECEIPT,
        answer="And I am Nils.",
        prompt=replace(RECEIPT.prompt, template=named),
        reason=FinishReason.REPETITION,
    )
    await finish(store, receipts=[RECEIPT, other])
    receipts = Receipts(store.database)
    assert await receipts.newest("telegram:5") == [(1, RECEIPT), (2, other)]
    assert await receipts.newest("telegram:6") == []


async def test_receipts_are_deleted_after_some_days(store: Store) -> None:
    await finish(store, receipts=[RECEIPT] * 2)
    old = update(receipt).where(receipt.c.id == 1).values(at=receipt.c.at - 3 * 86_400)
    await store.write(old)
    assert await delete_expired(store.database, SystemClock(), 2) == 1
    count = select(func.count(receipt.c.id)).where(receipt.c.content != b"")
    assert await store.scalar(count) == 1


async def test_receipts_are_deleted_with_their_conversation(store: Store) -> None:
    claim, _ = await finish(store, receipts=[RECEIPT])

    await store.conversations.forget(claim)

    assert await Receipts(store.database).newest("telegram:5") == []

"""Contract of budgets and usage, on SQLite and on PostgreSQL."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from sqlalchemy import update

from bot.chat.prompt import Usage
from bot.chat.session import HistoryChange
from bot.chat.usage import AnswerCharge, BudgetCap, BudgetKind, Period, UsageTotal
from bot.runtime.clock import SystemClock
from bot.storage.receipts import Receipts
from bot.storage.retention import delete_expired
from bot.storage.tables import receipt
from bot.storage.usage import Budgets, UsageTotals
from tests.support.store import RECEIPT, Store, finish, take_message

PERSON = BudgetCap(BudgetKind.PERSON, Period.DAY, "telegram:1", "2026-11-22", 1_000)
SERVER = BudgetCap(BudgetKind.SERVER, Period.MONTH, "telegram:-7", "2026-11", 100_000)
PAID = replace(
    RECEIPT,
    usage=Usage(100, 40, 10),
    charge=AnswerCharge("telegram:1", "telegram:-7", "gpt", 250),
)
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


async def test_reservation_is_refused_by_any_cap_and_counts_against_none_then(
    store: Store,
) -> None:
    budgets = Budgets(store.database)
    assert await budgets.reserve([PERSON, SERVER], 700) is None
    assert await budgets.reserve([SERVER, PERSON], 301) == PERSON
    assert await budgets.reserve([SERVER, PERSON], 300) is None
    assert await budgets.spent([PERSON, SERVER]) == {PERSON.key: 1000, SERVER.key: 1000}


async def test_settling_gives_back_what_was_not_spent(store: Store) -> None:
    budgets = Budgets(store.database)
    await budgets.reserve([PERSON, SERVER], 900)
    await budgets.settle([PERSON, SERVER], 900, 200)
    assert await budgets.spent([PERSON, SERVER]) == {PERSON.key: 200, SERVER.key: 200}
    assert await budgets.reserve([PERSON, SERVER], 800) is None


async def test_many_reservations_at_once_never_exceed_a_cap(store: Store) -> None:
    budgets = Budgets(store.database)
    caps = [
        [replace(PERSON, owner=f"telegram:{number % 7}", limit=10**9), replace(SERVER, limit=5_000)]
        for number in range(400)
    ]

    async def answer(number: int) -> bool:
        mine = caps[number][:: 1 if number % 2 else -1]
        if await budgets.reserve(mine, 100) is not None:
            return False
        await budgets.settle(mine, 100, 40)
        return True

    async with asyncio.TaskGroup() as group:
        turns = [group.create_task(answer(number)) for number in range(400)]
    answered = sum(one.result() for one in turns)
    spent = await budgets.spent([caps[0][1]])
    assert spent == {SERVER.key: 40 * answered}
    assert 50 <= answered <= 125  # 125 · 40 is the cap; never less than fit with 100 reserved


async def test_each_period_begins_anew(store: Store) -> None:
    budgets = Budgets(store.database)
    assert await budgets.reserve([PERSON], 1000) is None
    assert await budgets.reserve([PERSON], 1) == PERSON
    assert await budgets.reserve([replace(PERSON, begins="2026-11-23")], 1000) is None


async def test_usage_is_added_up_and_outlives_the_text(store: Store) -> None:
    unpriced = replace(PAID, charge=replace(PAID.charge, cost=None))
    await finish(store, receipts=[PAID, PAID, unpriced])
    totals = UsageTotals(store.database)
    expected = UsageTotal(3, 300, 120, 30, 500, 1)
    assert await totals.of_person("telegram:1", LONG_AGO) == expected
    claim, _ = await take_message(store, "5:2")
    await store.conversations.forget(claim)
    assert await Receipts(store.database).newest("telegram:5") == []
    assert await totals.of_person("telegram:1", LONG_AGO) == expected
    assert await totals.of_person("telegram:2", LONG_AGO) == UsageTotal(0, 0, 0, 0, 0, 0)
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    assert await totals.of_person("telegram:1", tomorrow) == UsageTotal(0, 0, 0, 0, 0, 0)


async def test_usage_by_day_has_a_row_for_each_model(store: Store) -> None:
    other = replace(PAID, charge=replace(PAID.charge, model="other"))
    # of an edit, which is finished step by step on PostgreSQL, too
    await finish(store, receipts=[PAID, other, PAID], change=HistoryChange())
    rows = await UsageTotals(store.database).by_day(LONG_AGO, datetime.now(UTC) + timedelta(days=1))
    assert {one.day for one in rows} == {datetime.now(UTC).date().isoformat()}
    assert [(one.model, one.total.answers, one.total.cost) for one in rows] == [
        ("gpt", 2, 500),
        ("other", 1, 250),
    ]
    assert (rows[0].person, rows[0].server, rows[0].preset) == ("telegram:1", "telegram:-7", "nora")


async def test_text_of_a_receipt_is_deleted_before_its_usage(store: Store) -> None:
    await finish(store, receipts=[PAID])
    totals, budgets = UsageTotals(store.database), Budgets(store.database)
    await budgets.reserve([PERSON, replace(PERSON, begins="2020-01-01")], 5)

    async def age(days: float) -> None:
        older = update(receipt).values(at=receipt.c.at - days * 86_400)
        await store.write(older)
        await delete_expired(store.database, SystemClock(), 14)

    await age(15)
    assert await Receipts(store.database).newest("telegram:5") == []
    assert (await totals.of_person("telegram:1", LONG_AGO)).cost == 250
    await age(400)
    assert (await totals.of_person("telegram:1", LONG_AGO)).answers == 0
    left = await budgets.spent([PERSON, replace(PERSON, begins="2020-01-01")])
    assert list(left) == [PERSON.key]

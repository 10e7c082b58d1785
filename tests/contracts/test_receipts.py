"""Contract of receipts, their search, budgets and usage, on SQLite and on PostgreSQL."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import func, select, update

from bot.chat.answers import AnswerSearch
from bot.chat.prompt import FinishReason, TemplateChoice, TemplateNames, Usage
from bot.chat.receipt import DroppedItem, Timings
from bot.chat.session import HistoryChange, Turn, TurnResult
from bot.chat.usage import AnswerCharge, BudgetCap, BudgetKind, Period, UsageTotal
from bot.runtime.clock import SystemClock
from bot.storage.receipts import Receipts
from bot.storage.reports import AnswerLog
from bot.storage.retention import delete_expired
from bot.storage.tables import receipt
from bot.storage.usage import Budgets, UsageTotals
from tests.samples import ALICE
from tests.support.store import RECEIPT, Store, finish, in_parts, present, take_message


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
    assert await receipts.find_for_last_message("telegram:5") == [(1, RECEIPT), (2, other)]
    assert await receipts.find_for_last_message("telegram:6") == []


async def test_receipts_are_deleted_after_the_retention_period(store: Store) -> None:
    await finish(store, receipts=[RECEIPT] * 2)
    old = update(receipt).where(receipt.c.id == 1).values(at=receipt.c.at - 3 * 86_400)
    await store.write(old)
    assert await delete_expired(store.database, SystemClock(), 2) == 1
    count = select(func.count(receipt.c.id)).where(receipt.c.content != b"")
    assert await store.scalar(count) == 1


PLAIN = replace(RECEIPT, dropped=())


async def found(log: AnswerLog, asked: AnswerSearch, limit: int = 10) -> list[int]:
    return [one.number for one in (await log.search(asked, limit)).answers]


async def test_answers_are_found_by_each_filter(store: Store) -> None:
    unmatched = DroppedItem("lore", "Lamp", "none of its keys were found", was_wanted=False)
    receipts = [
        replace(PLAIN, dropped=(unmatched,)),
        replace(PLAIN, preset="nils", reason=None, answer="Ich BIN Nils"),
        replace(PLAIN, dropped=RECEIPT.dropped, timings=Timings(4.0, 0.1, 5.0)),
        replace(PLAIN, charge=AnswerCharge("telegram:1", None, "gpt", 2_000)),
    ]
    await finish(store, receipts=receipts)
    log = AnswerLog(store.database)

    assert await found(log, AnswerSearch()) == [4, 3, 2, 1]
    assert await found(log, AnswerSearch(preset="nils")) == [2]
    assert await found(log, AnswerSearch(person="telegram:1")) == [4]
    assert await found(log, AnswerSearch(model="gpt")) == [4]
    assert await found(log, AnswerSearch(model="local")) == [4, 3, 2, 1]
    assert await found(log, AnswerSearch(min_cost=2_000)) == [4]
    assert await found(log, AnswerSearch(min_seconds=9)) == [3]
    assert await found(log, AnswerSearch(left_out=True)) == [3]
    assert await found(log, AnswerSearch(cut_off=True)) == [2]
    assert await found(log, AnswerSearch(text="bin nils")) == [2]
    assert await found(log, AnswerSearch(conversation="telegram:5")) == [4, 3, 2, 1]
    assert await found(log, AnswerSearch(conversation="telegram:6")) == []


async def test_pages_of_answers_follow_each_other_without_a_gap(store: Store) -> None:
    reasons = [FinishReason.STOP, None] * 5
    receipts = [replace(PLAIN, reason=reason) for reason in reasons]
    await finish(store, receipts=receipts)
    log = AnswerLog(store.database)

    for asked, expected in (
        (AnswerSearch(), [10, 9, 8, 7, 6, 5, 4, 3, 2, 1]),
        (AnswerSearch(cut_off=True), [10, 8, 6, 4, 2]),
    ):
        numbers: list[int] = []
        before: int | None = None
        while True:
            page = await log.search(replace(asked, before=before), 2)
            numbers += [one.number for one in page.answers]
            before = page.next_page_cursor
            if before is None:
                break
        assert numbers == expected


async def test_previous_answer_is_found(store: Store) -> None:
    receipts = [PLAIN, replace(PLAIN, preset="nils"), PLAIN]
    await finish(store, receipts=receipts)
    log = AnswerLog(store.database)

    answer = present(await log.find(3))
    assert (answer.conversation, answer.receipt) == ("telegram:5", PLAIN)
    assert await log.find_previous_answer_by_preset(answer) == 1
    first = present(await log.find(1))
    assert await log.find_previous_answer_by_preset(first) is None
    assert await log.find(99) is None


async def test_context_of_an_answer_is_the_history_before_it(store: Store) -> None:
    now = datetime.now(UTC)
    said = [("5:1", "hello", "Hi."), ("5:2", "and now?", "Rain."), ("5:3", "and then?", "Sun.")]
    for key, question, answer in said:
        turns = [
            Turn("user", question, ALICE, now, message_id=key),
            Turn("assistant", answer, None, now, "nora", 3),
        ]
        receipt = replace(PLAIN, answer=answer, scopes=("telegram:5", "telegram"))
        await finish(store, key, turns=turns, outgoing=in_parts(answer), receipts=[receipt])
    log = AnswerLog(store.database)
    third, second, first = (await log.search(AnswerSearch(), 3)).answers

    scene = present(await log.find_scene(second))
    assert [one.text for one in scene.session_before_message.turns] == ["hello", "Hi."]
    assert (scene.message.text, scene.message.author, scene.answers) == ("and now?", ALICE, ())
    assert (scene.message.scopes, scene.answering_preset) == (("telegram:5", "telegram"), "nora")
    changed = replace(first, receipt=replace(first.receipt, answer="Ho."))
    assert await log.find_scene(changed) is None

    await finish(store, "5:4", change=HistoryChange(deleted_ids=[3, 4]))  # the second exchange
    scene = present(await log.find_scene(third))
    assert [one.text for one in scene.session_before_message.turns] == ["hello", "Hi."]

    assert await log.find_sent_time(first) is None
    [row] = await store.outbox.reserve_due_rows(["telegram:5"])
    await store.outbox.mark_sent(row, "m1")
    sent_at = present(await log.find_sent_time(first))
    assert sent_at >= now.timestamp()
    assert await log.find_sent_time(second) is None


PERSON = BudgetCap(BudgetKind.PERSON, Period.DAY, "telegram:1", "2026-11-22", 1_000)
SERVER = BudgetCap(BudgetKind.SERVER, Period.MONTH, "telegram:-7", "2026-11", 100_000)
PAID = replace(
    RECEIPT,
    usage=Usage(100, 40, 10),
    charge=AnswerCharge("telegram:1", "telegram:-7", "gpt", 250),
)
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


async def test_refused_reservation_is_not_counted(store: Store) -> None:
    budgets = Budgets(store.database)
    assert await budgets.reserve([PERSON, SERVER], 700) is None
    assert await budgets.reserve([SERVER, PERSON], 301) == PERSON
    assert await budgets.reserve([SERVER, PERSON], 300) is None
    assert await budgets.load_spent_amounts([PERSON, SERVER]) == {
        PERSON.key: 1000,
        SERVER.key: 1000,
    }


async def test_settling_releases_unspent_money(store: Store) -> None:
    budgets = Budgets(store.database)
    await budgets.reserve([PERSON, SERVER], 900)
    await budgets.settle([PERSON, SERVER], 900, 200)
    assert await budgets.load_spent_amounts([PERSON, SERVER]) == {PERSON.key: 200, SERVER.key: 200}
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
    spent = await budgets.load_spent_amounts([caps[0][1]])
    assert spent == {SERVER.key: 40 * answered}
    assert 50 <= answered <= 125  # 125 · 40 is the cap; never less than fit with 100 reserved


async def test_budget_starts_at_zero_in_each_period(store: Store) -> None:
    budgets = Budgets(store.database)
    assert await budgets.reserve([PERSON], 1000) is None
    assert await budgets.reserve([PERSON], 1) == PERSON
    assert await budgets.reserve([replace(PERSON, period_start="2026-11-23")], 1000) is None


async def test_usage_is_summed_and_kept_longer_than_the_text(store: Store) -> None:
    unpriced = replace(PAID, charge=replace(PAID.charge, cost=None))
    await finish(store, receipts=[PAID, PAID, unpriced])
    totals = UsageTotals(store.database)
    expected = UsageTotal(3, 300, 120, 30, 500, 1)
    assert await totals.person_total("telegram:1", LONG_AGO) == expected
    claim, _ = await take_message(store, "5:2")
    await store.conversations.forget(claim)
    assert await Receipts(store.database).find_for_last_message("telegram:5") == []
    assert await totals.person_total("telegram:1", LONG_AGO) == expected
    assert await totals.person_total("telegram:2", LONG_AGO) == UsageTotal(0, 0, 0, 0, 0, 0)
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    assert await totals.person_total("telegram:1", tomorrow) == UsageTotal(0, 0, 0, 0, 0, 0)


@pytest.mark.parametrize("how", ["all", "one", "expired"])
async def test_character_name_is_deleted_with_the_text_of_a_receipt(store: Store, how: str) -> None:
    named = [replace(PAID, preset="telegram:1/Ida"), PAID]
    question = Turn("user", "a", ALICE, datetime.now(UTC))
    await finish(store, turns=[question], receipts=named)
    claim, message = await take_message(store, "5:2")
    if how == "all":
        await store.conversations.forget(claim)
    elif how == "one":
        gone = HistoryChange(
            deleted_ids=await store.conversations.find_turns_by_person(claim, ALICE.id)
        )
        await store.conversations.finish(claim, message, TurnResult(change=gone))
    else:
        await delete_expired(store.database, SystemClock(), 0)
    assert await store.scalars(select(receipt.c.preset).order_by(receipt.c.id)) == [
        "character",
        "nora",
    ]


async def test_usage_by_day_has_a_row_for_each_model(store: Store) -> None:
    other = replace(PAID, charge=replace(PAID.charge, model="other"))
    # of an edit, which is finished step by step on PostgreSQL, too
    await finish(store, receipts=[PAID, other, PAID], change=HistoryChange())
    rows = await UsageTotals(store.database).usage_by_day(
        LONG_AGO, datetime.now(UTC) + timedelta(days=1)
    )
    assert {one.day for one in rows} == {datetime.now(UTC).date().isoformat()}
    assert [(one.model, one.total.answers, one.total.cost) for one in rows] == [
        ("gpt", 2, 500),
        ("other", 1, 250),
    ]
    assert (rows[0].person, rows[0].server, rows[0].preset) == ("telegram:1", "telegram:-7", "nora")


async def test_text_of_a_receipt_is_deleted_before_its_usage(store: Store) -> None:
    await finish(store, receipts=[PAID])
    totals, budgets = UsageTotals(store.database), Budgets(store.database)
    await budgets.reserve([PERSON, replace(PERSON, period_start="2020-01-01")], 5)

    async def age(days: float) -> None:
        older = update(receipt).values(at=receipt.c.at - days * 86_400)
        await store.write(older)
        await delete_expired(store.database, SystemClock(), 14)

    await age(15)
    assert await Receipts(store.database).find_for_last_message("telegram:5") == []
    assert (await totals.person_total("telegram:1", LONG_AGO)).cost == 250
    await age(400)
    assert (await totals.person_total("telegram:1", LONG_AGO)).answers == 0
    left = await budgets.load_spent_amounts([PERSON, replace(PERSON, period_start="2020-01-01")])
    assert list(left) == [PERSON.key]

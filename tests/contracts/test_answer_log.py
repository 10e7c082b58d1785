"""Contract of the search for answers, on SQLite and on PostgreSQL."""

from dataclasses import replace
from datetime import UTC, datetime

from bot.chat.answers import AnswerSearch
from bot.chat.prompt import FinishReason
from bot.chat.receipt import Timings
from bot.chat.session import Turn
from bot.chat.usage import AnswerCharge
from bot.storage.reports import AnswerLog
from tests.samples import ALICE
from tests.support.store import RECEIPT, Store, finish, in_parts, present

PLAIN = replace(RECEIPT, dropped=())


async def found(log: AnswerLog, asked: AnswerSearch, limit: int = 10) -> list[int]:
    return [one.number for one in (await log.search(asked, limit)).answers]


async def test_answers_are_found_by_what_is_asked(store: Store) -> None:
    receipts = [
        PLAIN,
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


async def test_pages_follow_each_other_without_gap(store: Store) -> None:
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
            before = page.next_before
            if before is None:
                break
        assert numbers == expected


async def test_answer_is_found_with_the_one_before_it(store: Store) -> None:
    receipts = [PLAIN, replace(PLAIN, preset="nils"), PLAIN]
    await finish(store, receipts=receipts)
    log = AnswerLog(store.database)

    answer = present(await log.find(3))
    assert (answer.conversation, answer.receipt) == ("telegram:5", PLAIN)
    assert await log.find_before(answer) == 1
    first = present(await log.find(1))
    assert await log.find_before(first) is None
    assert await log.find(99) is None


async def test_scene_of_an_answer_is_what_was_said_before_and_when_it_was_sent(
    store: Store,
) -> None:
    now = datetime.now(UTC)
    for key, question, answer in (("5:1", "hello", "Hi."), ("5:2", "and now?", "Rain.")):
        turns = [
            Turn("user", question, ALICE, now, message_id=key),
            Turn("assistant", answer, None, now, "nora", 3),
        ]
        receipt = replace(PLAIN, answer=answer, scopes=("telegram:5", "telegram"))
        await finish(store, key, turns=turns, outgoing=in_parts(answer), receipts=[receipt])
    log = AnswerLog(store.database)
    second, first = (await log.search(AnswerSearch(), 2)).answers

    scene = present(await log.find_scene(second))
    assert [one.text for one in scene.before.turns] == ["hello", "Hi."]
    assert (scene.said.text, scene.said.author, scene.answers) == ("and now?", ALICE, ())
    assert (scene.said.scopes, scene.answered_by) == (("telegram:5", "telegram"), "nora")
    changed = replace(first, receipt=replace(first.receipt, answer="Ho."))
    assert await log.find_scene(changed) is None

    assert await log.find_delivery(first) is None
    [row] = await store.outbox.take(["telegram:5"])
    await store.outbox.mark_sent(row, "m1")
    sent_at = present(await log.find_delivery(first))
    assert sent_at >= now.timestamp()
    assert await log.find_delivery(second) is None

"""Contract of receipts, on SQLite and on PostgreSQL."""

from dataclasses import replace

from sqlalchemy import func, select, update

from bot.chat.prompt import (
    FinishReason,
    Image,
    Message,
    Prompt,
    TemplateChoice,
    TemplateNames,
    Usage,
)
from bot.chat.receipt import DroppedItem, PromptSpan, Receipt, Timings
from bot.chat.session import Claim, InboxMessage, TurnResult
from bot.runtime.clock import SystemClock
from bot.storage.receipts import Receipts
from bot.storage.retention import delete_expired
from bot.storage.tables import receipt
from tests.contracts.conftest import Store
from tests.samples import begin, make_incoming

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


async def take_message(store: Store, key: str = "5:1") -> tuple[Claim, InboxMessage]:
    await store.inbox.receive([make_incoming(key=key)], {})
    return await begin(store.conversations)


async def test_receipt_is_found_by_number_and_by_conversation(store: Store) -> None:
    claim, message = await take_message(store)
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
    await store.conversations.finish(claim, message, TurnResult(receipts=[RECEIPT, other]))
    receipts = Receipts(store.database)
    assert await receipts.newest("telegram:5") == [(1, RECEIPT), (2, other)]
    assert await receipts.get(1) == RECEIPT
    assert await receipts.newest("telegram:6") == []
    assert await receipts.get(99) is None


async def test_receipts_are_deleted_after_some_days(store: Store) -> None:
    claim, message = await take_message(store)
    await store.conversations.finish(claim, message, TurnResult(receipts=[RECEIPT] * 2))
    old = update(receipt).where(receipt.c.id == 1).values(at=receipt.c.at - 3 * 86_400)
    await store.database.write(lambda c: c.execute(old).rowcount)
    assert await delete_expired(store.database, SystemClock(), 2) == 1
    count = select(func.count(receipt.c.id)).where(receipt.c.content != b"")
    assert await store.database.read(lambda c: c.execute(count).scalar()) == 1


async def test_receipts_are_deleted_with_their_conversation(store: Store) -> None:
    claim, message = await take_message(store)
    await store.conversations.finish(claim, message, TurnResult(receipts=[RECEIPT]))

    await store.conversations.forget(claim)

    assert await Receipts(store.database).get(1) is None

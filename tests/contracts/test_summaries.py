"""Contract of summaries, on SQLite and on PostgreSQL."""

from dataclasses import replace
from datetime import UTC, datetime

from sqlalchemy import func, select

from bot.chat.session import HistoryChange, Summary, Turn, TurnResult, fingerprint_turns
from bot.storage.summaries import SqlSummaries
from bot.storage.tables import summary
from tests.samples import ALICE, begin, make_incoming
from tests.support.store import Store, present

CONVERSATION = "telegram:5"
AT = datetime(2026, 11, 21, tzinfo=UTC)


async def save_summary(store: Store) -> tuple[SqlSummaries, Summary]:
    """Store three turns, and a summary of the first two."""
    await store.inbox.receive([make_incoming()], {})
    claim, message = await begin(store.conversations, CONVERSATION)
    turns = [Turn("user", text, ALICE, AT) for text in ("日本 🙂", "two", "three")]
    await store.conversations.finish(claim, message, TurnResult(turns=turns))
    summaries = SqlSummaries(store.database)
    covered = (await summaries.load_turns(CONVERSATION)).turns[:2]
    saved = Summary(1, covered[-1].id, fingerprint_turns(covered), "They count.")
    await summaries.save(CONVERSATION, saved)
    return summaries, saved


async def edit(store: Store, turn_id: int, text: str, key: str) -> None:
    await store.inbox.receive([make_incoming(key=key)], {})
    claim, message = await begin(store.conversations, CONVERSATION)
    change = HistoryChange({turn_id: text})
    await store.conversations.finish(claim, message, TurnResult(change=change))


async def test_summary_is_returned_with_its_turns(store: Store) -> None:
    summaries, saved = await save_summary(store)
    sources = await summaries.load_turns(CONVERSATION)
    assert await summaries.current(CONVERSATION) == sources.summary == saved
    assert [one.turn.text for one in sources.turns] == ["日本 🙂", "two", "three"]
    assert sources.turns[0].turn.speaker == ALICE


async def test_unstorable_characters_of_a_summary_are_replaced(store: Store) -> None:
    summaries, saved = await save_summary(store)
    await summaries.save(CONVERSATION, replace(saved, text="They\0count."))
    kept = present(await summaries.current(CONVERSATION))
    assert kept.text == "They\ufffdcount."


async def test_newer_summary_replaces_the_older(store: Store) -> None:
    summaries, saved = await save_summary(store)
    await summaries.save(CONVERSATION, replace(saved, text="They count on."))
    found = present(await summaries.current(CONVERSATION))
    assert found.text == "They count on."


async def test_summary_is_invalidated_by_edit_of_covered_turn_only(store: Store) -> None:
    summaries, saved = await save_summary(store)
    await edit(store, saved.covers_to + 1, "tree", key="5:2")
    assert await summaries.current(CONVERSATION) == saved
    await edit(store, saved.covers_to, "too much", key="5:3")
    assert await summaries.current(CONVERSATION) is None
    assert (await summaries.load_turns(CONVERSATION)).summary is None


async def test_summary_is_deleted_with_its_conversation(store: Store) -> None:
    await save_summary(store)
    await store.inbox.receive([make_incoming(key="5:2")], {})
    claim, _ = await begin(store.conversations, CONVERSATION)
    await store.conversations.forget(claim)
    rows = select(func.count()).select_from(summary)
    assert await store.database.write(lambda c: c.execute(rows).scalar_one()) == 0


async def test_unknown_conversation_has_no_summary(store: Store) -> None:
    summaries = SqlSummaries(store.database)
    assert await summaries.current(CONVERSATION) is None
    assert (await summaries.load_turns(CONVERSATION)).turns == ()

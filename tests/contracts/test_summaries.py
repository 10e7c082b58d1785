"""Contract of summaries, on SQLite and on PostgreSQL."""

from dataclasses import replace

import pytest
from sqlalchemy import select

from bot.chat.session import HistoryChange, Summary, fingerprint_turns
from bot.storage.summaries import SqlSummaries
from bot.storage.tables import summary
from tests.samples import ALICE
from tests.support.store import LANE, Store, finish, present, said, take_message


async def save_summary(store: Store) -> tuple[SqlSummaries, Summary]:
    """Store three turns, and a summary of the first two."""
    await finish(store, turns=[said(text) for text in ("日本 🙂", "two", "three")])
    summaries = SqlSummaries(store.database)
    covered = (await summaries.load_whole_session(LANE)).turns[:2]
    saved = Summary(1, covered[-1].id, fingerprint_turns(covered), "They count.")
    await summaries.save(LANE, saved)
    return summaries, saved


async def edit(store: Store, turn_id: int, text: str, key: str) -> None:
    await finish(store, key, change=HistoryChange({turn_id: text}))


async def test_summary_is_returned_with_its_turns(store: Store) -> None:
    summaries, saved = await save_summary(store)
    sources = await summaries.load_whole_session(LANE)
    assert await summaries.current(LANE) == sources.summary == saved
    assert [one.turn.text for one in sources.turns] == ["日本 🙂", "two", "three"]
    assert sources.turns[0].turn.speaker == ALICE


@pytest.mark.parametrize(
    ("text", "kept"), [("They count on.",) * 2, ("They\0count.", "They\ufffdcount.")]
)
async def test_newer_summary_replaces_the_older_summary(store: Store, text: str, kept: str) -> None:
    summaries, saved = await save_summary(store)
    await summaries.save(LANE, replace(saved, text=text))
    assert present(await summaries.current(LANE)).text == kept


async def test_summary_is_invalidated_only_by_edits_of_turns_it_covers(store: Store) -> None:
    summaries, saved = await save_summary(store)
    await edit(store, saved.last_turn_id + 1, "tree", key="5:2")
    assert await summaries.current(LANE) == saved
    await edit(store, saved.last_turn_id, "too much", key="5:3")
    assert await summaries.current(LANE) is None
    assert (await summaries.load_whole_session(LANE)).summary is None


async def test_summary_is_deleted_with_its_conversation(store: Store) -> None:
    summaries, _ = await save_summary(store)
    claim, _ = await take_message(store, "5:2")
    await store.conversations.forget(claim)
    assert await store.scalars(select(summary.c.text)) == []
    assert await summaries.current(LANE) is None
    assert (await summaries.load_whole_session(LANE)).turns == ()

"""A summary is kept beside what it was made of, on SQLite and on PostgreSQL."""

from dataclasses import replace
from datetime import UTC, datetime

from sqlalchemy import func, select, update

from bot.chat.session import Summary, Turn, TurnResult, fingerprint_turns
from bot.storage.sql.summaries import SqlSummaries
from bot.storage.sql.tables import summary, turn
from tests.contracts.conftest import Store
from tests.samples import ALICE, incoming

ROOM = "telegram:5"
AT = datetime(2026, 11, 21, tzinfo=UTC)


async def summed_up(store: Store) -> tuple[SqlSummaries, Summary]:
    """Three turns, of which the first two are covered."""
    await store.inbox.receive([incoming()], {})
    claim = await store.conversations.claim(ROOM, "me", 60)
    assert claim is not None
    heard = await store.conversations.next_message(claim)
    assert heard is not None
    turns = [Turn("user", text, ALICE, AT) for text in ("日本 🙂", "two", "three")]
    await store.conversations.finish(claim, heard, TurnResult(turns=turns))
    summaries = SqlSummaries(store.database)
    covered = (await summaries.load_turns(ROOM)).turns[:2]
    made = Summary(1, covered[-1].id, fingerprint_turns(covered), "They count.")
    await summaries.save(ROOM, made)
    return summaries, made


async def test_a_summary_is_found_with_its_sources(store: Store) -> None:
    summaries, made = await summed_up(store)
    sources = await summaries.load_turns(ROOM)
    assert await summaries.current(ROOM) == sources.summary == made
    assert [one.turn.text for one in sources.turns] == ["日本 🙂", "two", "three"]
    assert sources.turns[0].turn.speaker == ALICE


async def test_a_summary_is_kept_without_what_no_database_spells(store: Store) -> None:
    summaries, made = await summed_up(store)
    await summaries.save(ROOM, replace(made, text="They\0count."))
    kept = await summaries.current(ROOM)
    assert kept is not None
    assert kept.text == "They\ufffdcount."


async def test_a_newer_summary_takes_the_place_of_the_older(store: Store) -> None:
    summaries, made = await summed_up(store)
    await summaries.save(ROOM, replace(made, text="They count on."))
    found = await summaries.current(ROOM)
    assert found is not None
    assert found.text == "They count on."


async def test_an_edit_of_what_it_covers_ends_it_and_of_what_follows_does_not(store: Store) -> None:
    summaries, made = await summed_up(store)
    later = update(turn).where(turn.c.text == "three").values(text="tree")
    await store.database.write(lambda c: c.execute(later).rowcount)
    assert await summaries.current(ROOM) == made
    covered = update(turn).where(turn.c.text == "two").values(text="too much")
    await store.database.write(lambda c: c.execute(covered).rowcount)
    assert await summaries.current(ROOM) is None
    assert (await summaries.load_turns(ROOM)).summary is None


async def test_a_summary_is_forgotten_with_its_conversation(store: Store) -> None:
    await summed_up(store)
    claim = await store.conversations.claim(ROOM, "me", 60)
    assert claim is not None
    await store.conversations.forget(claim)
    rows = select(func.count()).select_from(summary)
    assert await store.database.write(lambda c: c.execute(rows).scalar_one()) == 0


async def test_a_room_that_nobody_knows_has_no_summary(store: Store) -> None:
    summaries = SqlSummaries(store.database)
    assert await summaries.current(ROOM) is None
    assert (await summaries.load_turns(ROOM)).turns == ()

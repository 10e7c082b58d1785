"""Contract of the progress of memory extraction, on SQLite and on PostgreSQL."""

from dataclasses import replace

from bot.chat.memory import (
    CheckedNote,
    Memory,
    MemoryPlace,
    MemoryReader,
    MemorySubject,
    SubjectKind,
)
from bot.chat.session import HistoryChange, Turn
from bot.runtime.clock import SystemClock
from bot.storage.extractions import SqlExtractions, UnreadTurns
from bot.storage.memories import SqlMemories
from tests.samples import ALICE
from tests.support.memory_world import Killed, MortalDatabase
from tests.support.store import LANE, Store, finish, said


def answer(text: str) -> Turn:
    return replace(said(text), role="assistant", speaker=None, preset="nora")


async def exchange(store: Store, number: int, *more: str) -> None:
    turns = [said(f"question {number}"), *map(said, more), answer(f"answer {number}")]
    await finish(store, f"5:{number}", turns=turns)


async def read_all(store: Store) -> UnreadTurns:
    """Read all turns, as for a model request."""
    extractions = SqlExtractions(store.database)
    unread = await extractions.load(LANE)
    assert await extractions.begin_extraction(LANE, unread)
    await extractions.finish(LANE, unread, unread.turns[-1].id)
    return unread


def texts(unread: UnreadTurns) -> list[str]:
    return [one.turn.text for one in unread.turns]


async def test_only_answered_questions_count_as_exchanges(store: Store) -> None:
    extractions = SqlExtractions(store.database)
    assert (await extractions.load(LANE)).exchange_count == 0
    await finish(store, "5:9", turns=[answer("hello, I am here"), said("anybody?")])
    await finish(store, "5:8", turns=[replace(said("between us"), is_observed=True)])
    assert (await extractions.load(LANE)).exchange_count == 0
    await exchange(store, 1, "asked together")
    await exchange(store, 2)
    assert (await extractions.load(LANE)).exchange_count == 2


async def test_turns_are_read_once_even_across_sessions(store: Store) -> None:
    await exchange(store, 1)
    await finish(store, "5:2", starts_session=True)
    await exchange(store, 3)
    assert texts(await read_all(store)) == ["question 1", "answer 1", "question 3", "answer 3"]
    await exchange(store, 4)
    unread = await SqlExtractions(store.database).load(LANE)
    assert (texts(unread), unread.exchange_count) == (["question 4", "answer 4"], 1)


async def test_observed_messages_do_not_displace_unread_exchanges(store: Store) -> None:
    await exchange(store, 1)
    talk = [replace(said(f"talk {number}"), is_observed=True) for number in range(120)]
    await finish(store, "5:2", turns=talk)
    unread = await SqlExtractions(store.database).load(LANE)
    assert texts(unread)[:3] == ["question 1", "answer 1", "talk 20"]
    assert len(unread.turns) == 102


async def test_only_one_of_two_processes_asks_the_model(store: Store) -> None:
    extractions = SqlExtractions(store.database)
    await exchange(store, 1)
    unread = await extractions.load(LANE)
    assert await extractions.begin_extraction(LANE, unread)
    assert not await extractions.begin_extraction(LANE, unread)
    again = await extractions.load(LANE)
    assert (texts(again), again.exchange_count) == (texts(unread), 0)


async def test_changed_turn_and_later_turns_are_read_again(store: Store) -> None:
    await exchange(store, 1)
    await exchange(store, 2)
    read = await read_all(store)
    change = HistoryChange({read.turns[2].id: "edited"})
    await finish(store, "5:3", change=change)
    unread = await SqlExtractions(store.database).load(LANE)
    assert (texts(unread), unread.exchange_count) == (["edited", "answer 2"], 0)


async def test_turn_that_changes_while_the_model_writes_is_read_again(store: Store) -> None:
    extractions = SqlExtractions(store.database)
    await exchange(store, 1)
    await exchange(store, 2)
    unread = await extractions.load(LANE)
    await finish(store, "5:3", change=HistoryChange({unread.turns[1].id: "edited"}))
    await extractions.finish(LANE, unread, unread.turns[-1].id)
    assert texts(await extractions.load(LANE)) == ["edited", "question 2", "answer 2"]


async def test_deleted_turn_does_not_block_progress(store: Store) -> None:
    extractions = SqlExtractions(store.database)
    await exchange(store, 1)
    await exchange(store, 2)
    unread = await extractions.load(LANE)
    gone = HistoryChange(deleted_ids=[unread.turns[0].id])
    await finish(store, "5:3", change=gone)
    await extractions.finish(LANE, unread, unread.turns[-1].id)
    assert texts(await extractions.load(LANE)) == []


async def test_notes_and_progress_are_stored_together_or_not_at_all(store: Store) -> None:
    database = MortalDatabase(store.database)
    extractions, memories = SqlExtractions(database), SqlMemories(database, SystemClock())
    await exchange(store, 1)
    unread = await extractions.load(LANE)
    source = unread.turns[0]
    place = MemoryPlace(LANE, LANE, is_private=False)
    about = MemorySubject(SubjectKind.PERSON, ALICE.id, "Alice")
    memory = Memory(about, "Alice keeps bees", ALICE.id, place, conversation=LANE)
    notes = [CheckedNote(memory, source, "")]
    for queries in range(1, 100):
        database.queries_left = queries
        try:
            await extractions.finish(LANE, unread, source.id, notes)
        except Killed:
            assert await memories.list_visible(MemoryReader(ALICE.id, place)) == []
            assert await extractions.load(LANE) == unread
        else:
            break
    database.queries_left = None
    assert len(await memories.list_visible(MemoryReader(ALICE.id, place))) == 1
    assert (await extractions.load(LANE)).last_read_id == source.id

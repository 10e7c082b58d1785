"""Contract of memories, on both databases: who can recall, see and change which memories."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import select

from bot.chat.memory import (
    MAX_MEMORIES_PER_CHANNEL,
    MAX_MEMORIES_PER_SUBJECT,
    Audience,
    Memory,
    MemoryPlace,
    MemoryReader,
    MemoryState,
    MemorySubject,
    Reach,
    RecallingCharacter,
    SubjectKind,
)
from bot.chat.receipt import PromptSpan, Receipt
from bot.chat.session import CONSENT_KEY, Consent, HistoryChange, StoredTurn, TurnRange
from bot.errors import UserError
from bot.runtime.clock import SystemClock
from bot.storage.forgetting import PersonalData, Tombstone
from bot.storage.memories import SqlMemories
from bot.storage.restoring import prepare_restored_database
from bot.storage.retention import delete_expired_turns
from bot.storage.summaries import SqlSummaries
from bot.storage.tables import memory, receipt
from tests.samples import ALICE, BOB, make_incoming
from tests.support.store import (
    LANE,
    RECEIPT,
    Store,
    finish,
    present,
    said,
    store_answer,
    take_message,
)

HERE = MemoryPlace(LANE, "telegram:guild", is_private=False)
NEXT_DOOR = MemoryPlace("telegram:6", "telegram:guild", is_private=False)
ELSEWHERE = MemoryPlace("telegram:7", "telegram:7", is_private=False)
PRIVATE = MemoryPlace("telegram:1", "telegram:1", is_private=True)
PLACES = (HERE, NEXT_DOOR, ELSEWHERE, PRIVATE)
ABOUT_ALICE = MemorySubject(SubjectKind.PERSON, ALICE.id, ALICE.name)
BY_HAND = Memory(ABOUT_ALICE, "Alice keeps bees", ALICE.id, HERE, is_derived=False, since=1.0)
DERIVED = replace(BY_HAND, is_derived=True, conversation=LANE)


@pytest.fixture
def memories(store: Store) -> SqlMemories:
    return SqlMemories(store.database, SystemClock())


async def turns_of(store: Store) -> Sequence[StoredTurn]:
    return (await SqlSummaries(store.database).load_whole_session(LANE)).turns


async def add_derived(store: Store, memories: SqlMemories, **changes: Any) -> Memory:
    """Store a question and a memory that is derived from it."""
    await finish(store, turns=[said("I keep bees"), said("and cats")])
    source, _ = await turns_of(store)
    return present(await memories.add(replace(DERIVED, **changes), [source]))


async def recalled(memories: SqlMemories, place: MemoryPlace, preset: str = "nora") -> list[str]:
    found = await memories.recall(RecallingCharacter(place, preset, BOB.id, (ALICE.id,)))
    return sorted(one.text for one in found.memories)


async def consent(store: Store, memories: SqlMemories, person: str, choice: Consent) -> None:
    await store.chat_settings.set(person, CONSENT_KEY, choice, person)
    await memories.apply_consent_to_audiences(person)


async def test_memory_derived_again_from_its_turn_keeps_its_witnesses(
    store: Store, memories: SqlMemories
) -> None:
    first = await add_derived(store, memories, witnesses=("nora", "basil"))
    source, _ = await turns_of(store)
    again = present(await memories.add(replace(DERIVED, witnesses=("nora",)), [source]))
    assert (again.id, again.witnesses) == (first.id, ("nora", "basil"))
    for preset in ("nora", "basil"):
        assert await recalled(memories, HERE, preset) == [BY_HAND.text]
    elsewhere = present(await memories.add(replace(BY_HAND, witnesses=("nora",))))
    assert elsewhere.id != first.id


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (Consent.HERE, {HERE}),
        (Consent.SERVER, {HERE, NEXT_DOOR}),
        (Consent.EVERYWHERE, set(PLACES)),
    ],
)
@pytest.mark.parametrize("is_before", [True, False])
async def test_memory_is_recalled_only_where_its_author_consents(
    store: Store,
    memories: SqlMemories,
    choice: Consent,
    expected: set[MemoryPlace],
    *,
    is_before: bool,
) -> None:
    if is_before:
        await consent(store, memories, ALICE.id, choice)
    await memories.add(BY_HAND)
    if not is_before:
        await consent(store, memories, ALICE.id, choice)
    assert {one for one in PLACES if await recalled(memories, one)} == expected
    await consent(store, memories, ALICE.id, Consent.HERE)
    assert {one for one in PLACES if await recalled(memories, one)} == {HERE}


async def test_private_memories_stay_private_whatever_their_author_consents_to(
    store: Store, memories: SqlMemories
) -> None:
    await consent(store, memories, ALICE.id, Consent.EVERYWHERE)
    kept = present(await memories.add(replace(BY_HAND, place=PRIVATE)))
    assert {one for one in PLACES if await recalled(memories, one)} == {PRIVATE}
    own = await memories.recall(RecallingCharacter(HERE, "nora", ALICE.id))
    others = await memories.recall(RecallingCharacter(HERE, "nora", BOB.id, (ALICE.id,)))
    assert (own.memories, own.omitted_private_ids) == ((), (kept.id,))
    assert (others.memories, others.omitted_private_ids) == ((), ())


async def test_author_can_widen_the_audience_of_a_memory_and_undo_it(memories: SqlMemories) -> None:
    kept = present(await memories.add(replace(BY_HAND, place=PRIVATE)))
    alice, wide = MemoryReader(ALICE.id, HERE), Audience(Reach.SERVER, HERE.server)
    assert (
        await memories.widen_audience(kept.id, MemoryReader(BOB.id, PRIVATE, is_admin=True), wide)
        is None
    )
    assert present(await memories.widen_audience(kept.id, alice, wide)).audience == wide
    assert {one for one in PLACES if await recalled(memories, one)} == {HERE, NEXT_DOOR, PRIVATE}
    await memories.widen_audience(kept.id, alice, None)
    assert {one for one in PLACES if await recalled(memories, one)} == {PRIVATE}


async def test_memory_is_recalled_elsewhere_only_if_its_subject_also_consents(
    store: Store, memories: SqlMemories
) -> None:
    await consent(store, memories, ALICE.id, Consent.EVERYWHERE)
    about_bob = MemorySubject(SubjectKind.PERSON, BOB.id, "Bob")
    await memories.add(replace(BY_HAND, subject=about_bob))
    assert {one for one in PLACES if await recalled(memories, one)} == {HERE}
    await consent(store, memories, BOB.id, Consent.OFF)
    assert await memories.add(replace(BY_HAND, subject=about_bob, text="Bob sings")) is None


async def test_character_recalls_only_what_it_witnessed(memories: SqlMemories) -> None:
    await memories.add(replace(BY_HAND, witnesses=("nora", "basil")))
    await memories.add(replace(BY_HAND, text="Alice is afraid of wasps", witnesses=("basil",)))
    await memories.add(replace(BY_HAND, text="The inn has a new owner"))
    assert len(await recalled(memories, HERE, "nora")) == 2
    assert len(await recalled(memories, HERE, "basil")) == 3
    assert await recalled(memories, HERE, "asil") == ["The inn has a new owner"]


async def test_person_can_list_own_memories_and_those_of_the_place(memories: SqlMemories) -> None:
    for number, place in enumerate(PLACES):
        await memories.add(replace(BY_HAND, text=f"{number} bees", place=place))
    for place in PLACES:
        assert len(await memories.list_visible(MemoryReader(ALICE.id, place))) == len(PLACES)
        [seen] = await memories.list_visible(MemoryReader(BOB.id, place))
        assert seen.place == place


async def test_only_author_subject_and_admins_change_a_memory(memories: SqlMemories) -> None:
    for reader, may in (
        (MemoryReader(ALICE.id, ELSEWHERE), True),
        (MemoryReader(BOB.id, HERE), False),
        (MemoryReader(BOB.id, HERE, is_admin=True), True),
        (MemoryReader(BOB.id, ELSEWHERE, is_admin=True), False),
    ):
        kept = present(await memories.add(BY_HAND))
        assert (await memories.change(kept.id, reader, is_pinned=True) is not None) == may
        retired = await memories.change(kept.id, reader, state=MemoryState.RETIRED)
        assert (retired is not None) == may
        assert await recalled(memories, HERE) == ([] if may else [BY_HAND.text])
        corrected = await memories.correct_text(kept.id, reader, "Alice keeps wasps", None)
        assert (corrected is not None) == may
        number = corrected.id if corrected else kept.id
        assert (await memories.forget(number, reader) is not None) == may


async def test_near_duplicate_replaces_an_older_memory_but_not_a_manual_one(
    store: Store, memories: SqlMemories
) -> None:
    first = present(await memories.add(BY_HAND))
    again = present(await memories.add(replace(BY_HAND, text="Alice keeps bees!", since=2.0)))
    assert again.id == first.id
    assert await recalled(memories, HERE) == ["Alice keeps bees!"]
    await finish(store, turns=[said("I keep bees")])
    assert await memories.add(DERIVED, await turns_of(store)) is None
    near, far = (bytes(3072), b"\0\0\x80?" + bytes(3068))
    vectors = replace(BY_HAND, text="She has hives", model="m", vector=far)
    await memories.add(vectors)
    await memories.add(replace(vectors, text="Honey is what she sells"))
    await memories.add(replace(vectors, text="Sheep are her neighbors", vector=near))
    assert len(await recalled(memories, HERE)) == 3


async def test_newer_memory_retires_a_memory_that_it_contradicts(memories: SqlMemories) -> None:
    hives, sheep = (b"\0\0\x80?" + bytes(12), bytes(12) + b"\0\0\x80?")
    said_before = replace(BY_HAND, model="m", vector=hives)
    await memories.add(said_before)
    new = replace(BY_HAND, text="All hives were sold", model="m", vector=sheep, since=5.0)
    for other in (
        replace(new, said_by=BOB.id),
        replace(new, model="other"),
        replace(new, since=0.5),
    ):
        kept = present(await memories.add(other, outdated_fact_vector=hives))
        await memories.forget(kept.id, MemoryReader(kept.said_by, HERE, is_admin=True))
    assert await recalled(memories, HERE) == [BY_HAND.text]
    await memories.add(new, outdated_fact_vector=hives)
    assert await recalled(memories, HERE) == [new.text]
    seen = await memories.list_visible(MemoryReader(ALICE.id, HERE))
    assert [(one.state, one.until) for one in seen] == [
        (MemoryState.KEPT, None),
        (MemoryState.RETIRED, 5.0),
    ]


async def test_oldest_derived_memories_are_evicted_first(
    store: Store, memories: SqlMemories
) -> None:
    derived = await add_derived(store, memories)
    texts = [f"{chr(97 + number) * 9} {number}" for number in range(MAX_MEMORIES_PER_SUBJECT)]
    for text in texts:
        await memories.add(replace(BY_HAND, text=text))
    assert await recalled(memories, HERE) == sorted(texts)
    with pytest.raises(UserError, match="25"):
        await memories.add(replace(BY_HAND, text="one too many"))
    assert await memories.add(replace(BY_HAND, place=ELSEWHERE)) is not None
    assert derived.text not in await recalled(memories, HERE)


async def test_number_of_memories_per_channel_is_limited(memories: SqlMemories) -> None:
    for number in range(MAX_MEMORIES_PER_CHANNEL):
        who = MemorySubject(SubjectKind.PERSON, f"telegram:9{number}", "")
        await memories.add(replace(BY_HAND, subject=who, said_by=who.key))
    with pytest.raises(UserError, match="200"):
        await memories.add(BY_HAND)


@pytest.mark.parametrize(
    "way", ["edit", "delete", "supersede", "undo", "retry", "expire", "forget"]
)
async def test_derived_memory_is_deleted_with_its_turn(
    store: Store, memories: SqlMemories, way: str
) -> None:
    kept = await add_derived(store, memories)
    await memories.add(replace(BY_HAND, text="Written by hand", conversation=""))
    assert len(await recalled(memories, HERE)) == 2
    [source] = kept.turn_ids
    match way:
        case "edit":
            await finish(store, "5:2", change=HistoryChange({source: "I keep wasps"}))
        case "delete":
            await finish(store, "5:2", change=HistoryChange(deleted_ids=[source]))
        case "supersede":
            await finish(store, "5:2", change=HistoryChange(superseded_ids=[source]))
        case "undo":
            await finish(store, "5:2", removed_range=TurnRange(0, 2))
        case "retry":
            await finish(store, "5:2", replaced_range=TurnRange(0, 2))
        case "expire":
            await delete_expired_turns(store.database, SystemClock(), -1)
        case _:
            claim, _ = await take_message(store, "5:2")
            await store.conversations.forget(claim)
    assert await recalled(memories, HERE) == ["Written by hand"]
    assert await store.scalars(select(memory.c.is_derived)) == [False]


async def test_memory_is_kept_when_other_turns_change(store: Store, memories: SqlMemories) -> None:
    kept = await add_derived(store, memories)
    await finish(store, "5:2", change=HistoryChange({kept.turn_ids[0] + 1: "and dogs"}))
    await finish(store, "5:3", removed_range=TurnRange(0, 1))
    assert await recalled(memories, HERE) == [kept.text]


async def test_memory_is_refused_if_its_turn_changed_in_the_meantime(
    store: Store, memories: SqlMemories
) -> None:
    await finish(store, turns=[said("I keep bees")])
    [read] = await turns_of(store)
    await finish(store, "5:2", change=HistoryChange({read.id: "I keep nothing"}))
    assert await memories.add(DERIVED, [read]) is None
    assert await memories.add(DERIVED, ()) is None


async def test_all_memories_of_a_forgotten_person_are_deleted(
    store: Store, memories: SqlMemories
) -> None:
    await memories.add(BY_HAND)
    await memories.add(replace(BY_HAND, said_by=BOB.id, text="She sings, says Bob"))
    about_bob = MemorySubject(SubjectKind.PERSON, BOB.id, "Bob")
    await memories.add(replace(BY_HAND, subject=about_bob, said_by=BOB.id, text="Bob sings"))
    await PersonalData(store.database, SystemClock()).forget_outside_histories(ALICE.id)
    assert await recalled(memories, HERE) == ["Bob sings"]


def recalling(*numbers: int) -> Receipt:
    spans = [PromptSpan("memory", 1, 1, 3, memory=one) for one in numbers]
    return replace(RECEIPT, layout=(*spans, *RECEIPT.layout))


async def test_forgotten_memory_is_removed_from_receipts_that_quote_it(
    store: Store, memories: SqlMemories
) -> None:
    kept = present(await memories.add(BY_HAND))
    other = present(await memories.add(replace(BY_HAND, text="The inn has a new owner")))
    quoting = recalling(kept.id, other.id)
    await store_answer(store.database, quoting, recalling(other.id))
    await store_answer(store.database, RECEIPT, incoming=make_incoming(key="5:2"))
    data = PersonalData(store.database, SystemClock())
    assert LANE not in (await data.find_conversations_with_deletions(0.0)).values()
    await memories.forget(kept.id, MemoryReader(ALICE.id, HERE))
    contents = await store.scalars(select(receipt.c.content).order_by(receipt.c.id))
    assert [bool(one) for one in contents] == [False, True, True]
    assert LANE in (await data.find_conversations_with_deletions(0.0)).values()


async def test_operators_see_the_newest_memories_of_all_places(memories: SqlMemories) -> None:
    texts = ("Alice keeps bees", "The pub is closed", "Rain is expected")
    for text, place in zip(texts, (HERE, PRIVATE, ELSEWHERE), strict=True):
        state = MemoryState.PROPOSED if place is PRIVATE else MemoryState.KEPT
        assert await memories.add(replace(BY_HAND, text=text, place=place, state=state))
    assert [one.text for one in await memories.list_newest()] == [*reversed(texts)]
    [waiting] = await memories.list_newest(MemoryState.PROPOSED)
    operator = MemoryReader("", waiting.place, is_admin=True)
    assert await memories.change(waiting.id, operator, state=MemoryState.KEPT)
    assert await memories.list_newest(MemoryState.PROPOSED) == []
    assert [one.text for one in await memories.list_newest(number=waiting.id)] == [texts[1]]
    assert await memories.forget(waiting.id, operator)
    assert await memories.list_newest(number=waiting.id) == []


async def test_export_contains_the_memories_of_the_person(
    store: Store, memories: SqlMemories
) -> None:
    assert await memories.add(BY_HAND)
    assert await memories.add(replace(BY_HAND, text="The pub is closed", said_by=BOB.id))
    place = MemorySubject(SubjectKind.PLACE, LANE)
    assert await memories.add(replace(BY_HAND, subject=place, said_by=BOB.id))
    found = (await PersonalData(store.database, SystemClock()).export(ALICE.id))["memories"]
    audience = "channel telegram:5"
    assert found == [
        {"text": text, "about": "Alice", "audience": audience, "since": 1.0}
        for text in ("Alice keeps bees", "The pub is closed")
    ]


async def test_memory_deleted_during_an_answer_is_not_in_its_receipt(
    store: Store, memories: SqlMemories
) -> None:
    kept = present(await memories.add(BY_HAND))
    gone = present(await memories.add(replace(BY_HAND, text="The inn has a new owner")))
    await memories.forget(gone.id, MemoryReader(ALICE.id, HERE))
    await store_answer(store.database, recalling(kept.id, gone.id), recalling(kept.id))
    contents = await store.scalars(select(receipt.c.content).order_by(receipt.c.id))
    assert [bool(one) for one in contents] == [False, True]
    data = PersonalData(store.database, SystemClock())
    assert LANE in (await data.find_conversations_with_deletions(0.0)).values()


async def test_deletions_and_consent_are_repeated_on_a_restored_backup(store: Store) -> None:
    tombstones: list[Tombstone] = []
    memories = SqlMemories(store.database, SystemClock(), tombstones.append)
    await consent(store, memories, BOB.id, Consent.SERVER)
    about_bob = MemorySubject(SubjectKind.PERSON, BOB.id, "Bob")
    await memories.add(replace(BY_HAND, subject=about_bob, said_by=BOB.id, text="Bob sings"))
    kept = present(await memories.add(BY_HAND))
    await memories.forget(kept.id, MemoryReader(ALICE.id, HERE))
    restored = present(await memories.add(BY_HAND))  # as the backup has it
    tombstones = [replace_number(one, restored.id) for one in tombstones]
    tombstones.append(Tombstone(9.0, consent_of=BOB.id, consent=Consent.HERE))
    await prepare_restored_database(store.database, tombstones, 0.0, 9.0)
    assert await recalled(memories, HERE) == ["Bob sings"]
    assert await recalled(memories, NEXT_DOOR) == []


def replace_number(tombstone: Tombstone, number: int) -> Tombstone:
    return Tombstone(tombstone.at, memories=(number,))

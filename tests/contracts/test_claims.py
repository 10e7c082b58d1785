"""Contract of the inbox and of claims, on SQLite and on PostgreSQL."""

from collections.abc import Awaitable, Sequence
from dataclasses import replace

import pytest
from sqlalchemy import func, select, update

from bot.chat.session import AttemptState, Claim, InboxMessage, TurnResult
from bot.errors import Fenced
from bot.storage.tables import conversation, inbox
from tests.samples import make_incoming
from tests.support.store import (
    LANE,
    LEASE,
    Store,
    claimed,
    due,
    in_parts,
    present,
    ready,
    said,
    take_message,
    texts_of,
)


async def test_received_message_is_decoded_unchanged(store: Store) -> None:
    message = make_incoming("héllo\n🎭 '); DROP TABLE inbox;--", thread="7", quote="before")
    await store.inbox.receive([message], {"telegram:offset": "8"})
    begun = present(await claimed(store, message.address.conversation))
    assert begun.message.incoming == message
    assert await store.inbox.cursors("telegram:") == {"telegram:offset": "8"}


async def test_message_delivered_again_is_not_stored_again(store: Store) -> None:
    await store.inbox.receive([make_incoming(), make_incoming()], {})
    await store.inbox.receive([make_incoming()], {"telegram:offset": "9"})
    assert await store.scalar(select(func.count(inbox.c.id))) == 1
    begun = present(await claimed(store))
    await store.conversations.finish(begun.claim, begun.message, TurnResult())
    await store.inbox.receive([make_incoming(key="5:1")], {})
    assert await claimed(store) is None
    assert await ready(store) == []


async def test_messages_are_processed_in_the_order_of_their_arrival(store: Store) -> None:
    await store.inbox.receive([make_incoming(key=f"5:{n}") for n in range(3)], {})
    begun = present(await claimed(store))
    keys = []
    message: InboxMessage | None = begun.message
    while message is not None:
        keys.append(message.incoming.external_key)
        finished = await store.conversations.finish(begun.claim, message, TurnResult())
        message = finished.next_message
    assert keys == ["5:0", "5:1", "5:2"]
    assert await ready(store) == []


async def test_list_of_waiting_events_is_limited_per_conversation(store: Store) -> None:
    names = [f"telegram:{number}" for number in range(40_000)]  # more than a statement binds
    stop = make_incoming("/stop", key="6:0", chat="6")
    queued = [make_incoming(f"{n}", key=f"5:{n}") for n in range(30)]
    await store.inbox.receive([stop, *queued, make_incoming(key="b", chat="b")], {})
    waiting = await store.inbox.newest_unanswered(names, 500, max_per_conversation=20)
    assert waiting == [*reversed(queued[10:]), stop]
    assert await store.inbox.newest_unanswered(names, 3, max_per_conversation=20) == [
        *reversed(queued[27:])
    ]
    assert await store.inbox.newest_unanswered([], 500, max_per_conversation=20) == []
    begun = present(await claimed(store, "telegram:6"))
    await store.conversations.finish(begun.claim, begun.message, TurnResult())
    assert await store.inbox.newest_unanswered(["telegram:6"], 500, max_per_conversation=20) == []


async def test_conversation_has_one_claim_until_it_is_released(store: Store) -> None:
    claim, message = await take_message(store)
    assert await claimed(store, owner="other") is None
    assert await ready(store) == []
    await store.conversations.release(claim)
    assert await store.conversations.renew([claim], LEASE) == []
    assert await ready(store) == [LANE], "it is not renewed any more"
    claim = present(await claimed(store, lease=-1)).claim
    assert await ready(store) == [LANE], "its lease has ended"
    begun = present(await claimed(store, owner="other"))
    finished = await store.conversations.finish(begun.claim, message, TurnResult())
    assert finished.next_message is None
    assert await ready(store) == []
    await store.inbox.receive([make_incoming(key="5:2")], {})
    assert await ready(store) == [LANE]


async def test_finish_without_continuing_releases_the_conversation(store: Store) -> None:
    await store.inbox.receive([make_incoming(key="5:1"), make_incoming(key="5:2")], {})
    begun = present(await claimed(store))
    finished = await store.conversations.finish(
        begun.claim, begun.message, TurnResult(), begins_next=False
    )
    assert finished.next_message is None
    after = present(await claimed(store, owner="other"))
    assert (after.message.incoming.external_key, after.message.crash_count) == ("5:2", 0)


async def test_only_conversations_of_served_platforms_are_ready(store: Store) -> None:
    await store.inbox.receive([make_incoming(platform="discord"), make_incoming()], {})
    assert await ready(store, "telegram", "terminal") == [LANE]
    assert await ready(store, "tele") == []


async def test_restarted_owner_does_not_wait_for_its_own_lease(store: Store) -> None:
    await store.inbox.receive([make_incoming(), make_incoming(chat="6", key="6:1")], {})
    await claimed(store)
    await claimed(store, "telegram:6", owner="other")
    await store.conversations.release_all("me")
    assert await ready(store) == [LANE]


async def test_renewal_extends_all_claims_and_returns_the_lost_ones(store: Store) -> None:
    await store.inbox.receive([make_incoming(), make_incoming(chat="6", key="6:1")], {})
    lost = present(await claimed(store, lease=-1))
    held = present(await claimed(store, "telegram:6", lease=-1))
    present(await claimed(store, owner="other", lease=-1))
    assert await store.conversations.renew([lost.claim, held.claim], LEASE) == [lost.claim]
    assert await ready(store) == [LANE], "the other's lease is not touched"


def writes(store: Store, claim: Claim, message: InboxMessage) -> list[Awaitable[object]]:
    [part] = in_parts("x")
    return [
        store.conversations.finish(claim, message, TurnResult([said("x")], [part])),
        store.conversations.release(claim),
        store.conversations.open_part(claim, message, part),
        store.conversations.record_attempt(claim, message, AttemptState.NONE),
        store.conversations.forget(claim),
    ]


async def test_later_claim_fences_all_writes_of_an_earlier_claim(store: Store) -> None:
    await store.inbox.receive([make_incoming()], {})
    old = present(await claimed(store, lease=-1))
    new = present(await claimed(store, owner="other"))
    assert new.claim.epoch > old.claim.epoch
    for stale in writes(store, old.claim, old.message):
        with pytest.raises(Fenced):
            await stale
    assert await texts_of(store) == []
    assert await due(store) == []


async def test_claim_that_the_server_lost_is_fenced_by_its_successor(store: Store) -> None:
    lost, message = await take_message(store)
    await store.write(update(conversation).values(epoch=0, owner=None, lease_until=0.0))
    again = present(await claimed(store, owner="other"))
    assert again.claim.epoch == lost.epoch
    assert await store.conversations.renew([lost], LEASE) == [lost]
    for stale in writes(store, lost, message):
        with pytest.raises(Fenced):
            await stale
    await store.conversations.finish(again.claim, again.message, TurnResult())


async def test_crashes_are_counted_but_deliberate_stops_are_not(store: Store) -> None:
    claim, message = await take_message(store)
    assert message.crash_count == 0
    await store.conversations.release(claim)
    again = present(await claimed(store))
    assert again.message.crash_count == 1
    await store.conversations.record_attempt(again.claim, again.message, AttemptState.NONE)
    await store.conversations.release(again.claim)
    third = present(await claimed(store))
    assert third.message.crash_count == 1


async def begin_again(store: Store) -> tuple[Claim, InboxMessage]:
    """Claim the oldest message like a process restarted after a crash."""
    await store.conversations.release_all("me")
    begun = present(await claimed(store))
    return begun.claim, begun.message


async def count_deaths(store: Store, *attempts: AttemptState | None) -> list[tuple[int, int]]:
    """Crash in each attempt; return the counts of all crashes and of own crashes after each."""
    await take_message(store)
    counts = []
    for attempt in attempts:
        claim, message = await begin_again(store)
        counts.append((message.crash_count, message.own_crash_count))
        if attempt is not None:
            await store.conversations.record_attempt(claim, message, attempt)
    return counts


@pytest.mark.parametrize(
    ("attempts", "counted"),
    [
        (
            (
                None,
                AttemptState.WITH_OTHERS,
                AttemptState.RUNS_ALONE,
                AttemptState.RUNS_ALONE,
                AttemptState.NONE,
                None,
            ),
            [(1, 0), (2, 0), (3, 0), (4, 1), (5, 2), (5, 2)],
        ),
        ((AttemptState.RUNS_ALONE, AttemptState.RUNS_ALONE, None), [(1, 0), (2, 2), (3, 3)]),
        ((AttemptState.RUNS_ALONE, AttemptState.DEFERRED, None), [(1, 0), (2, 2), (2, 0)]),
        ((None, None, None, None), [(1, 0), (2, 0), (2, 0), (2, 0)]),
    ],
    ids=["only alone", "a second in a row", "deferred", "a suspect that has not started"],
)
async def test_crash_is_blamed_on_a_message_only_without_another_suspect(
    store: Store, attempts: Sequence[AttemptState | None], counted: Sequence[tuple[int, int]]
) -> None:
    assert await count_deaths(store, *attempts) == counted


async def test_two_bots_in_one_group_share_neither_messages_nor_lanes(store: Store) -> None:
    other = make_incoming()
    other = replace(other, address=replace(other.address, bot_id="77"))
    await store.inbox.receive([make_incoming(), other], {})
    both = [LANE, "telegram@77:5"]
    assert sorted(await ready(store, "telegram", "telegram@77")) == both
    assert await ready(store, "telegram@77", "discord") == both[1:]
    assert await ready(store, "telegram@7", "discord@77") == []
    for key in both:
        begun = present(await claimed(store, key))
        result = TurnResult(outgoing=in_parts("hi"))
        await store.conversations.finish(begun.claim, begun.message, result)
    assert await due(store, "telegram@77") == both[1:]
    assert await due(store) == [LANE]
    rows = await store.outbox.reserve_due_rows(both)
    assert [row.address.bot_id for row in rows] == ["", "77"]


async def test_message_is_found_until_it_is_answered(store: Store) -> None:
    claim, message = await take_message(store)
    address = message.incoming.address
    assert await store.inbox.find_in_progress(address, "5:1") == [message.incoming]
    assert await store.inbox.find_in_progress(replace(address, bot_id="7"), "5:1") == []
    await store.conversations.finish(claim, message, TurnResult())
    assert await store.inbox.find_in_progress(address, "5:1") == []

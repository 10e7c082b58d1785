"""What the inbox and the claims promise, on SQLite and on PostgreSQL."""

from dataclasses import replace

import pytest
from sqlalchemy import func, select, update

from bot.chat.outgoing import MessageContent, OutgoingPart
from bot.chat.session import Attempt, Claim, InboxMessage, TurnResult
from bot.errors import Fenced
from bot.storage.tables import conversation, inbox
from tests.samples import make_incoming, read_session
from tests.support.store import LANE, LEASE, Store, claimed, due, present, ready, said, take_message


async def test_received_message_is_given_back_whole(store: Store) -> None:
    message = make_incoming("héllo\n🎭 '); DROP TABLE inbox;--", thread="7", quote="before")
    await store.inbox.receive([message], {"telegram:offset": "8"})
    begun = present(await claimed(store, message.address.conversation))
    assert begun.message.incoming == message
    assert await store.inbox.cursors("telegram:") == {"telegram:offset": "8"}


async def test_message_delivered_twice_is_stored_once(store: Store) -> None:
    await store.inbox.receive([make_incoming(), make_incoming()], {})
    await store.inbox.receive([make_incoming()], {"telegram:offset": "9"})
    count = await store.scalar(select(func.count(inbox.c.id)))
    assert count == 1


async def test_message_delivered_again_after_its_answer_is_not_begun(store: Store) -> None:
    claim, message = await take_message(store)
    await store.conversations.finish(claim, message, TurnResult())
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


async def test_waiting_gives_the_newest_of_each_of_any_number_of_conversations(
    store: Store,
) -> None:
    names = [f"telegram:{number}" for number in range(40_000)]  # more than a statement binds
    stop = make_incoming("/stop", key="6:0", chat="6")
    queued = [make_incoming(f"{n}", key=f"5:{n}") for n in range(30)]
    await store.inbox.receive([stop, *queued, make_incoming(key="b", chat="b")], {})
    waiting = await store.inbox.waiting(names, 500, of_each=20)
    assert waiting == [*reversed(queued[10:]), stop]
    assert await store.inbox.waiting(names, 3, of_each=20) == [*reversed(queued[27:])]
    assert await store.inbox.waiting([], 500, of_each=20) == []
    begun = present(await claimed(store, "telegram:6"))
    await store.conversations.finish(begun.claim, begun.message, TurnResult())
    assert await store.inbox.waiting(["telegram:6"], 500, of_each=20) == []


async def test_conversation_is_held_by_one_until_it_is_released(store: Store) -> None:
    claim, _ = await take_message(store)
    assert await claimed(store, owner="other") is None
    assert await ready(store) == []
    await store.conversations.release(claim)
    assert await ready(store) == [LANE]
    assert await claimed(store, owner="other") is not None


async def test_expired_lease_lets_others_claim(store: Store) -> None:
    await store.inbox.receive([make_incoming()], {})
    assert await claimed(store, lease=-1) is not None
    assert await ready(store) == [LANE]
    assert await claimed(store, owner="other") is not None


async def test_released_conversation_waits_for_its_next_message(store: Store) -> None:
    claim, message = await take_message(store)
    finished = await store.conversations.finish(claim, message, TurnResult())
    assert finished.next_message is None
    assert await ready(store) == []
    await store.inbox.receive([make_incoming(key="5:2")], {})
    assert await ready(store) == [LANE]


async def test_finish_that_does_not_go_on_leaves_the_rest_to_others(store: Store) -> None:
    await store.inbox.receive([make_incoming(key="5:1"), make_incoming(key="5:2")], {})
    begun = present(await claimed(store))
    finished = await store.conversations.finish(
        begun.claim, begun.message, TurnResult(), go_on=False
    )
    assert finished.next_message is None
    after = present(await claimed(store, owner="other"))
    assert (after.message.incoming.external_key, after.message.crashes) == ("5:2", 0)


async def test_only_conversations_of_served_platforms_are_ready(store: Store) -> None:
    await store.inbox.receive([make_incoming(platform="discord"), make_incoming()], {})
    assert await ready(store, "telegram", "terminal") == [LANE]
    assert await ready(store, "tele") == []


async def test_restarted_owner_need_not_wait_for_its_own_lease(store: Store) -> None:
    await store.inbox.receive([make_incoming(), make_incoming(chat="6", key="6:1")], {})
    await claimed(store)
    await claimed(store, "telegram:6", owner="other")
    await store.conversations.release_all("me")
    assert await ready(store) == [LANE]


async def test_renewal_holds_all_claims_and_returns_those_that_were_lost(store: Store) -> None:
    await store.inbox.receive([make_incoming(), make_incoming(chat="6", key="6:1")], {})
    lost = await claimed(store, lease=-1)
    held = await claimed(store, "telegram:6", lease=-1)
    assert lost is not None
    assert held is not None
    later = await claimed(store, owner="other", lease=-1)

    assert await store.conversations.renew([lost.claim, held.claim], LEASE) == [lost.claim]

    assert later is not None
    assert await ready(store) == [LANE]  # the other's lease is not touched


async def test_renewal_does_not_hold_what_was_released(store: Store) -> None:
    await store.inbox.receive([make_incoming()], {})
    one = present(await claimed(store))
    await store.conversations.release(one.claim)

    assert await store.conversations.renew([one.claim], LEASE) == []

    assert await claimed(store, owner="other") is not None


async def test_later_claim_fences_everything_an_earlier_one_does(store: Store) -> None:
    await store.inbox.receive([make_incoming()], {})
    old = await claimed(store, lease=-1)
    new = await claimed(store, owner="other")
    assert old is not None
    assert new is not None
    assert new.claim.epoch > old.claim.epoch
    claim, message = old.claim, old.message
    result = TurnResult(turns=[said("x")], outgoing=[OutgoingPart(0, MessageContent("x"))])
    for stale in (
        store.conversations.finish(claim, message, result),
        store.conversations.release(claim),
        store.conversations.open(claim, message, OutgoingPart(0, MessageContent("x"))),
        store.conversations.undo_attempt(claim, message),
        store.conversations.forget(claim),
    ):
        with pytest.raises(Fenced):
            await stale
    assert (await read_session(store.database, LANE, 10)).turns == ()
    assert await due(store) == []


async def test_claim_that_a_crash_of_the_server_undid_is_fenced_by_its_successor(
    store: Store,
) -> None:
    lost, message = await take_message(store)
    undone = update(conversation).values(epoch=0, owner=None, lease_until=0.0)
    await store.write(undone)
    again = present(await claimed(store, owner="other"))
    assert again.claim.epoch == lost.epoch
    assert await store.conversations.renew([lost], LEASE) == [lost]
    for stale in (
        store.conversations.finish(lost, message, TurnResult()),
        store.conversations.open(lost, message, OutgoingPart(0, MessageContent("x"))),
        store.conversations.release(lost),
        store.conversations.forget(lost),
    ):
        with pytest.raises(Fenced):
            await stale
    await store.conversations.finish(again.claim, again.message, TurnResult())


async def test_crashes_are_counted_and_a_deliberate_stop_is_not_one(store: Store) -> None:
    claim, message = await take_message(store)
    assert message.crashes == 0
    await store.conversations.release(claim)
    again = present(await claimed(store))
    assert again.message.crashes == 1
    await store.conversations.undo_attempt(again.claim, again.message)
    await store.conversations.release(again.claim)
    third = present(await claimed(store))
    assert third.message.crashes == 1


async def begin_again(store: Store) -> tuple[Claim, InboxMessage]:
    """Begin the oldest message as a process does that is started after a death."""
    await store.conversations.release_all("me")
    begun = present(await claimed(store))
    return begun.claim, begun.message


async def count_deaths(store: Store, *attempts: Attempt | None) -> list[tuple[int, int]]:
    """Let a process die in each of these attempts; return the message's deaths, and its own."""
    await take_message(store)
    counts = []
    for attempt in attempts:
        claim, message = await begin_again(store)
        counts.append((message.crashes, message.own_crashes))
        if attempt is not None:
            await store.conversations.record_attempt(claim, message, attempt)
    return counts


async def test_only_deaths_in_an_attempt_alone_are_a_messages_own(store: Store) -> None:
    attempts = (None, Attempt.BESIDE_OTHERS, Attempt.ALONE, Attempt.ALONE, Attempt.NONE)
    counts = await count_deaths(store, *attempts, None)
    assert counts == [(1, 0), (2, 0), (3, 0), (4, 1), (5, 2), (5, 2)]


async def test_second_death_in_a_row_alone_explains_the_first(store: Store) -> None:
    counts = await count_deaths(store, Attempt.ALONE, Attempt.ALONE, None)
    assert counts == [(1, 0), (2, 2), (3, 3)]


async def test_death_while_a_message_was_deferred_clears_it(store: Store) -> None:
    counts = await count_deaths(store, Attempt.ALONE, Attempt.DEFERRED, None)
    assert counts == [(1, 0), (2, 2), (2, 0)]


async def test_suspect_that_has_not_started_is_not_blamed(store: Store) -> None:
    counts = await count_deaths(store, None, None, None, None)
    assert counts == [(1, 0), (2, 0), (2, 0), (2, 0)]


async def test_two_bots_in_one_group_do_not_share_messages(store: Store) -> None:
    other = make_incoming()
    other = replace(other, address=replace(other.address, bot_id="77"))
    await store.inbox.receive([make_incoming()], {})
    await store.inbox.receive([other], {})
    assert sorted(await ready(store, "telegram", "telegram@77")) == [LANE, "telegram@77:5"]
    first, second = await claimed(store), await claimed(store, "telegram@77:5")
    assert first is not None
    assert second is not None
    for begun in (first, second):
        result = TurnResult(outgoing=[OutgoingPart(0, MessageContent("hi"))])
        await store.conversations.finish(begun.claim, begun.message, result)
    rows = await store.outbox.take([LANE, "telegram@77:5"])
    assert [row.address.bot_id for row in rows] == ["", "77"]


async def test_only_conversations_and_lanes_of_served_bots_are_given(store: Store) -> None:
    other = make_incoming()
    other = replace(other, address=replace(other.address, bot_id="77"))
    await store.inbox.receive([make_incoming(), other], {})
    assert await ready(store, "telegram@77", "discord") == ["telegram@77:5"]
    assert await ready(store, "telegram@7", "discord@77") == []
    for key in (LANE, "telegram@77:5"):
        begun = present(await claimed(store, key))
        result = TurnResult(outgoing=[OutgoingPart(0, MessageContent("hi"))])
        await store.conversations.finish(begun.claim, begun.message, result)
    assert await due(store, "telegram@77") == ["telegram@77:5"]
    assert await due(store) == [LANE]


async def test_message_is_found_until_it_is_answered(store: Store) -> None:
    claim, message = await take_message(store)
    address = message.incoming.address
    assert await store.inbox.find_in_progress(address, "5:1") == [message.incoming]
    assert await store.inbox.find_in_progress(replace(address, bot_id="7"), "5:1") == []
    await store.conversations.finish(claim, message, TurnResult())
    assert await store.inbox.find_in_progress(address, "5:1") == []

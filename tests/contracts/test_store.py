"""What the repositories promise, on SQLite and on PostgreSQL."""

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from alembic import command
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, func, insert, select, text, update

from bot.chat.incoming import Address, Deleted, Edited, Incoming, Joined, Pressed
from bot.chat.outgoing import (
    THREAD_PARTS,
    AnswerThread,
    Attachment,
    Button,
    ButtonStyle,
    Face,
    MessageContent,
    OutboxOperation,
    OutboxRow,
    OutboxState,
    OutgoingPart,
    ReplyPrompt,
)
from bot.chat.session import (
    Attempt,
    Claim,
    ClaimedMessage,
    Exchange,
    HistoryChange,
    InboxMessage,
    Summary,
    Turn,
    TurnRange,
    TurnResult,
    fingerprint_turns,
)
from bot.errors import Fenced, Refused
from bot.storage.sql.bots import resolve_bot_id
from bot.storage.sql.migrations import make_alembic_config
from bot.storage.sql.outbox import SqlOutbox
from bot.storage.sql.tables import (
    NEWEST_REVISION,
    choice,
    conversation,
    inbox,
    lane,
    outbox,
    summary,
    turn,
)
from tests.contracts.conftest import Store
from tests.samples import ALICE, make_incoming, read_session

LEASE = 60.0
OPENING = """
import asyncio, sys
from bot.storage.sql.database import open_database
async def main():
    async with open_database(sys.argv[1]):
        pass
asyncio.run(main())
"""


LANE = "telegram:5"
NOON = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
# Of a group where one message was answered and not delivered, and the next is unanswered.
OLD_ROWS = (
    "INSERT INTO conversation (key, epoch, owner, lease_until, session) "
    "VALUES ('telegram:5', 3, 'gone', 0, 1)",
    "INSERT INTO inbox (platform, external_key, conversation, received_at, state) "
    "VALUES ('telegram', '5:1', 'telegram:5', 1.0, 'done')",
    "INSERT INTO inbox (platform, external_key, conversation, payload, received_at) "
    "VALUES ('telegram', '5:2', 'telegram:5', :payload, 2.0)",
    "INSERT INTO outbox (turn, part, op, platform, chat, lane, text) "
    "VALUES ('telegram:5:1', 0, 'send', 'telegram', '5', 'telegram:5', 'an answer')",
    "INSERT INTO cursor (name, value) VALUES ('telegram:offset', '17')",
)


async def claimed(
    store: Store, key: str = LANE, owner: str = "me", lease: float = LEASE
) -> ClaimedMessage | None:
    begun = await store.conversations.begin([key], owner, lease)
    return begun[0] if begun else None


async def begin(store: Store, key: str = "5:1") -> tuple[Claim, InboxMessage]:
    await store.inbox.receive([make_incoming(key=key)], {})
    begun = await claimed(store)
    assert begun is not None
    return begun.claim, begun.message


async def answer(store: Store, *texts: str) -> tuple[Claim, InboxMessage]:
    claim, message = await begin(store)
    outgoing = [OutgoingPart(part, MessageContent(text)) for part, text in enumerate(texts)]
    await store.conversations.finish(claim, message, TurnResult(outgoing=outgoing))
    return claim, message


async def take(store: Store, outbox: SqlOutbox | None = None) -> OutboxRow | None:
    rows = await (outbox or store.outbox).take([LANE])
    return rows[0] if rows else None


async def taken(store: Store, outbox: SqlOutbox | None = None) -> OutboxRow:
    row = await take(store, outbox)
    assert row is not None
    return row


async def ready(store: Store, *platforms: str) -> Sequence[str]:
    return await store.conversations.ready(10, platforms or ["telegram"])


async def due(store: Store, *platforms: str) -> Sequence[str]:
    return await store.outbox.due_lanes(10, platforms or ["telegram"])


def said(text: str) -> Turn:
    return Turn("user", text, ALICE, datetime(2026, 11, 21, tzinfo=UTC))


# --- receive, begin ---------------------------------------------------------------------------


async def test_received_message_is_given_back_whole(store: Store) -> None:
    message = make_incoming("héllo\n🎭 '); DROP TABLE inbox;--", thread="7", quote="before")
    await store.inbox.receive([message], {"telegram:offset": "8"})
    begun = await claimed(store, message.address.conversation)
    assert begun is not None
    assert begun.message.incoming == message
    assert await store.inbox.cursors("telegram:") == {"telegram:offset": "8"}


async def test_message_delivered_twice_is_stored_once(store: Store) -> None:
    await store.inbox.receive([make_incoming(), make_incoming()], {})
    await store.inbox.receive([make_incoming()], {"telegram:offset": "9"})
    count = await store.database.read(lambda c: c.execute(select(func.count(inbox.c.id))).scalar())
    assert count == 1


async def test_message_delivered_again_after_its_answer_is_not_begun(store: Store) -> None:
    claim, message = await begin(store)
    await store.conversations.finish(claim, message, TurnResult())
    await store.inbox.receive([make_incoming(key="5:1")], {})
    assert await claimed(store) is None
    assert await ready(store) == []


async def test_messages_are_processed_in_the_order_of_their_arrival(store: Store) -> None:
    await store.inbox.receive([make_incoming(key=f"5:{n}") for n in range(3)], {})
    begun = await claimed(store)
    assert begun is not None
    keys = []
    message: InboxMessage | None = begun.message
    while message is not None:
        keys.append(message.incoming.external_key)
        finished = await store.conversations.finish(begun.claim, message, TurnResult())
        message = finished.next_message
    assert keys == ["5:0", "5:1", "5:2"]
    assert await ready(store) == []


async def test_conversation_is_held_by_one_until_it_is_released(store: Store) -> None:
    claim, _ = await begin(store)
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
    claim, message = await begin(store)
    finished = await store.conversations.finish(claim, message, TurnResult())
    assert finished.next_message is None
    assert await ready(store) == []
    await store.inbox.receive([make_incoming(key="5:2")], {})
    assert await ready(store) == [LANE]


async def test_finish_that_does_not_go_on_leaves_the_rest_to_others(store: Store) -> None:
    await store.inbox.receive([make_incoming(key="5:1"), make_incoming(key="5:2")], {})
    begun = await claimed(store)
    assert begun is not None
    finished = await store.conversations.finish(
        begun.claim, begun.message, TurnResult(), go_on=False
    )
    assert finished.next_message is None
    after = await claimed(store, owner="other")
    assert after is not None
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
    one = await claimed(store)
    assert one is not None
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
    lost, message = await begin(store)
    undone = update(conversation).values(epoch=0, owner=None, lease_until=0.0)
    await store.database.write(lambda c: c.execute(undone).rowcount)
    again = await claimed(store, owner="other")
    assert again is not None
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
    claim, message = await begin(store)
    assert message.crashes == 0
    await store.conversations.release(claim)
    again = await claimed(store)
    assert again is not None
    assert again.message.crashes == 1
    await store.conversations.undo_attempt(again.claim, again.message)
    await store.conversations.release(again.claim)
    third = await claimed(store)
    assert third is not None
    assert third.message.crashes == 1


async def begin_again(store: Store) -> tuple[Claim, InboxMessage]:
    """Begin the oldest message as a process does that is started after a death."""
    await store.conversations.release_all("me")
    begun = await claimed(store)
    assert begun is not None
    return begun.claim, begun.message


async def count_deaths(store: Store, *attempts: Attempt | None) -> list[tuple[int, int]]:
    """Let a process die in each of these attempts; return the message's deaths, and its own."""
    await begin(store)
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
        begun = await claimed(store, key)
        assert begun is not None
        result = TurnResult(outgoing=[OutgoingPart(0, MessageContent("hi"))])
        await store.conversations.finish(begun.claim, begun.message, result)
    assert await due(store, "telegram@77") == ["telegram@77:5"]
    assert await due(store) == [LANE]


async def test_first_bot_of_a_platform_keeps_the_keys_without_an_id(store: Store) -> None:
    ids = [
        await resolve_bot_id(store.database, platform, account)
        for platform, account in (
            *(("telegram", "11"), ("telegram", "77"), ("discord", "77")),
            *(("telegram", "11"), ("telegram", "77")),
        )
    ]
    assert ids == ["", "77", "", "", "77"]


async def test_bots_that_start_at_once_agree_on_the_first(store: Store) -> None:
    accounts = [str(number) for number in range(8)]
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(resolve_bot_id(store.database, "telegram", account))
            for account in accounts
        ]
    ids = [task.result() for task in tasks]
    assert ids.count("") == 1
    assert all(id_ in {"", account} for id_, account in zip(ids, accounts, strict=True))


# --- finish, open -----------------------------------------------------------------------------


async def test_finish_stores_history_and_queues_the_answer_in_one_unit(store: Store) -> None:
    claim, message = await begin(store)
    reply = Turn("assistant", "hi", None, datetime(2026, 11, 21, tzinfo=UTC))
    outgoing = [OutgoingPart(0, MessageContent("hi")), OutgoingPart(1, MessageContent("!"))]
    await store.conversations.finish(
        claim, message, TurnResult(turns=[said("hello"), reply], outgoing=outgoing)
    )
    session = await read_session(store.database, LANE, 10)
    assert session.turns == (said("hello"), reply)
    row = await taken(store)
    assert (row.op, row.part, row.text, row.reply_to) == (OutboxOperation.SEND, 0, "hi", "1")


async def test_finish_takes_the_first_part_for_its_own_sender(store: Store) -> None:
    claim, message = await begin(store)
    outgoing = [OutgoingPart(0, MessageContent("hi")), OutgoingPart(1, MessageContent("!"))]
    finished = await store.sending_conversations.finish(
        claim, message, TurnResult(outgoing=outgoing)
    )
    assert finished.row is not None
    assert finished.row.text == "hi"
    assert await take(store) is None, "it is being sent"
    following = await store.outbox.mark_sent(finished.row, "m1")
    assert following is not None
    assert following.text == "!"
    assert await store.outbox.mark_sent(following, "m2") is None
    assert await due(store) == []


async def test_unstorable_characters_are_replaced(store: Store) -> None:
    claim, message = await begin(store)
    odd, plain = "a\0b\ud83c", "a\ufffdb\ufffd"
    part = OutgoingPart(0, MessageContent(odd), file=Attachment("prompt.txt", odd))
    await store.conversations.finish(claim, message, TurnResult(turns=[said(odd)], outgoing=[part]))
    row = await taken(store)
    session = await read_session(store.database, LANE, 1)
    assert (row.text, row.file) == (plain, Attachment("prompt.txt", plain))
    assert session.turns == (said(plain),)


async def test_answered_message_leaves_no_text_in_the_inbox(store: Store) -> None:
    claim, message = await begin(store)
    await store.conversations.finish(claim, message, TurnResult())
    payload = await store.database.read(lambda c: c.execute(select(inbox.c.payload)).scalar())
    assert payload is None


async def test_new_session_hides_the_old_one_and_keeps_it(store: Store) -> None:
    claim, message = await begin(store)
    await store.conversations.finish(claim, message, TurnResult(turns=[said("old")]))
    claim, message = await begin(store, "5:2")
    greeting = Turn("assistant", "hi", None, datetime(2026, 11, 21, tzinfo=UTC))
    await store.conversations.finish(claim, message, TurnResult(turns=[greeting], new_session=True))
    session = await read_session(store.database, LANE, 10)
    assert session.turns == (greeting,)
    assert session.number == 2


async def test_observed_turn_stays_one(store: Store) -> None:
    claim, message = await begin(store)
    turns = [replace(said("a"), observed=True), said("b")]
    await store.conversations.finish(claim, message, TurnResult(turns=turns))
    session = await read_session(store.database, LANE, 10)
    assert session.turns == tuple(turns)
    claim, message = await begin(store, "5:2")
    assert (await store.conversations.load_session(claim, 10)).turns == tuple(turns)


async def test_session_that_is_deleted_whole_is_not_new_again(store: Store) -> None:
    claim, message = await begin(store)
    await store.conversations.finish(claim, message, TurnResult(turns=[said("a"), said("b")]))
    for number in (2, 3):
        claim, message = await begin(store, f"5:{number}")
        ids = await store.database.read(lambda c: c.execute(select(turn.c.id)).scalars().all())
        change = HistoryChange(deleted=[ids[0]])
        await store.conversations.finish(claim, message, TurnResult(change=change))
        session = await read_session(store.database, LANE, 10)
        assert (session.number, session.is_new) == (number - 1, False)


async def test_finish_removes_turns_of_the_session_before_it_appends(store: Store) -> None:
    claim, message = await begin(store)
    await store.conversations.finish(claim, message, TurnResult(turns=[said("old")]))
    claim, message = await begin(store, "5:2")
    turns = [said(text) for text in "abcd"]
    await store.conversations.finish(claim, message, TurnResult(turns=turns, new_session=True))
    for number, (removed, expected) in enumerate(
        [(TurnRange(1, 2), "adx"), (TurnRange(0, 0), "adxx"), (TurnRange(0, 9), "x")], 3
    ):
        claim, message = await begin(store, f"5:{number}")
        before = await store.conversations.load_session(claim, 10)
        await store.conversations.finish(
            claim, message, TurnResult(turns=[said("x")], removes=removed)
        )
        after = await read_session(store.database, LANE, 10)
        assert "".join(turn.text for turn in after.turns) == expected
        assert after.turns == (*removed.removed_from(before.turns), said("x"))
    left = await store.database.read(lambda c: c.execute(select(turn.c.text)).scalars().all())
    assert left == ["old", "x"]


async def test_forget_deletes_every_session_and_no_other_conversation(store: Store) -> None:
    await store.inbox.receive([make_incoming(key="6:1", chat="6")], {})
    other = await claimed(store, "telegram:6")
    assert other is not None
    await store.conversations.finish(other.claim, other.message, TurnResult(turns=[said("there")]))
    await store.inbox.receive([make_incoming(key="5:1"), make_incoming(key="5:2")], {})
    begun = await claimed(store)
    assert begun is not None
    await store.conversations.finish(
        begun.claim, begun.message, TurnResult([said("CANARY"), said("CANARY")], new_session=True)
    )

    forgotten = await store.conversations.forget(begun.claim)

    left = await store.database.read(lambda c: c.execute(select(turn.c.text)).scalars().all())
    assert (forgotten, left) == (2, ["there"])


async def test_forget_leaves_no_text_that_could_never_be_sent(store: Store) -> None:
    claim, _ = await answer(store, "CANARY")
    await store.outbox.mark_dead(await taken(store), "blocked")
    await store.conversations.forget(claim)
    left = await store.database.read(lambda c: c.execute(select(outbox.c.text)).scalars().all())
    assert left == [""]


async def test_forget_deletes_what_people_said_of_themselves_there(store: Store) -> None:
    scopes = [f"{ALICE.id}@{LANE}", f"{ALICE.id}@telegram:6", LANE, ALICE.id]
    for scope in (*scopes, f"{ALICE.id}@{LANE}9", f"telegram:2@{LANE}"):
        await store.chat_settings.set(scope, "persona", "tall", ALICE.id)

    def unit(connection: Connection) -> None:
        config = make_alembic_config()
        config.attributes["connection"] = connection
        command.downgrade(config, "0015")  # as an earlier version stored it
        command.upgrade(config, "head")
        old = {"scope": f"telegram:3@{LANE}", "key": "persona", "value": "old", "chosen_by": "3"}
        connection.execute(insert(choice).values({**old, "chosen_at": 0.0}))

    await store.database.write(unit)
    await store.chat_settings.set(f"telegram:4@{LANE}", "persona", "new", "telegram:4")
    claim, _ = await begin(store)
    await store.conversations.forget(claim)
    left = await store.database.read(lambda c: c.execute(select(choice.c.scope)).scalars().all())
    assert sorted(left) == sorted([*scopes[1:], f"{ALICE.id}@{LANE}9"])


async def test_load_session_gives_the_newest_turns_oldest_first(store: Store) -> None:
    claim, message = await begin(store)
    turns = [said(str(n)) for n in range(5)]
    await store.conversations.finish(claim, message, TurnResult(turns=turns))
    session = await read_session(store.database, LANE, 2)
    assert [turn.text for turn in session.turns] == ["3", "4"]


async def test_part_is_opened_once_however_often_it_is_asked_for(store: Store) -> None:
    claim, message = await begin(store)
    first = await store.conversations.open(claim, message, OutgoingPart(0, MessageContent("…")))
    again = await store.conversations.open(claim, message, OutgoingPart(0, MessageContent("other")))
    assert again.row_id == first.row_id


async def test_open_takes_the_row_for_its_own_sender_once(store: Store) -> None:
    claim, message = await begin(store)
    first = await store.sending_conversations.open(
        claim, message, OutgoingPart(0, MessageContent("…"))
    )
    assert first.row is not None
    assert first.row.id == first.row_id
    second = await store.sending_conversations.open(
        claim, message, OutgoingPart(1, MessageContent("…"))
    )
    assert second.row is None, "the first one of its lane is under way"


async def test_opened_parts_are_edited_and_surplus_ones_deleted(store: Store) -> None:
    claim, message = await begin(store)
    for part in (0, 1):
        await store.conversations.open(claim, message, OutgoingPart(part, MessageContent("…")))
    await store.conversations.finish(
        claim, message, TurnResult(outgoing=[OutgoingPart(0, MessageContent("done"))])
    )
    done = []
    row = await take(store)
    while row is not None:
        done.append((row.op, row.part, row.text, row.external_id))
        is_send = row.op is OutboxOperation.SEND
        row = await store.outbox.mark_sent(row, f"m{row.part}" if is_send else None)
    assert done == [
        (OutboxOperation.SEND, 0, "…", None),
        (OutboxOperation.SEND, 1, "…", None),
        (OutboxOperation.EDIT, 0, "done", "m0"),
        (OutboxOperation.DELETE, 1, "", "m1"),
    ]


async def test_opened_part_that_shows_its_text_is_not_edited(store: Store) -> None:
    claim, message = await begin(store)
    content = MessageContent("done")
    await store.conversations.open(claim, message, OutgoingPart(0, content))
    row = await taken(store)
    assert await store.outbox.mark_sent(row, "m0") is None
    shown = [OutgoingPart(part, content, is_shown=True) for part in (0, 1)]
    await store.conversations.finish(claim, message, TurnResult(outgoing=shown))
    row = await taken(store)
    assert (row.op, row.part) == (OutboxOperation.SEND, 1), "it was not opened after all"
    assert await store.outbox.mark_sent(row, "m1") is None


# --- the outbox, and who may change its rows --------------------------------------------------


async def test_head_of_a_lane_holds_back_what_follows(store: Store) -> None:
    await answer(store, "a", "b")
    await store.outbox.reschedule(await taken(store), not_before=4e9)
    assert await take(store) is None
    assert await due(store) == []


async def test_refused_row_lets_its_lane_go_on(store: Store) -> None:
    await answer(store, "a", "b")
    head = await taken(store)
    assert await store.outbox.external_id(head.id) is None
    following = await store.outbox.mark_dead(head, "blocked")
    assert following is not None
    assert following.text == "b"
    with pytest.raises(Refused, match="blocked"):
        await store.outbox.external_id(head.id)


async def test_rescheduled_row_is_due_at_its_moment(store: Store) -> None:
    await answer(store, "a")
    await store.outbox.reschedule(await taken(store), not_before=1.0)
    assert await due(store) == [LANE]
    assert await due(store, "discord") == []
    assert (await taken(store)).attempts == 2


async def test_row_is_given_to_one_sender_however_many_ask(store: Store) -> None:
    await answer(store, "a")
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(take(store, outbox))
            for outbox in (store.outbox, store.other_outbox)
            for _ in range(5)
        ]
    assert sum(task.result() is not None for task in tasks) == 1


async def test_row_of_a_dead_sender_is_unknown(store: Store) -> None:
    await answer(store, "a")
    row = await taken(store)
    assert row.state is OutboxState.PENDING
    await expire_lease(store)
    row = await taken(store, store.other_outbox)
    assert row.state is OutboxState.UNKNOWN
    await store.other_outbox.mark_sent(row, "9")
    assert await store.outbox.known_ids(row.address) == {"9"}
    assert await store.outbox.external_id(row.id) == "9"


async def test_unknown_row_settles_before_it_is_given(store: Store) -> None:
    await answer(store, "a")
    await taken(store)
    await expire_lease(store)
    assert await take(store, store.patient_outbox) is None
    assert await due(store) == []


async def test_restarted_sender_finds_its_own_rows_at_once(store: Store) -> None:
    await answer(store, "a")
    await taken(store)
    assert await take(store) is None
    await store.outbox.release_all()
    assert (await taken(store)).state is OutboxState.UNKNOWN


async def test_two_senders_are_never_given_one_unknown_row(store: Store) -> None:
    await answer(store, "a")
    await store.outbox.mark_unknown(await taken(store), not_before=0)
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(take(store, outbox))
            for outbox in (store.outbox, store.other_outbox, store.outbox, store.other_outbox)
        ]
    assert sum(task.result() is not None for task in tasks) == 1


@pytest.mark.parametrize("report", ["sent", "dead", "unknown", "pending"])
async def test_late_report_of_an_earlier_sender_is_refused(store: Store, report: str) -> None:
    """A late `reschedule` once reopened a row that had been sent: a second copy on Telegram."""
    await answer(store, "a")
    late = await taken(store)
    await expire_lease(store)
    await store.other_outbox.mark_sent(await taken(store, store.other_outbox), "9")
    with pytest.raises(Fenced):
        await _report(store.outbox, late, report)
    assert await store.outbox.external_id(late.id) == "9"
    assert await due(store) == []


async def _report(outbox: SqlOutbox, row: OutboxRow, report: str) -> None:
    match report:
        case "sent":
            await outbox.mark_sent(row, "10")
        case "dead":
            await outbox.mark_dead(row, "no")
        case "unknown":
            await outbox.mark_unknown(row, 0)
        case _:
            await outbox.reschedule(row, 0)


async def test_late_report_of_an_earlier_attempt_of_the_same_sender_is_refused(
    store: Store,
) -> None:
    await answer(store, "a")
    late = await taken(store)
    await store.outbox.reschedule(late, not_before=0)
    await taken(store)
    with pytest.raises(Fenced):
        await store.outbox.reschedule(late, not_before=0)


async def test_sent_row_leaves_no_text(store: Store) -> None:
    await answer(store, "secret")
    await store.outbox.mark_sent(await taken(store), "9")
    text = await store.database.read(lambda c: c.execute(select(outbox.c.text)).scalar())
    assert text == ""


async def expire_lease(store: Store) -> None:
    """Let the lease of the sender that has the lane end now."""
    await store.database.write(lambda c: c.execute(update(lane).values(due_at=1.0)).rowcount)


async def test_part_in_a_thread_finds_the_message_that_its_thread_is_opened_from(
    store: Store,
) -> None:
    claim, message = await begin(store)
    thread = AnswerThread(message.part_name(0), "The rest of the answer")
    folded = MessageContent("rest", thoughts="Hm. || 想", prompt=ReplyPrompt("41", "The name 名"))
    parts = [
        OutgoingPart(0, MessageContent("first")),
        OutgoingPart(THREAD_PARTS, folded, thread=thread),
    ]
    await store.conversations.finish(claim, message, TurnResult(outgoing=parts))
    first = await taken(store)
    assert first.thread is None
    assert await store.outbox.message_of(thread.first_part) is None
    second = await store.outbox.mark_sent(first, "900")
    assert second is not None
    assert (second.part, second.content, second.thread) == (THREAD_PARTS, folded, thread)
    assert await store.outbox.message_of(thread.first_part) == "900"
    assert await store.outbox.mark_sent(second, "900/901") is None
    kept = await store.database.read(lambda c: c.execute(select(outbox.c.buttons)).scalars().all())
    assert kept == [None, None], "what was thought is no longer needed"


FILE = Attachment("prompt-1.txt", 'You are Nora.\n"兰亭" 🎭')


async def test_a_file_goes_along_with_its_part_and_no_other(store: Store) -> None:
    claim, message = await begin(store)
    parts = [
        OutgoingPart(0, MessageContent("here"), file=FILE),
        OutgoingPart(1, MessageContent("done")),
    ]
    await store.conversations.finish(claim, message, TurnResult(outgoing=parts))
    sent = []
    row = await take(store)
    while row is not None:
        sent.append((row.op, row.text, row.file))
        row = await store.outbox.mark_sent(row, f"m{row.part}")
    assert sent == [
        (OutboxOperation.SEND, "here", FILE),
        (OutboxOperation.SEND, "done", None),
    ]


@pytest.mark.parametrize("refused", [False, True])
async def test_a_file_is_kept_no_longer_than_it_takes_to_send_it(
    store: Store, refused: bool
) -> None:
    claim, message = await begin(store)
    await store.conversations.finish(
        claim, message, TurnResult(outgoing=[OutgoingPart(0, MessageContent("x"), file=FILE)])
    )
    row = await taken(store)
    await store.outbox.mark_unknown(row, not_before=0)
    row = await taken(store)
    assert (row.state, row.file) == (OutboxState.UNKNOWN, FILE)

    await (store.outbox.mark_dead(row, "no") if refused else store.outbox.mark_sent(row, "9"))

    columns = select(outbox.c.file_name, outbox.c.file_text)
    left = await store.database.read(lambda c: c.execute(columns).one())
    assert tuple(left) == (None, None)


async def test_faces_and_buttons_reach_the_sender_as_they_were_queued(store: Store) -> None:
    claim, message = await begin(store)
    content = MessageContent(
        "**Hi**",
        Face('Nora "诺拉" 🎭', "https://example.org/nora.png"),
        (Button("重试", "retry:1/0", ButtonStyle.DANGER), Button("2/3", "next", row=1)),
    )
    nameless = MessageContent("plain")
    await store.conversations.open(claim, message, OutgoingPart(0, content))
    final = [OutgoingPart(0, nameless), OutgoingPart(1, content)]
    await store.conversations.finish(claim, message, TurnResult(outgoing=final))
    sent = []
    row = await take(store)
    while row is not None:
        sent.append((row.op, row.part, row.content))
        row = await store.outbox.mark_sent(row, f"m{row.part}")
    assert sent == [
        (OutboxOperation.SEND, 0, content),
        (OutboxOperation.EDIT, 0, nameless),
        (OutboxOperation.SEND, 1, content),
    ]


async def test_the_narrowest_scope_with_a_choice_wins(store: Store) -> None:
    await store.chat_settings.set("guild", "preset", "a", "discord:1")
    await store.chat_settings.set("channel", "preset", "b", "discord:1")
    scopes = ["thread", "channel", "guild"]
    choice = await store.chat_settings.resolve(scopes, "preset")
    assert choice is not None
    assert (choice.scope, choice.value) == ("channel", "b")
    await store.chat_settings.set("channel", "preset", None, "discord:1")
    choice = await store.chat_settings.resolve(scopes, "preset")
    assert choice is not None
    assert choice.value == "a"
    assert await store.chat_settings.resolve(["elsewhere"], "preset") is None


async def test_many_at_once_all_commit_and_one_failure_spoils_no_other(store: Store) -> None:
    def spoiled(connection: Connection) -> None:
        connection.execute(update(inbox).values(crashes=1))
        raise Fenced("on purpose")

    async with asyncio.TaskGroup() as group:
        writes = [
            group.create_task(store.inbox.receive([make_incoming(key=f"5:{n}")], {"last": str(n)}))
            for n in range(50)
        ]
        failing = group.create_task(fails(store, spoiled))
    assert all(write.done() for write in writes)
    assert failing.done()
    rows = await store.database.read(lambda c: c.execute(select(inbox.c.crashes)).scalars().all())
    assert rows == [0] * 50


async def fails(store: Store, unit: object) -> None:
    with pytest.raises(Fenced):
        await store.database.write(unit)  # type: ignore[arg-type]


@pytest.mark.service
async def test_processes_that_start_at_once_make_the_tables_once(empty_database: str) -> None:
    """A process each: Alembic works for one caller at a time."""
    processes = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-c", OPENING, empty_database, stderr=-1
        )
        for _ in range(3)
    ]
    for process in processes:
        _, complaint = await process.communicate()
        assert process.returncode == 0, complaint.decode()


async def test_the_migrations_make_exactly_these_tables(store: Store) -> None:
    def unit(connection: Connection) -> bool:
        config = make_alembic_config()
        config.attributes["connection"] = connection
        command.check(config)  # raises when a migration is missing
        return True

    assert await store.database.write(unit)


async def test_what_waited_to_be_sent_before_there_were_files_still_goes_out(store: Store) -> None:
    claim, message = await begin(store)
    await store.conversations.finish(
        claim, message, TurnResult(outgoing=[OutgoingPart(0, MessageContent("a"))])
    )

    def unit(connection: Connection) -> bool:
        config = make_alembic_config()
        config.attributes["connection"] = connection
        command.downgrade(config, "0004")
        command.upgrade(config, "head")
        return True

    assert await store.database.write(unit)
    row = await taken(store)
    assert (row.text, row.file) == ("a", None)


async def test_turns_are_found_by_the_messages_they_were_said_in(store: Store) -> None:
    claim, message = await begin(store)
    asked = replace(said("why?"), message_id="41")
    parts = [OutgoingPart(0, MessageContent("a")), OutgoingPart(1, MessageContent("b"))]
    names = tuple(message.part_name(part.part) for part in parts)
    answer = Turn("assistant", "a b", None, NOON, "nora", 1, sent_as=names)
    await store.conversations.finish(claim, message, TurnResult([asked, answer], parts))
    assert await store.conversations.find_turns(claim, ["43"]) == []
    following = await store.outbox.mark_sent(await taken(store), "42")
    assert following is not None
    await store.outbox.mark_sent(following, "43")

    assert [one.turn for one in await store.conversations.find_turns(claim, ["41"])] == [asked]
    assert [one.turn for one in await store.conversations.find_turns(claim, ["43"])] == [answer]
    both = await store.conversations.find_turns(claim, ["42", "43", "41", "7"])
    assert [one.turn for one in both] == [asked, answer]


async def test_superseded_turns_are_kept_as_versions_with_the_same_parent(store: Store) -> None:
    claim, message = await begin(store)
    told = [said("one"), said("two"), Turn("assistant", "an answer", None, NOON)]
    first = await store.conversations.finish(claim, message, TurnResult(told), go_on=False)
    assert first.next_message is None
    claim, message = await begin(store, key="5:2")
    again = [said("two"), Turn("assistant", "a better answer", None, NOON)]
    result = TurnResult(again, supersedes=TurnRange(0, 2))
    await store.conversations.finish(claim, message, result)

    expected = ["one", "two", "a better answer"]
    assert [one.text for one in (await read_session(store.database)).turns] == expected
    session = await store.conversations.load_session(claim, 10)
    assert [one.text for one in session.turns] == expected
    rows = await store.database.read(
        lambda c: c.execute(select(turn.c.text, turn.c.parent, turn.c.active)).all()
    )
    assert sorted(tuple(row) for row in rows) == [
        ("a better answer", 4, True),
        ("an answer", 2, False),
        ("one", None, True),
        ("two", 1, False),
        ("two", 1, True),
    ]


async def test_turns_of_an_old_database_follow_one_another(store: Store) -> None:
    claim, message = await begin(store)
    await store.conversations.finish(claim, message, TurnResult([said("one"), said("two")]))

    def unit(connection: Connection) -> bool:
        config = make_alembic_config()
        config.attributes["connection"] = connection
        command.downgrade(config, "0009")
        command.upgrade(config, "head")
        return True

    await store.database.write(unit)
    rows = await store.database.read(
        lambda c: c.execute(select(turn.c.text, turn.c.parent).order_by(turn.c.id)).all()
    )
    assert [tuple(row) for row in rows] == [("one", None), ("two", 1)]
    assert [one.text for one in (await read_session(store.database)).turns] == ["one", "two"]


async def exchange_of(store: Store) -> tuple[Claim, Exchange, OutboxRow]:
    """Have a question answered in two parts, and the first one sent; return it and the second."""
    claim, message = await begin(store)
    asked = replace(said("why?"), message_id="41")
    names = tuple(message.part_name(part) for part in (0, 1))
    answer = Turn("assistant", "a b", None, NOON, "nora", 1, sent_as=names)
    parts = [OutgoingPart(0, MessageContent("a")), OutgoingPart(1, MessageContent("b"))]
    result = TurnResult([said("before"), asked, answer], parts)
    await store.conversations.finish(claim, message, result, go_on=False)
    second = await store.outbox.mark_sent(await taken(store), "42")
    assert second is not None
    found = await store.conversations.load_exchange(claim, "41", 10)
    assert found is not None
    return claim, found, second


async def test_exchange_is_a_question_with_its_answers_and_what_was_before(store: Store) -> None:
    claim, found, _ = await exchange_of(store)
    assert found.question.turn.text == "why?"
    assert [one.turn.text for one in found.answers] == ["a b"]
    assert [one.text for one in found.before.turns] == ["before"]
    assert found.is_newest
    assert found.parts == ("telegram:5:1/0", "telegram:5:1/1")
    assert await store.conversations.load_exchange(claim, "99", 10) is None


async def test_new_version_takes_the_messages_of_the_old_one(store: Store) -> None:
    _, found, second = await exchange_of(store)
    claim, message = await begin(store, key="5:1:e2")
    new = Turn("assistant", "c", None, NOON, "nova", 2, sent_as=found.parts[:1])
    change = HistoryChange({found.question.id: "how?"}, {found.answers[0].id: new})
    result = TurnResult(
        outgoing=[OutgoingPart(0, MessageContent("c"))], change=change, in_place_of=found.parts
    )
    await store.conversations.finish(claim, message, result)

    expected = ["before", "how?", "c"]
    assert [one.text for one in (await read_session(store.database)).turns] == expected
    session = await store.conversations.load_session(claim, 10)
    assert [one.text for one in session.turns] == expected
    rows = [second]
    for external_id in ("43", None, None):
        following = await store.outbox.mark_sent(rows[-1], external_id)
        rows += [following] if following else []
    done = [(row.op, row.text, row.external_id) for row in rows]
    assert done == [
        (OutboxOperation.SEND, "b", None),
        (OutboxOperation.EDIT, "c", "42"),
        (OutboxOperation.DELETE, "", "43"),
    ]
    again = await store.conversations.load_exchange(claim, "41", 10)
    assert again is not None
    assert again.parts == found.parts[:1]
    assert [one.turn.text for one in await store.conversations.find_turns(claim, ["42"])] == [
        "c",
        "a b",
    ]


async def test_answer_is_found_by_its_parts_with_all_its_versions(store: Store) -> None:
    _, found, _ = await exchange_of(store)
    claim, message = await begin(store, key="cb1")
    [answer] = found.answers
    new = Turn("assistant", "c", None, NOON + timedelta(seconds=1), "nova", 2, sent_as=found.parts)
    change = HistoryChange(versions={answer.id: new})
    await store.conversations.finish(claim, message, TurnResult(change=change))
    load = store.conversations.load_answered
    for part in found.parts:
        again = await load(LANE, part, 10)
        assert again is not None
        assert again.question.turn.text == "why?"
        assert [[one.turn.text for one in each] for each in again.versions] == [["a b", "c"]]
    again = await load(LANE, found.parts[0], 10)
    assert again is not None
    [versions] = again.versions
    claim, message = await begin(store, key="cb2")
    change = HistoryChange(
        versions={answer.id: versions[0].turn}, restored=[one.id for one in versions[:1]]
    )
    await store.conversations.finish(claim, message, TurnResult(change=change))
    again = await load(LANE, found.parts[0], 10)
    assert again is not None
    assert [one.turn.text for one in again.answers] == ["a b"]
    [versions] = again.versions
    assert [one.turn.text for one in versions] == ["a b", "c"]
    assert await load(LANE, "telegram:5:9/0", 10) is None


async def test_question_of_a_failed_answer_is_kept_outside_of_the_history(store: Store) -> None:
    claim, message = await begin(store)
    name = message.part_name(0)
    question = replace(said("why?"), message_id="41", sent_as=(name,))
    notice = TurnResult(outgoing=[OutgoingPart(0, MessageContent("⚠"))], unanswered=[question])
    await store.conversations.finish(claim, message, notice, go_on=False)
    assert (await read_session(store.database)).turns == ()
    found = await store.conversations.load_answered(LANE, name, 10)
    assert found is not None
    assert (found.question.turn.text, found.answers, found.parts) == ("why?", (), (name,))
    claim, message = await begin(store, key="5:2")
    await store.conversations.finish(claim, message, TurnResult([replace(question, sent_as=())]))
    assert await store.conversations.load_answered(LANE, name, 10) is None


async def test_message_is_found_until_it_is_answered(store: Store) -> None:
    claim, message = await begin(store)
    address = message.incoming.address
    assert await store.inbox.find_in_progress(address, "5:1") == [message.incoming]
    assert await store.inbox.find_in_progress(replace(address, bot_id="7"), "5:1") == []
    await store.conversations.finish(claim, message, TurnResult())
    assert await store.inbox.find_in_progress(address, "5:1") == []


async def test_deleted_turns_leave_no_summary_and_no_receipt(store: Store) -> None:
    _, found, _ = await exchange_of(store)
    kept = Summary(1, found.question.id, fingerprint_turns([]), "they asked why")
    row = {"conversation": LANE, "session": 1, "turns": 2, "chars": 9, "text": kept.text}
    row |= {"covers_to": kept.covers_to, "fingerprint": kept.fingerprint}
    await store.database.write(lambda c: c.execute(insert(summary).values(row)).rowcount)
    claim, message = await begin(store, key="d41")
    change = HistoryChange(deleted=[found.question.id])
    await store.conversations.finish(claim, message, TurnResult(change=change))
    assert [one.text for one in (await read_session(store.database)).turns] == ["before", "a b"]
    left = await store.database.read(lambda c: c.execute(select(summary.c.text)).all())
    assert left == []


EVENTS = [
    Edited("5:1:e3", make_incoming("new words"), NOON),
    Deleted(Address("telegram", "5"), "d1-2-2", ("1", "2"), NOON, ("telegram:5",)),
    Pressed(Address("telegram", "5"), "cb1", "7", ALICE, "stop", NOON, ("telegram:5",)),
    Joined(Address("telegram", "5"), "join:5:1", ALICE, NOON, ("telegram:5",)),
]


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
async def test_every_kind_of_event_is_stored_once_and_read_back(
    store: Store, event: Incoming
) -> None:
    await store.inbox.receive([event], {})
    await store.inbox.receive([event], {})
    begun = await claimed(store)
    assert begun is not None
    assert begun.message.incoming == event
    finished = await store.conversations.finish(begun.claim, begun.message, TurnResult())
    assert finished.next_message is None


async def test_unanswered_and_unsent_rows_of_an_old_database_are_worked_on(store: Store) -> None:
    payload = msgspec.json.decode(msgspec.json.encode(make_incoming("hello", key="5:2")))
    del payload["address"]["bot_id"]  # these were added later
    for name in ("attachments", "in_thread", "mentions", "locale"):
        payload.pop(name, None)
    payload["quote"] = "formerly a text"

    def unit(connection: Connection) -> None:
        config = make_alembic_config()
        config.attributes["connection"] = connection
        command.downgrade(config, "base")
        command.upgrade(config, "0005")
        values = {"payload": msgspec.json.encode(payload)}
        for statement in OLD_ROWS:
            connection.execute(text(statement), values if ":payload" in statement else {})
        command.upgrade(config, "head")

    await store.database.write(unit)
    assert await resolve_bot_id(store.database, "telegram", "11") == ""
    assert await ready(store) == [LANE]
    begun = await claimed(store)
    assert begun is not None
    quoting = make_incoming("hello", key="5:2", quote="formerly a text")
    assert begun.message.incoming == quoting
    assert begun.claim.epoch == 4
    assert await due(store) == [LANE]
    unsent = await taken(store)
    assert (unsent.text, unsent.turn) == ("an answer", "telegram:5:1")
    await store.inbox.receive([make_incoming("again", key="5:1")], {})  # known before
    result = TurnResult([said("hello")], [OutgoingPart(0, MessageContent("hi"))])
    finished = await store.conversations.finish(begun.claim, begun.message, result)
    assert finished.next_message is None
    following = await store.outbox.mark_sent(unsent, "90")
    assert following is not None
    assert following.text == "hi"


def test_the_newest_revision_is_the_one_that_the_tables_name() -> None:
    assert ScriptDirectory.from_config(make_alembic_config()).get_current_head() == NEWEST_REVISION

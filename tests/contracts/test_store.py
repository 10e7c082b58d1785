"""Contract of the repositories, on SQLite and on PostgreSQL."""

import asyncio
import sys
from datetime import UTC, datetime

import pytest
from alembic import command
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, func, select, update

from bot.chat.outgoing import Attachment, OutboxOperation, OutboxState, OutgoingPart
from bot.chat.session import Claim, InboxMessage, Turn, TurnResult
from bot.errors import Fenced, Refused
from bot.storage.sql.migrations import make_alembic_config
from bot.storage.sql.tables import NEWEST_REVISION, inbox, outbox, turn
from tests.contracts.conftest import Store
from tests.samples import ALICE, make_incoming

LEASE = 60.0
OPEN_DATABASE = """
import asyncio, sys
from bot.storage.sql.database import open_database
async def main():
    async with open_database(sys.argv[1]):
        pass
asyncio.run(main())
"""


async def take_message(store: Store, key: str = "5:1") -> tuple[Claim, InboxMessage]:
    await store.inbox.receive([make_incoming(key=key)], {})
    claim = await store.conversations.claim("telegram:5", "me", LEASE)
    assert claim is not None
    message = await store.conversations.next_message(claim)
    assert message is not None
    return claim, message


def person_turn(text: str) -> Turn:
    return Turn("user", text, ALICE, datetime(2026, 11, 21, tzinfo=UTC))


async def test_received_message_is_returned_unchanged(store: Store) -> None:
    sent = make_incoming("héllo\n🎭 '); DROP TABLE inbox;--", thread="7", quote="before")
    await store.inbox.receive([sent], {"telegram:offset": "8"})
    claim = await store.conversations.claim(sent.address.conversation, "me", LEASE)
    assert claim is not None
    message = await store.conversations.next_message(claim)
    assert message is not None
    assert message.incoming == sent
    assert await store.inbox.cursors("telegram:") == {"telegram:offset": "8"}


async def test_message_delivered_twice_is_stored_once(store: Store) -> None:
    await store.inbox.receive([make_incoming(), make_incoming()], {})
    await store.inbox.receive([make_incoming()], {"telegram:offset": "9"})
    count = await store.database.read(lambda c: c.execute(select(func.count(inbox.c.id))).scalar())
    assert count == 1


async def test_messages_are_processed_in_the_order_they_were_received(store: Store) -> None:
    await store.inbox.receive([make_incoming(key=f"5:{n}") for n in range(3)], {})
    claim = await store.conversations.claim("telegram:5", "me", LEASE)
    assert claim is not None
    keys = []
    while message := await store.conversations.next_message(claim):
        keys.append(message.incoming.external_key)
        await store.conversations.finish(claim, message, TurnResult())
    assert keys == ["5:0", "5:1", "5:2"]


async def test_conversation_is_leased_to_one_owner_at_a_time(store: Store) -> None:
    await store.inbox.receive([make_incoming()], {})
    first = await store.conversations.claim("telegram:5", "me", LEASE)
    assert await store.conversations.claim("telegram:5", "other", LEASE) is None
    assert await store.inbox.pending_conversations(10, ["telegram"]) == []
    assert first is not None
    assert await store.conversations.release(first) is True
    assert await store.inbox.pending_conversations(10, ["telegram"]) == ["telegram:5"]
    assert await store.conversations.claim("telegram:5", "other", LEASE) is not None


async def test_only_conversations_of_running_platforms_are_pending(store: Store) -> None:
    await store.inbox.receive([make_incoming(platform="discord"), make_incoming()], {})
    assert await store.inbox.pending_conversations(10, ["telegram", "terminal"]) == ["telegram:5"]
    assert await store.inbox.pending_conversations(10, []) == []


async def test_restarted_owner_releases_its_own_leases(store: Store) -> None:
    await store.inbox.receive([make_incoming(), make_incoming(chat="6", key="6:1")], {})
    await store.conversations.claim("telegram:5", "me", LEASE)
    await store.conversations.claim("telegram:6", "other", LEASE)
    await store.conversations.release_all("me")
    assert await store.inbox.pending_conversations(10, ["telegram"]) == ["telegram:5"]


async def test_later_claim_fences_every_method_of_an_earlier_one(store: Store) -> None:
    await store.inbox.receive([make_incoming()], {})
    old = await store.conversations.claim("telegram:5", "me", 0)
    assert old is not None
    message = await store.conversations.next_message(old)
    assert message is not None
    new = await store.conversations.claim("telegram:5", "other", LEASE)
    assert new is not None
    assert new.epoch > old.epoch
    with pytest.raises(Fenced):
        await store.conversations.finish(
            old, message, TurnResult(turns=[person_turn("x")], outgoing=[OutgoingPart(0, "x")])
        )
    with pytest.raises(Fenced):
        await store.conversations.renew(old, LEASE)
    with pytest.raises(Fenced):
        await store.conversations.release(old)
    with pytest.raises(Fenced):
        await store.conversations.open(old, message, OutgoingPart(0, "x"))
    with pytest.raises(Fenced):
        await store.conversations.next_message(old)
    with pytest.raises(Fenced):
        await store.conversations.undo_attempt(old, message)
    assert (await store.conversations.load_session("telegram:5", 10)).turns == ()
    assert await store.outbox.due_lanes(10) == []
    still = await store.conversations.next_message(new)
    assert still is not None
    assert still.crashes == 1, "counted for the two claims that received it, and for no other"


async def test_attempts_are_counted_and_a_deliberate_stop_is_not(store: Store) -> None:
    claim, message = await take_message(store)
    assert message.crashes == 0
    again = await store.conversations.next_message(claim)
    assert again is not None
    assert again.crashes == 1
    await store.conversations.undo_attempt(claim, again)
    third = await store.conversations.next_message(claim)
    assert third is not None
    assert third.crashes == 1


async def test_finish_stores_turns_and_queues_the_answer(store: Store) -> None:
    claim, message = await take_message(store)
    answer = Turn("assistant", "hi", None, datetime(2026, 11, 21, tzinfo=UTC))
    await store.conversations.finish(
        claim,
        message,
        TurnResult(
            turns=[person_turn("hello"), answer],
            outgoing=[OutgoingPart(0, "hi"), OutgoingPart(1, "!")],
        ),
    )
    session = await store.conversations.load_session("telegram:5", 10)
    assert session.turns == (person_turn("hello"), answer)
    assert await store.conversations.next_message(claim) is None
    first = await store.outbox.take("telegram:5")
    assert first is not None
    assert (first.op, first.part, first.text, first.reply_to) == (
        OutboxOperation.SEND,
        0,
        "hi",
        "1",
    )


async def test_unstorable_characters_of_an_answer_are_replaced(store: Store) -> None:
    claim, message = await take_message(store)
    odd, plain = "a\0b\ud83c", "a\ufffdb\ufffd"
    part = OutgoingPart(0, odd, file=Attachment("prompt.txt", odd))

    await store.conversations.finish(
        claim, message, TurnResult(turns=[person_turn(odd)], outgoing=[part])
    )

    row = await store.outbox.take("telegram:5")
    session = await store.conversations.load_session("telegram:5", 1)
    assert row is not None
    assert (row.text, row.file) == (plain, Attachment("prompt.txt", plain))
    assert session.turns == (person_turn(plain),)


async def test_answered_message_leaves_no_text_in_the_inbox(store: Store) -> None:
    claim, message = await take_message(store)
    await store.conversations.finish(claim, message, TurnResult())
    payload = await store.database.read(lambda c: c.execute(select(inbox.c.payload)).scalar())
    assert payload is None


async def test_new_session_hides_the_old_one(store: Store) -> None:
    claim, message = await take_message(store)
    await store.conversations.finish(claim, message, TurnResult(turns=[person_turn("old")]))
    claim, message = await take_message(store, "5:2")
    greeting = Turn("assistant", "hi", None, datetime(2026, 11, 21, tzinfo=UTC))
    await store.conversations.finish(claim, message, TurnResult(turns=[greeting], new_session=True))
    session = await store.conversations.load_session("telegram:5", 10)
    assert session.turns == (greeting,)
    assert session.number == 2


async def test_forget_deletes_every_session_of_one_conversation(store: Store) -> None:
    await store.inbox.receive([make_incoming(key="6:1", chat="6")], {})
    other = await store.conversations.claim("telegram:6", "me", LEASE)
    assert other is not None
    elsewhere = await store.conversations.next_message(other)
    assert elsewhere is not None
    await store.conversations.finish(other, elsewhere, TurnResult(turns=[person_turn("there")]))
    claim, message = await take_message(store)
    await store.conversations.finish(
        claim,
        message,
        TurnResult(turns=[person_turn("CANARY"), person_turn("CANARY")], new_session=True),
    )

    forgotten = await store.conversations.forget(claim)

    left = await store.database.read(lambda c: c.execute(select(turn.c.text)).scalars().all())
    assert (forgotten, left) == (2, ["there"])


async def test_forget_clears_the_text_of_dead_outbox_rows(store: Store) -> None:
    claim, message = await take_message(store)
    await store.conversations.finish(
        claim, message, TurnResult(outgoing=[OutgoingPart(0, "CANARY")])
    )
    row = await store.outbox.take("telegram:5")
    assert row is not None
    await store.outbox.mark_dead(row, "blocked")

    await store.conversations.forget(claim)

    left = await store.database.read(lambda c: c.execute(select(outbox.c.text)).scalars().all())
    assert left == [""]


async def test_load_session_returns_the_newest_turns_oldest_first(store: Store) -> None:
    claim, message = await take_message(store)
    turns = [person_turn(str(n)) for n in range(5)]
    await store.conversations.finish(claim, message, TurnResult(turns=turns))
    session = await store.conversations.load_session("telegram:5", 2)
    assert [turn.text for turn in session.turns] == ["3", "4"]


async def test_part_is_opened_once(store: Store) -> None:
    claim, message = await take_message(store)
    first = await store.conversations.open(claim, message, OutgoingPart(0, "…"))
    assert await store.conversations.open(claim, message, OutgoingPart(0, "other")) == first


async def test_opened_parts_are_edited_and_surplus_parts_deleted(store: Store) -> None:
    claim, message = await take_message(store)
    for part in (0, 1):
        await store.conversations.open(claim, message, OutgoingPart(part, "…"))
    await store.conversations.finish(claim, message, TurnResult(outgoing=[OutgoingPart(0, "done")]))
    done = []
    while row := await store.outbox.take("telegram:5"):
        done.append((row.op, row.part, row.text, row.external_id))
        await store.outbox.mark_sent(
            row, f"m{row.part}" if row.op is OutboxOperation.SEND else None
        )
    assert done == [
        (OutboxOperation.SEND, 0, "…", None),
        (OutboxOperation.SEND, 1, "…", None),
        (OutboxOperation.EDIT, 0, "done", "m0"),
        (OutboxOperation.DELETE, 1, "", "m1"),
    ]


async def test_placeholder_is_sent_first_and_then_edited(store: Store) -> None:
    claim, message = await take_message(store)
    await store.conversations.finish(
        claim, message, TurnResult(outgoing=[OutgoingPart(0, "all of it", placeholder="…")])
    )
    opening = await store.outbox.take("telegram:5")
    assert opening is not None
    assert (opening.op, opening.text) == (OutboxOperation.SEND, "…")
    assert await store.outbox.take("telegram:5") is None, "strictly in order"
    await store.outbox.mark_sent(opening, "77")
    text = await store.outbox.take("telegram:5")
    assert text is not None
    assert (text.op, text.text, text.external_id) == (OutboxOperation.EDIT, "all of it", "77")


async def test_first_row_of_a_lane_holds_back_the_rest(store: Store) -> None:
    claim, message = await take_message(store)
    await store.conversations.finish(
        claim, message, TurnResult(outgoing=[OutgoingPart(0, "a"), OutgoingPart(1, "b")])
    )
    head = await store.outbox.take("telegram:5")
    assert head is not None
    await store.outbox.reschedule(head, not_before=4e9)
    assert await store.outbox.take("telegram:5") is None
    assert await store.outbox.due_lanes(10) == []
    await store.outbox.reschedule(head, not_before=0)
    assert await store.outbox.due_lanes(10) == ["telegram:5"]
    assert await store.outbox.external_id(head.id) is None
    await store.outbox.mark_dead(head, "blocked")
    with pytest.raises(Refused, match="blocked"):
        await store.outbox.external_id(head.id)
    after = await store.outbox.take("telegram:5")
    assert after is not None
    assert after.text == "b"


async def test_pending_row_is_taken_by_one_of_many_senders(store: Store) -> None:
    claim, message = await take_message(store)
    await store.conversations.finish(claim, message, TurnResult(outgoing=[OutgoingPart(0, "a")]))
    async with asyncio.TaskGroup() as group:
        taken = [group.create_task(store.outbox.take("telegram:5")) for _ in range(10)]
    assert sum(one.result() is not None for one in taken) == 1


async def test_expired_sending_row_becomes_unknown(store: Store) -> None:
    claim, message = await take_message(store)
    await store.conversations.finish(claim, message, TurnResult(outgoing=[OutgoingPart(0, "a")]))
    taken = await store.outbox.take("telegram:5")
    assert taken is not None
    assert taken.state is OutboxState.PENDING
    assert await store.outbox.expire_sending(older_than_seconds=60, settle_seconds=0) == 0
    assert await store.outbox.expire_sending(older_than_seconds=0, settle_seconds=0) == 1
    row = await store.outbox.take("telegram:5")
    assert row is not None
    assert row.state is OutboxState.UNKNOWN
    await store.outbox.mark_sent(row, "9")
    assert await store.outbox.known_ids(row.address) == {"9"}
    assert await store.outbox.external_id(row.id) == "9"


async def test_unknown_row_is_not_due_before_it_has_settled(store: Store) -> None:
    claim, message = await take_message(store)
    await store.conversations.finish(claim, message, TurnResult(outgoing=[OutgoingPart(0, "a")]))
    await store.outbox.take("telegram:5")
    await store.outbox.expire_sending(older_than_seconds=0, settle_seconds=60)
    assert await store.outbox.take("telegram:5") is None


async def test_sent_row_leaves_no_text_in_the_outbox(store: Store) -> None:
    claim, message = await take_message(store)
    await store.conversations.finish(
        claim, message, TurnResult(outgoing=[OutgoingPart(0, "secret")])
    )
    row = await store.outbox.take("telegram:5")
    assert row is not None
    await store.outbox.mark_sent(row, "9")
    text = await store.database.read(lambda c: c.execute(select(outbox.c.text)).scalar())
    assert text == ""


FILE = Attachment("prompt-1.txt", 'You are Nora.\n"兰亭" 🎭')


async def test_file_is_sent_with_its_part_only(store: Store) -> None:
    claim, message = await take_message(store)
    parts = [OutgoingPart(0, "here", file=FILE), OutgoingPart(1, "done", placeholder="…")]
    await store.conversations.finish(claim, message, TurnResult(outgoing=parts))
    taken = []
    while row := await store.outbox.take("telegram:5"):
        taken.append((row.op, row.text, row.file))
        await store.outbox.mark_sent(row, f"m{row.part}")
    assert taken == [
        (OutboxOperation.SEND, "here", FILE),
        (OutboxOperation.SEND, "…", None),
        (OutboxOperation.EDIT, "done", None),
    ]


@pytest.mark.parametrize("refused", [False, True])
async def test_file_is_deleted_once_its_row_is_sent_or_dead(store: Store, refused: bool) -> None:
    claim, message = await take_message(store)
    await store.conversations.finish(
        claim, message, TurnResult(outgoing=[OutgoingPart(0, "x", file=FILE)])
    )
    row = await store.outbox.take("telegram:5")
    assert row is not None
    await store.outbox.mark_unknown(row, not_before=0)
    row = await store.outbox.take("telegram:5")
    assert row is not None
    assert (row.state, row.file) == (OutboxState.UNKNOWN, FILE)

    await (store.outbox.mark_dead(row, "no") if refused else store.outbox.mark_sent(row, "9"))

    columns = select(outbox.c.file_name, outbox.c.file_text)
    left = await store.database.read(lambda c: c.execute(columns).one())
    assert tuple(left) == (None, None)


async def test_setting_is_resolved_from_the_narrowest_scope(store: Store) -> None:
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


async def test_failing_unit_does_not_affect_concurrent_writes(store: Store) -> None:
    def failing_unit(connection: Connection) -> None:
        connection.execute(update(inbox).values(crashes=1))
        raise Fenced("on purpose")

    async with asyncio.TaskGroup() as group:
        writes = [
            group.create_task(store.inbox.receive([make_incoming(key=f"5:{n}")], {"last": str(n)}))
            for n in range(50)
        ]
        failing = group.create_task(expect_fenced(store, failing_unit))
    assert all(write.done() for write in writes)
    assert failing.done()
    rows = await store.database.read(lambda c: c.execute(select(inbox.c.crashes)).scalars().all())
    assert rows == [0] * 50


async def expect_fenced(store: Store, unit: object) -> None:
    with pytest.raises(Fenced):
        await store.database.write(unit)  # type: ignore[arg-type]


@pytest.mark.service
async def test_processes_that_start_at_once_create_the_tables_once(empty_database: str) -> None:
    """Separate processes, because Alembic serves one caller at a time."""
    processes = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-c", OPEN_DATABASE, empty_database, stderr=-1
        )
        for _ in range(3)
    ]
    for process in processes:
        _, complaint = await process.communicate()
        assert process.returncode == 0, complaint.decode()


async def test_migrations_create_exactly_these_tables(store: Store) -> None:
    def unit(connection: Connection) -> bool:
        config = make_alembic_config()
        config.attributes["connection"] = connection
        command.check(config)  # raises if a migration is missing
        return True

    assert await store.database.write(unit)


async def test_row_queued_before_the_file_columns_is_still_sent(store: Store) -> None:
    claim, message = await take_message(store)
    await store.conversations.finish(claim, message, TurnResult(outgoing=[OutgoingPart(0, "a")]))

    def unit(connection: Connection) -> bool:
        config = make_alembic_config()
        config.attributes["connection"] = connection
        command.downgrade(config, "0004")
        command.upgrade(config, "head")
        return True

    assert await store.database.write(unit)
    row = await store.outbox.take("telegram:5")
    assert row is not None
    assert (row.text, row.file) == ("a", None)


def test_newest_revision_matches_the_migrations() -> None:
    assert ScriptDirectory.from_config(make_alembic_config()).get_current_head() == NEWEST_REVISION

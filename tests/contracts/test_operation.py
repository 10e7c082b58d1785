"""Contract of what operators can see and do, on both databases."""

import asyncio
import json
from datetime import UTC, datetime

import pytest
from sqlalchemy import select, update

from bot.chat.incoming import Address, IncomingMessage
from bot.chat.operation import HEARTBEAT_SECONDS, AnswerPause, QueueState
from bot.chat.outgoing import OutboxState
from bot.chat.session import PresetVersion, Turn, TurnResult
from bot.commands.privacy import export_messages
from bot.runtime.clock import SystemClock
from bot.storage.forgetting import PersonalData
from bot.storage.leases import SqlRoleLeases
from bot.storage.operation import AuditLog, NodeRegistry, PauseStore
from bot.storage.reports import ServiceState
from bot.storage.retention import delete_expired
from bot.storage.tables import conversation, inbox, node, outbox, role_lease
from tests.samples import ALICE, BOB, begin, make_incoming
from tests.support.store import (
    LANE,
    RECEIPT,
    Store,
    finish,
    in_parts,
    present,
    refuse_answer,
    set_aside,
    take_message,
)

# --- processes and work ------------------------------------------------------------------------


async def test_processes_are_listed_with_their_leases(store: Store) -> None:
    clock = SystemClock()
    nodes = NodeRegistry(store.database, clock)
    await nodes.register("me", "gateway,worker", "1.0")
    await nodes.register("other", "sender", "1.1")
    assert await SqlRoleLeases(store.database, "me", clock).take("receive telegram", 60)
    await store.inbox.receive([make_incoming()], {})
    await begin(store.conversations)

    mine, other = await nodes.list_nodes()

    assert (mine.owner, mine.roles, mine.version) == ("me", "gateway,worker", "1.0")
    assert (mine.leases, mine.conversations) == (("receive telegram",), 1)
    assert (other.leases, other.conversations) == ((), 0)
    assert not mine.is_silent
    await nodes.unregister("other")
    assert [one.owner for one in await nodes.list_nodes()] == ["me"]


async def test_only_roles_of_running_processes_are_listed(store: Store) -> None:
    """Roles of a gateway that has ended are not listed as vacant."""
    clock = SystemClock()
    leases = SqlRoleLeases(store.database, "me", clock)
    for role in ("receive discord 0/1", "shards of discord at me", "identify discord 0"):
        assert await leases.take(role, 60)
        await leases.release(role)
    jobs = await NodeRegistry(store.database, clock).list_exclusive_roles()
    assert [one.role for one in jobs] == ["receive discord 0/1"]


async def test_dead_process_is_reported_as_silent_until_it_restarts(store: Store) -> None:
    nodes = NodeRegistry(store.database, SystemClock())
    await nodes.register("me", "worker", "1.0")
    started, seen = node.c.started_at - 1000, node.c.seen_at - 10 * HEARTBEAT_SECONDS
    await store.write(update(node).values(started_at=started, seen_at=seen))
    assert [one.is_silent for one in await nodes.list_nodes()] == [True]
    await nodes.report_running("me", "worker", "1.0")
    [mine] = await nodes.list_nodes()
    assert not mine.is_silent
    assert mine.uptime_seconds > 999, "a report changes no start"
    await nodes.register("me", "worker", "1.1")
    [mine] = await nodes.list_nodes()
    assert mine.uptime_seconds < 500
    assert mine.version == "1.1"


async def test_role_shows_how_long_its_holder_has_held_it(store: Store) -> None:
    clock = SystemClock()
    nodes = NodeRegistry(store.database, clock)
    us, them = (SqlRoleLeases(store.database, owner, clock) for owner in ("us", "them"))
    assert await us.take("receive telegram", 60)
    await store.write(update(role_lease).values(held_since=role_lease.c.held_since - 1000))
    assert await us.take("receive telegram", 60)
    [job] = await nodes.list_exclusive_roles()
    assert job.owner == "us"
    assert job.held_seconds > 999, "a renewal changes no beginning"
    assert 0 < job.lease_seconds <= 60

    await us.release("receive telegram")
    assert (await nodes.list_exclusive_roles())[0].lease_seconds < 0
    assert await them.take("receive telegram", 60)

    [job] = await nodes.list_exclusive_roles()
    assert (job.owner, job.held_seconds < 500) == ("them", True)


async def test_waiting_work_is_counted_with_its_age(store: Store) -> None:
    nodes = NodeRegistry(store.database, SystemClock())
    assert {one.count for one in await nodes.list_background_work()} == {0}
    await store.inbox.receive([make_incoming(), make_incoming(key="6:1", chat="6")], {})
    await store.write(update(conversation).values(ready_since=conversation.c.ready_since - 100))
    claim, message = await begin(store.conversations)
    result = TurnResult(outgoing=in_parts("an answer"))
    await store.conversations.finish(claim, message, result)
    [row] = await store.outbox.reserve_due_rows([LANE])
    await store.outbox.mark_unknown(row, 0)

    work = {one.name: one for one in await nodes.list_background_work()}

    waiting = work["conversations waiting"]
    assert (waiting.count, present(waiting.oldest_seconds) > 99) == (1, True)
    assert work["chats with unsent messages"].count == 1
    assert work["messages that may have been sent"].count == 1


# --- pauses ------------------------------------------------------------------------------------


async def test_scope_is_paused_once_until_it_is_resumed(store: Store) -> None:
    pauses = PauseStore(store.database, SystemClock())
    assert await pauses.begin("telegram", "anna")
    assert not await pauses.begin("telegram", "ben")
    assert await pauses.begin("all", "ben")
    assert not await pauses.end("discord")
    assert await pauses.end("telegram")
    assert not await pauses.end("telegram")

    [current] = await pauses.list_all()

    assert (current.scope, current.by) == ("all", "ben")
    assert await pauses.begin("telegram", "anna"), "once more"


def test_pause_covers_conversations_in_its_scope() -> None:
    key = Address("telegram", "5", "9", "7", "user=3").conversation
    covering = {"all", "telegram", "telegram@7", "telegram@7:5", "telegram@7:5:9"}
    others = {"telegram@8", "telegram@7:55", "telegram@7:5:8", "discord"}
    assert {
        one for one in covering | others if AnswerPause(one, "anna", 0.0).pauses(key)
    } == covering


# --- dead letters ------------------------------------------------------------------------------


async def test_dead_letter_can_be_processed_again(store: Store) -> None:
    await set_aside(store)
    [letter] = await store.letters.all()
    assert (letter.place, letter.kind) == (LANE, "said")
    assert letter.reason == "crashed the process 3 times"
    assert await store.letters.text(letter.name) == "poison"

    assert await store.letters.retry(letter.name) == LANE

    assert await store.letters.all() == []
    assert await store.letters.retry(letter.name) is None
    claim, message = await begin(store.conversations)
    assert isinstance(message.incoming, IncomingMessage)
    assert (message.incoming.text, message.crash_count, message.own_crash_count) == ("poison", 0, 0)
    result = TurnResult(outgoing=in_parts("an answer"))
    await store.conversations.finish(claim, message, result)
    [row] = await store.outbox.reserve_due_rows([LANE])
    assert row.content.text == "an answer", "although the notice has part 0 of the first turn"
    assert await store.letters.all() == []


async def test_undelivered_part_is_searched_for_before_it_is_sent_again(store: Store) -> None:
    await refuse_answer(store)
    [letter] = await store.letters.all()
    assert (letter.place, letter.kind, letter.reason) == (LANE, "send", "the chat is closed")
    assert await store.letters.text(letter.name) == "an answer"
    assert await store.letters.list_refusal_reasons(LANE) == ("the chat is closed",)
    assert await store.letters.list_refusal_reasons(f"{LANE}9") == ()

    assert await store.letters.retry(letter.name) == LANE

    assert await store.letters.all() == []
    [row] = await store.outbox.reserve_due_rows([LANE])
    assert (row.state, row.content.text, row.attempt_count) == (OutboxState.UNKNOWN, "an answer", 1)


@pytest.mark.parametrize("make", [set_aside, refuse_answer])
async def test_dropped_dead_letter_leaves_no_text(store: Store, make: object) -> None:
    await make(store)  # type: ignore[operator]
    [letter] = await store.letters.all()

    assert await store.letters.drop(letter.name)

    assert not await store.letters.drop(letter.name)
    assert await store.letters.all() == []
    assert await store.letters.text(letter.name) is None
    assert await words_in(store) == set()


@pytest.mark.parametrize("name", ["", "in", "in-", "in--1", "in-x", "out-١", "up-1", "in-1 or 1"])
async def test_unknown_dead_letter_name_does_nothing(store: Store, name: str) -> None:
    await set_aside(store)
    assert await store.letters.text(name) is None
    assert await store.letters.retry(name) is None
    assert not await store.letters.drop(name)
    assert len(await store.letters.all()) == 1


@pytest.mark.parametrize("is_channel", [False, True])
async def test_forgetting_a_person_deletes_their_dead_letters(
    store: Store, *, is_channel: bool
) -> None:
    await set_aside(store)
    data = PersonalData(store.database, SystemClock())
    await data.forget_outside_histories("telegram:99")
    assert len(await store.letters.all()) == 1
    if is_channel:
        claim, _ = await take_message(store, "5:2")
        await store.conversations.forget(claim)
    else:
        await data.forget_outside_histories(ALICE.id)
        assert await words_in(store) == set()
    assert await store.letters.all() == []


async def test_waiting_messages_of_a_person_are_found_page_by_page(store: Store) -> None:
    said = [make_incoming(chat=str(one % 7), key=f"{one}") for one in range(1100)]
    await store.inbox.receive([*said, make_incoming(chat="8", key="8", author=BOB)], {})
    data = PersonalData(store.database, SystemClock())
    async with asyncio.timeout(120):
        assert sorted(await data.list_conversations(ALICE.id)) == [
            f"telegram:{one}" for one in range(7)
        ]


async def test_forgetting_a_server_deletes_its_characters(store: Store) -> None:
    versions, settings = store.preset_versions, store.chat_settings
    audit = AuditLog(store.database, SystemClock())
    for owner in ("discord:guild:1", "discord:guild:12"):
        await versions.save([PresetVersion(f"{owner}/Nora", "words", 1, owner=owner)])
        for described in ("a1 secret words", "b2 other words"):
            await settings.set(owner, "character Nora", described, ALICE.id, is_audited=True)
        await settings.set(f"{owner}0", "preset", f"nova\n{owner}/Nora\tnova", ALICE.id)
    entries = await audit.newest(9)
    assert {(one.before, one.after) for one in entries} == {("", "a1"), ("a1", "b2")}
    data = PersonalData(store.database, SystemClock())
    assert await data.forget_characters_of_server("discord:guild:1") == [
        "discord:guild:1",
        "discord:guild:10",
    ]
    assert await versions.newest("discord:guild:1/Nora") is None
    assert await versions.newest("discord:guild:12/Nora") is not None
    left = await settings.get_scopes(["discord:guild:1", "discord:guild:10", "discord:guild:120"])
    assert [*left] == ["discord:guild:120"]
    assert {one.subject for one in await audit.newest(9)} == {"discord:guild:12"}


async def test_messages_of_a_person_are_exported_from_every_conversation(store: Store) -> None:
    for number, who in enumerate((ALICE, BOB, ALICE)):
        one = make_incoming(f"line {number}", chat=str(number), key=f"{number}:1", author=who)
        await store.inbox.receive([one], {})
        claim, message = await begin(store.conversations, one.address.conversation)
        turns = [Turn("user", one.text, who, one.at), Turn("assistant", "a", None, one.at)]
        await store.conversations.finish(claim, message, TurnResult(turns))
        await store.conversations.release(claim)
    await store.chat_settings.set(f"{ALICE.id}@telegram:2", "persona", "a knight", ALICE.id)
    await store.chat_settings.set(f"{ALICE.id}0", "persona", "a dragon", BOB.id)
    at = datetime(2026, 11, 21, tzinfo=UTC)

    file, *counts = await export_messages(PersonalData(store.database, SystemClock()), ALICE.id, at)

    words = json.loads(file.text)
    assert [one["text"] for one in words["messages"]] == ["line 0", "line 2"]
    assert words["descriptions"] == {f"{ALICE.id}@telegram:2": "a knight"}
    assert counts == [2, 1]


async def test_old_dead_letters_are_deleted(store: Store) -> None:
    await set_aside(store)
    await store.write(update(inbox).values(received_at=inbox.c.received_at - 15 * 86_400))
    await delete_expired(store.database, SystemClock(), 30)
    assert await store.letters.all() == []


async def words_in(store: Store) -> set[str]:
    """Return the texts that are still in the inbox and outbox."""
    events = await store.scalars(select(inbox.c.payload))
    texts = await store.scalars(select(outbox.c.text))
    return {str(one) for one in [*events, *texts] if one}


async def test_queues_are_counted(store: Store) -> None:
    state = ServiceState(store.database, SystemClock())
    assert await state.load_queue_state() == QueueState(0, None, 0, 0, 0)
    assert await state.queue_ages() == (0.0, 0.0)
    claim, message = await take_message(store)
    await store.inbox.receive([make_incoming(key="6:1", chat="6")], {})
    waiting = await state.load_queue_state()
    assert (waiting.conversation_count, waiting.answered_now_count) == (2, 1)
    assert waiting.oldest_received_at is not None
    assert 0 < (await state.queue_ages())[0] < 60
    await store.conversations.finish(claim, message, TurnResult())
    assert (await state.load_queue_state()).conversation_count == 1


async def test_channels_are_listed(store: Store) -> None:
    await finish(store, receipts=[RECEIPT, RECEIPT])
    [channel] = await ServiceState(store.database, SystemClock()).channels(10)
    found = (channel.channel, channel.answers, channel.newest, channel.preset)
    assert found == ("telegram:5", 2, 2, "nora")


async def test_turns_of_a_conversation_are_listed_by_session(store: Store) -> None:
    histories = ServiceState(store.database, SystemClock())
    claim, message = await take_message(store)
    said = message.incoming
    assert isinstance(said, IncomingMessage)
    turns = [
        Turn("user", "hello", said.author, said.at, message_id="1"),
        Turn("assistant", "hi", None, said.at, "nora", 1),
    ]
    await store.conversations.finish(claim, message, TurnResult(turns))

    [session] = await histories.sessions("telegram:5", 10)
    assert (session.number, session.turns) == (1, 2)
    assert session.began_at == session.ended_at == said.at.timestamp()
    assert await histories.people("telegram:5", 10) == [said.author]
    assert [(number, one.text) for number, one in await histories.turns("telegram:5")] == [
        *((1, "hello"), (1, "hi"))
    ]
    assert await histories.sessions("telegram:6", 10) == []

"""Contract of the outbox, on SQLite and on PostgreSQL."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace

import pytest
from sqlalchemy import select

from bot.chat.incoming import Address
from bot.chat.outgoing import (
    FIRST_THREAD_PART,
    REACTION_PART,
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
    PrivateDelivery,
)
from bot.chat.session import Claim, InboxMessage, TurnResult
from bot.errors import Fenced
from bot.storage.outbox import SqlOutbox
from bot.storage.tables import outbox
from tests.samples import ALICE, make_incoming
from tests.support.store import (
    LANE,
    Store,
    answer,
    due,
    expire_lease,
    in_parts,
    present,
    send_all,
    take,
    take_message,
    taken,
)


async def open_two(store: Store) -> tuple[Claim, InboxMessage]:
    claim, message = await take_message(store)
    for part in in_parts("…", "…"):
        await store.conversations.open_part(claim, message, part)
    return claim, message


async def test_part_is_opened_only_once(store: Store) -> None:
    claim, message = await take_message(store)
    first, again = [
        await store.conversations.open_part(claim, message, part)
        for text in ("…", "other")
        for part in in_parts(text)
    ]
    assert again.row_id == first.row_id


async def test_opening_the_first_part_reserves_its_row_for_this_sender(store: Store) -> None:
    claim, message = await take_message(store)
    first, second = [
        await store.sending_conversations.open_part(claim, message, part)
        for part in in_parts("…", "…")
    ]
    assert present(first.row).id == first.row_id
    assert second.row is None, "the first one of its lane is under way"


async def test_opened_parts_are_edited_and_surplus_ones_deleted(store: Store) -> None:
    claim, message = await open_two(store)
    await store.conversations.finish(claim, message, TurnResult(outgoing=in_parts("done")))
    rows = await send_all(store)
    assert [
        (row.operation, row.part_number, row.content.text, row.external_id) for row in rows
    ] == [
        (OutboxOperation.SEND, 0, "…", None),
        (OutboxOperation.SEND, 1, "…", None),
        (OutboxOperation.EDIT, 0, "done", "m0"),
        (OutboxOperation.DELETE, 1, "", "m1"),
    ]


async def test_opened_parts_of_a_message_that_is_not_answered_are_deleted(store: Store) -> None:
    claim, message = await open_two(store)
    await store.conversations.finish(claim, message, TurnResult(may_have_sent=True))
    rows = [(row.operation, row.part_number, row.external_id) for row in await send_all(store)]
    assert rows[2:] == [(OutboxOperation.DELETE, 0, "m0"), (OutboxOperation.DELETE, 1, "m1")]


async def test_reaction_is_sent_to_the_message_and_reuses_no_opened_part(store: Store) -> None:
    claim, message = await take_message(store)
    [opened] = in_parts("…")
    await store.conversations.open_part(claim, message, opened)
    reaction = OutgoingPart(REACTION_PART, MessageContent("👍"))
    await store.conversations.finish(claim, message, TurnResult(outgoing=[reaction]))
    rows = await send_all(store)
    assert [(row.operation, row.content.text, row.reply_to, row.external_id) for row in rows] == [
        (OutboxOperation.SEND, "…", "1", None),
        (OutboxOperation.REACT, "👍", "1", None),
        (OutboxOperation.DELETE, "", "1", "m0"),
    ]


async def test_opened_part_that_shows_its_text_is_not_edited(store: Store) -> None:
    claim, message = await take_message(store)
    content = MessageContent("done")
    await store.conversations.open_part(claim, message, OutgoingPart(0, content))
    row = await taken(store)
    assert await store.outbox.mark_sent(row, "m0") is None
    shown = [OutgoingPart(part, content, is_already_shown=True) for part in (0, 1)]
    await store.conversations.finish(claim, message, TurnResult(outgoing=shown))
    row = await taken(store)
    assert (row.operation, row.part_number) == (OutboxOperation.SEND, 1), (
        "it was not opened after all"
    )
    assert await store.outbox.mark_sent(row, "m1") is None


async def test_refused_row_does_not_block_its_lane(store: Store) -> None:
    await answer(store, "a", "b")
    head = await taken(store)
    assert await store.outbox.find_sent_ids([head.id]) == {}
    assert await store.outbox.has_later_rows(head)
    following = present(await store.outbox.give_up(head, "blocked"))
    assert following.content.text == "b"
    assert not await store.outbox.has_later_rows(following)
    assert await store.outbox.find_sent_ids([head.id, following.id]) == {head.id: None}


async def test_part_whose_edit_is_refused_is_sent_as_a_new_message(store: Store) -> None:
    claim, message = await open_two(store)
    await store.conversations.finish(claim, message, TurnResult(outgoing=in_parts("a", "b")))
    second = present(await store.outbox.mark_sent(await taken(store), "m1"))
    edit = present(await store.outbox.mark_sent(second, "m2"))
    again = present(await store.outbox.queue_as_new_message(edit, "refused", is_message_gone=False))
    found = (again.operation, again.part_number, again.content.text, again.external_id)
    assert found == (OutboxOperation.SEND, 0, "a", "m1")
    following = present(await store.outbox.mark_sent(again, "m3"))
    assert (following.operation, following.external_id) == (OutboxOperation.EDIT, "m2")
    assert await store.outbox.find_message_id(message.part_name(0)) == "m3"
    with pytest.raises(Fenced):
        await store.outbox.queue_as_new_message(edit, "refused", is_message_gone=False)


async def test_private_row_moves_to_a_private_chat_or_is_emptied(
    store: Store,
) -> None:
    claim, message = await take_message(store)
    private = PrivateDelivery(ALICE.id, reply_to=message.incoming.message_id)
    parts = [replace(part, private_delivery=private) for part in in_parts("a", "b")]
    await store.conversations.finish(claim, message, TurnResult(outgoing=parts))
    first = await taken(store)
    assert present(first.private_delivery).person == ALICE.id
    edit = present(await store.outbox.turn_into_edit(first, "e1"))
    found = (edit.id, edit.operation, edit.content.text, edit.external_id)
    assert found == (first.id, OutboxOperation.EDIT, "a", "e1")
    second = present(await store.outbox.mark_sent(edit, None))

    to = Address("telegram", "77")
    moved = replace(present(second.private_delivery), group=LANE)
    await store.inbox.receive([make_incoming(key="77:1", chat=to.chat)], {})
    [begun] = await store.conversations.claim_next([to.lane], "me", 60)
    waiting = TurnResult(outgoing=in_parts("on its way"))
    await store.conversations.finish(begun.claim, begun.message, waiting)
    [on_its_way] = await store.outbox.reserve_due_rows([to.lane])
    assert await store.outbox.move_to_private_chat(second, moved, to) is None
    await store.outbox.mark_unknown(on_its_way, 0)  # what is moved comes after it
    [on_its_way] = await store.outbox.reserve_due_rows([to.lane])
    assert on_its_way.content.text == "on its way"
    there = present(await store.outbox.mark_sent(on_its_way, "m9"))
    assert (there.address, there.content.text) == (to, "b")
    assert (there.reply_to, there.private_delivery) == (None, moved)
    assert await store.outbox.give_up(there, "blocked", "open a chat") is None
    notice = await taken(store)
    assert (notice.content.text, notice.reply_to) == ("open a chat", message.incoming.message_id)
    kept = await store.database.read(
        lambda c: c.execute(select(outbox.c.text).where(outbox.c.id == there.id)).scalar_one()
    )
    assert kept == ""


async def test_rescheduled_row_is_due_after_its_delay(store: Store) -> None:
    await answer(store, "a", "b")
    await store.outbox.reschedule(await taken(store), seconds=0.0)
    assert await due(store) == [LANE]
    assert await due(store, "discord") == []
    again = await taken(store)
    assert (again.attempt_count, again.content.text) == (2, "a")
    await store.outbox.reschedule(again, seconds=4e9)
    assert await take(store) is None, "it holds back what follows"
    assert await due(store) == []


@pytest.mark.parametrize("is_unknown", [False, True])
async def test_row_is_reserved_by_one_of_many_senders(store: Store, *, is_unknown: bool) -> None:
    await answer(store, "a")
    if is_unknown:
        await store.outbox.mark_unknown(await taken(store), seconds=0)
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(take(store, outbox))
            for outbox in (store.outbox, store.other_outbox)
            for _ in range(5)
        ]
    assert sum(task.result() is not None for task in tasks) == 1


async def test_row_of_a_dead_sender_has_an_unknown_outcome(store: Store) -> None:
    await answer(store, "a")
    row = await taken(store)
    assert row.state is OutboxState.PENDING
    await expire_lease(store)
    row = await taken(store, store.other_outbox)
    assert row.state is OutboxState.UNKNOWN
    await store.other_outbox.mark_sent(row, "9")
    assert await store.outbox.list_message_ids(row.address) == {"9"}
    assert await store.outbox.find_sent_ids([row.id]) == {row.id: "9"}


async def test_row_with_unknown_outcome_is_not_reserved_before_the_settle_time(
    store: Store,
) -> None:
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


REPORTS: Mapping[str, Callable[[SqlOutbox, OutboxRow], Awaitable[object]]] = {
    "sent": lambda outbox, row: outbox.mark_sent(row, "10"),
    "dead": lambda outbox, row: outbox.give_up(row, "no"),
    "unknown": lambda outbox, row: outbox.mark_unknown(row, 0),
    "pending": lambda outbox, row: outbox.reschedule(row, 0),
}


@pytest.mark.parametrize("report", REPORTS)
async def test_late_report_by_an_earlier_sender_is_refused(store: Store, report: str) -> None:
    """A late `reschedule` once reopened a sent row, so that Telegram showed the message twice."""
    await answer(store, "a")
    late = await taken(store)
    await expire_lease(store)
    await store.other_outbox.mark_sent(await taken(store, store.other_outbox), "9")
    with pytest.raises(Fenced):
        await REPORTS[report](store.outbox, late)
    assert await store.outbox.find_sent_ids([late.id]) == {late.id: "9"}
    assert await due(store) == []
    assert await store.scalar(select(outbox.c.text)) == "", "a sent row leaves no text"


async def test_late_report_of_an_earlier_attempt_is_refused(store: Store) -> None:
    await answer(store, "a")
    late = await taken(store)
    await store.outbox.reschedule(late, seconds=0)
    await taken(store)
    with pytest.raises(Fenced):
        await store.outbox.reschedule(late, seconds=0)


async def test_part_in_a_thread_finds_the_message_that_opens_the_thread(store: Store) -> None:
    claim, message = await take_message(store)
    thread = AnswerThread(message.part_name(0), "The rest of the answer")
    folded = MessageContent("rest", thoughts="Hm. || 想")
    parts = [
        OutgoingPart(0, MessageContent("first")),
        OutgoingPart(FIRST_THREAD_PART, folded, thread=thread),
    ]
    await store.conversations.finish(claim, message, TurnResult(outgoing=parts))
    first = await taken(store)
    assert first.thread is None
    assert await store.outbox.find_message_id(thread.first_part) is None
    second = present(await store.outbox.mark_sent(first, "900"))
    assert (second.part_number, second.content, second.thread) == (
        FIRST_THREAD_PART,
        folded,
        thread,
    )
    assert await store.outbox.find_message_id(thread.first_part) == "900"
    assert await store.outbox.mark_sent(second, "900/901") is None
    kept = await store.scalars(select(outbox.c.buttons))
    assert kept == [None, None], "what was thought is no longer needed"


FILE = Attachment("prompt-1.txt", 'You are Nora.\n"兰亭" 🎭')


async def test_file_is_sent_only_with_its_own_part(store: Store) -> None:
    await answer(store, OutgoingPart(0, MessageContent("here"), file=FILE), "done")
    rows = await send_all(store)
    assert [(row.operation, row.content.text, row.file) for row in rows] == [
        (OutboxOperation.SEND, "here", FILE),
        (OutboxOperation.SEND, "done", None),
    ]


@pytest.mark.parametrize("refused", [False, True])
async def test_file_is_deleted_when_it_is_sent_or_refused(store: Store, refused: bool) -> None:
    await answer(store, OutgoingPart(0, MessageContent("x"), file=FILE))
    row = await taken(store)
    await store.outbox.mark_unknown(row, seconds=0)
    row = await taken(store)
    assert (row.state, row.file) == (OutboxState.UNKNOWN, FILE)

    await (store.outbox.give_up(row, "no") if refused else store.outbox.mark_sent(row, "9"))

    columns = select(outbox.c.file_name, outbox.c.file_text)
    assert [tuple(one) for one in await store.rows(columns)] == [(None, None)]


async def test_faces_and_buttons_reach_the_sender_as_they_were_queued(store: Store) -> None:
    claim, message = await take_message(store)
    content = MessageContent(
        "**Hi**",
        Face('Nora "诺拉" 🎭', "https://example.org/nora.png"),
        (Button("重试", "retry:1/0", ButtonStyle.DANGER), Button("2/3", "next", row=1)),
    )
    nameless = MessageContent("plain")
    await store.conversations.open_part(claim, message, OutgoingPart(0, content))
    final = TurnResult(outgoing=in_parts(nameless, content))
    await store.conversations.finish(claim, message, final)
    rows = await send_all(store)
    assert [(row.operation, row.part_number, row.content) for row in rows] == [
        (OutboxOperation.SEND, 0, content),
        (OutboxOperation.EDIT, 0, nameless),
        (OutboxOperation.SEND, 1, content),
    ]


async def make_idle(store: Store) -> None:
    """Send one row, so that the lane exists but has no rows to send."""
    await answer(store, "sent")
    assert await store.outbox.mark_sent(await taken(store), "1") is None


async def queue_more(store: Store, *texts: str) -> None:
    claim, message = await take_message(store, "5:2")
    result = TurnResult(outgoing=in_parts(*texts))
    await store.sending_conversations.finish(claim, message, result)


async def test_held_lane_is_not_due_until_it_is_released(store: Store) -> None:
    await make_idle(store)
    held = present(await store.outbox.hold_lane(LANE))
    assert await store.other_outbox.hold_lane(LANE) is None
    await queue_more(store, "next")
    assert await due(store) == []
    assert await take(store, store.other_outbox) is None
    await store.outbox.release_lane(LANE, held)
    assert await due(store) == [LANE]
    assert (await taken(store, store.other_outbox)).content.text == "next"


async def test_released_lane_without_rows_is_idle(store: Store) -> None:
    await make_idle(store)
    held = present(await store.outbox.hold_lane(LANE))
    await store.outbox.release_lane(LANE, held)
    assert await due(store) == []
    await queue_more(store, "next")
    assert (await take(store)) is None, "it was taken when it was queued"


async def test_lane_with_a_row_in_flight_cannot_be_held(store: Store) -> None:
    await answer(store, "a", "b")
    row = await taken(store)
    assert await store.other_outbox.hold_lane(LANE) is None, "it is being sent"
    await expire_lease(store)
    assert await store.other_outbox.hold_lane(LANE) is None, "its sender may have died"
    await store.outbox.mark_unknown(row, 0)
    assert await store.other_outbox.hold_lane(LANE) is None, "its message may be there"


async def test_lane_with_due_rows_can_be_held(store: Store) -> None:
    await answer(store, "a", "b")
    held = present(await store.outbox.hold_lane(LANE))
    assert await take(store) is None
    await store.outbox.release_lane(LANE, held)
    assert (await taken(store)).content.text == "a"


async def test_outdated_holder_cannot_release_a_lane(store: Store) -> None:
    await make_idle(store)
    outdated = present(await store.outbox.hold_lane(LANE))
    await expire_lease(store)
    held = present(await store.other_outbox.hold_lane(LANE))
    await store.outbox.release_lane(LANE, outdated)
    assert await store.outbox.hold_lane(LANE) is None
    await store.other_outbox.release_lane(LANE, held)
    assert await store.outbox.hold_lane(LANE) is not None
    assert await store.outbox.hold_lane("telegram:unknown") is None, "it has no row yet"

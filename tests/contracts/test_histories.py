"""Contract of histories, on SQLite and on PostgreSQL."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import insert, select

from bot.chat.incoming import MediaItem, MediaKind
from bot.chat.outgoing import Attachment, MessageContent, OutboxOperation, OutboxRow, OutgoingPart
from bot.chat.session import CHANNEL_TITLE_KEY, Exchange, HistoryChange, Turn, TurnRange, TurnResult
from bot.storage.tables import inbox, outbox, setting, summary, turn
from tests.samples import ALICE, make_incoming, read_session
from tests.support.store import (
    LANE,
    NOON,
    Store,
    answer,
    claimed,
    due,
    finish,
    in_parts,
    present,
    said,
    take,
    take_message,
    taken,
    texts_of,
)

GREETING = Turn("assistant", "hi", None, datetime(2026, 11, 21, tzinfo=UTC))


async def change(store: Store, key: str, **changes: Any) -> None:
    await finish(store, key, change=HistoryChange(**changes))


async def test_finish_stores_history_and_queues_the_answer_in_one_unit(store: Store) -> None:
    await finish(store, turns=[said("hello"), GREETING], outgoing=in_parts("hi", "!"))
    session = await read_session(store.database, LANE, 10)
    assert session.turns == (said("hello"), GREETING)
    row = await taken(store)
    assert (row.operation, row.part_number, row.reply_to) == (OutboxOperation.SEND, 0, "1")
    assert row.content == MessageContent("hi")
    assert await store.scalar(select(inbox.c.payload)) is None, "no text is left in the inbox"


async def test_turn_keeps_its_attachments_until_it_is_deleted(store: Store) -> None:
    files = (MediaItem(MediaKind.IMAGE, "cat\ud800.png", 70, "https://cdn.discordapp.com/1"),)
    asked = replace(said("what is it?"), message_id="1", files=files)
    claim, _ = await finish(store, turns=[asked], begins_next=False)
    [kept] = (await read_session(store.database, LANE, 10)).turns
    assert kept.files == (replace(files[0], name="cat\ufffd.png"),)
    exchange = present(await store.conversations.load_exchange(claim, "1", 10))
    assert exchange.question.turn.files == kept.files
    moved = (replace(files[0], name="", source="https://cdn.discordapp.com/2"),)
    await change(store, "5:2", files={exchange.question.id: moved})
    [kept] = (await read_session(store.database, LANE, 10)).turns
    assert kept.files == moved


async def test_finish_reserves_the_first_part_for_its_own_sender(store: Store) -> None:
    claim, message = await take_message(store)
    result = TurnResult(outgoing=in_parts("hi", "!"))
    finished = await store.sending_conversations.finish(claim, message, result)
    first = present(finished.row)
    assert first.content.text == "hi"
    assert await take(store) is None, "it is being sent"
    following = present(await store.outbox.mark_sent(first, "m1"))
    assert following.content.text == "!"
    assert await store.outbox.mark_sent(following, "m2") is None
    assert await due(store) == []


async def test_unstorable_characters_are_replaced(store: Store) -> None:
    odd, plain = "a\0b\ud83c", "a\ufffdb\ufffd"
    part = OutgoingPart(0, MessageContent(odd), file=Attachment("prompt.txt", odd))
    await finish(store, turns=[said(odd)], outgoing=[part])
    row = await taken(store)
    assert (row.content.text, row.file) == (plain, Attachment("prompt.txt", plain))
    assert await texts_of(store) == [plain]


async def test_new_session_hides_but_keeps_the_old_session(store: Store) -> None:
    await finish(store, turns=[said("old")])
    await finish(store, "5:2", turns=[GREETING], starts_session=True)
    session = await read_session(store.database, LANE, 10)
    assert (session.number, session.turns) == (2, (GREETING,))
    assert await store.scalars(select(turn.c.text)) == ["old", "hi"]


async def test_observed_turn_is_loaded_as_observed(store: Store) -> None:
    turns = [replace(said("a"), is_observed=True), said("b")]
    await finish(store, turns=turns)
    assert (await read_session(store.database, LANE, 10)).turns == tuple(turns)
    claim, _ = await take_message(store, "5:2")
    assert (await store.conversations.load_session(claim, 10)).turns == tuple(turns)
    assert (await read_session(store.database, LANE, 1)).turns == tuple(turns[1:])


async def test_deleting_turns_of_an_unanswered_session_increments_its_number(store: Store) -> None:
    await finish(store, turns=[said("a"), said("b")])
    for number in (2, 3):
        ids = await store.scalars(select(turn.c.id))
        await change(store, f"5:{number}", deleted_ids=[ids[0]])
        session = await read_session(store.database, LANE, 10)
        assert (session.number, len(session.turns)) == (number, 3 - number)


async def test_finish_removes_old_turns_before_it_appends_new_ones(store: Store) -> None:
    await finish(store, turns=[said("old")])
    await finish(store, "5:2", turns=[said(text) for text in "abcd"], starts_session=True)
    for number, (removed, expected) in enumerate(
        [(TurnRange(1, 2), "adx"), (TurnRange(0, 0), "adxx"), (TurnRange(0, 9), "x")], 3
    ):
        before = await read_session(store.database, LANE, 10)
        await finish(store, f"5:{number}", turns=[said("x")], removed_range=removed)
        after = await read_session(store.database, LANE, 10)
        assert "".join(turn.text for turn in after.turns) == expected
        assert after.turns == (*removed.remove_from(before.turns), said("x"))
    assert await store.scalars(select(turn.c.text)) == ["old", "x"]


async def test_forget_deletes_one_conversation_completely(store: Store) -> None:
    await store.inbox.receive([make_incoming(key="6:1", chat="6")], {})
    other = present(await claimed(store, "telegram:6"))
    await store.conversations.finish(other.claim, other.message, TurnResult([said("there")]))
    scopes = [f"{ALICE.id}@{LANE}", f"{ALICE.id}@telegram:6", LANE, ALICE.id]
    for scope in (*scopes, f"{ALICE.id}@{LANE}9", f"telegram:2@{LANE}"):
        await store.chat_settings.set(scope, "persona", "tall", ALICE.id)
    await store.chat_settings.set(LANE, CHANNEL_TITLE_KEY, "Round table", "")
    await answer(store, "CANARY")
    await store.outbox.give_up(await taken(store), "blocked")
    claim, _ = await finish(
        store, "5:2", turns=[said("CANARY"), said("CANARY")], starts_session=True, begins_next=False
    )
    claim, _ = await take_message(store, "5:3")

    assert await store.conversations.forget(claim) == 2

    assert await store.scalars(select(turn.c.text)) == ["there"]
    assert await store.scalars(select(outbox.c.text)) == [""], "it could never be sent"
    left = await store.scalars(select(setting.c.scope))
    assert sorted(left) == sorted([*scopes[1:], f"{ALICE.id}@{LANE}9"])


async def test_turns_are_found_by_their_platform_messages(store: Store) -> None:
    claim, message = await take_message(store)
    asked = replace(said("why?"), message_id="41")
    names = tuple(message.part_name(part) for part in (0, 1))
    answered = Turn("assistant", "a b", None, NOON, "nora", 1, part_names=names)
    result = TurnResult([asked, answered], in_parts("a", "b"))
    await store.conversations.finish(claim, message, result)

    async def find(*ids: str) -> list[Turn]:
        return [one.turn for one in await store.conversations.find_turns(claim, ids)]

    assert await find("43") == []
    following = present(await store.outbox.mark_sent(await taken(store), "42"))
    await store.outbox.mark_sent(following, "43")
    assert await find("41") == [asked]
    assert await find("43") == [answered]
    assert await find("42", "43", "41", "7") == [asked, answered]


async def test_superseded_turns_are_kept_as_versions_with_the_same_parent(store: Store) -> None:
    told = [said("one"), said("two"), Turn("assistant", "an answer", None, NOON)]
    await finish(store, turns=told, begins_next=False)
    claim, message = await take_message(store, key="5:2")
    again = [said("two"), Turn("assistant", "a better answer", None, NOON)]
    result = TurnResult(again, replaced_range=TurnRange(0, 2))
    await store.conversations.finish(claim, message, result)

    session = await store.conversations.load_session(claim, 10)
    expected = [one.text for one in session.turns]
    assert await texts_of(store) == expected == ["one", "two", "a better answer"]
    rows = await store.rows(select(turn.c.text, turn.c.parent, turn.c.active))
    assert sorted(tuple(row) for row in rows) == [
        ("a better answer", 4, True),
        ("an answer", 2, False),
        ("one", None, True),
        ("two", 1, False),
        ("two", 1, True),
    ]


async def exchange_of(store: Store) -> tuple[Exchange, OutboxRow]:
    """Answer a question in two parts and send one; return the exchange and the second part."""
    claim, message = await take_message(store)
    asked = replace(said("why?"), message_id="41")
    names = tuple(message.part_name(part) for part in (0, 1))
    answered = Turn("assistant", "a b", None, NOON, "nora", 1, part_names=names)
    result = TurnResult([said("before"), asked, answered], in_parts("a", "b"))
    await store.conversations.finish(claim, message, result, begins_next=False)
    second = present(await store.outbox.mark_sent(await taken(store), "42"))
    assert await store.conversations.load_exchange(claim, "99", 10) is None
    return present(await store.conversations.load_exchange(claim, "41", 10)), second


async def load_answered(store: Store, part: str) -> Exchange | None:
    return await store.conversations.load_exchange_by_part(LANE, part, 10)


def texts_of_versions(found: Exchange | None) -> list[list[str]]:
    return [[one.turn.text for one in each] for each in present(found).versions]


async def test_exchange_contains_a_question_its_answers_and_earlier_turns(store: Store) -> None:
    found, _ = await exchange_of(store)
    assert found.question.turn.text == "why?"
    assert [one.turn.text for one in found.answers] == ["a b"]
    assert [one.text for one in found.earlier_session.turns] == ["before"]
    assert found.is_newest_exchange
    assert found.parts == ("telegram:5:1/0", "telegram:5:1/1")


async def test_new_version_of_an_answer_replaces_its_messages(store: Store) -> None:
    found, second = await exchange_of(store)
    claim, message = await take_message(store, key="5:1:e2")
    new = Turn("assistant", "c", None, NOON, "nova", 2, part_names=found.parts[:1])
    changed = HistoryChange({found.question.id: "how?"}, {found.answers[0].id: new})
    result = TurnResult(outgoing=in_parts("c"), change=changed, replaced_part_names=found.parts)
    await store.conversations.finish(claim, message, result)

    session = await store.conversations.load_session(claim, 10)
    expected = [one.text for one in session.turns]
    assert await texts_of(store) == expected == ["before", "how?", "c"]
    rows = [second]
    for external_id in ("43", None, None):
        following = await store.outbox.mark_sent(rows[-1], external_id)
        rows += [following] if following else []
    assert [(row.operation, row.content.text, row.external_id) for row in rows] == [
        (OutboxOperation.SEND, "b", None),
        (OutboxOperation.EDIT, "c", "42"),
        (OutboxOperation.DELETE, "", "43"),
    ]
    again = present(await store.conversations.load_exchange(claim, "41", 10))
    assert again.parts == found.parts[:1]
    turns = await store.conversations.find_turns(claim, ["42"])
    assert [one.turn.text for one in turns] == ["c", "a b"]


async def test_answer_is_found_by_its_parts_with_all_its_versions(store: Store) -> None:
    found, _ = await exchange_of(store)
    [answered] = found.answers
    new = Turn(
        "assistant", "c", None, NOON + timedelta(seconds=1), "nova", 2, part_names=found.parts
    )
    await change(store, "cb1", new_versions={answered.id: new})
    again, by_second = [present(await load_answered(store, part)) for part in found.parts]
    assert again == by_second
    assert again.question.turn.text == "why?"
    assert texts_of_versions(again) == [["a b", "c"]]
    [[old, _]] = again.versions
    await change(store, "cb2", new_versions={answered.id: old.turn}, restored_ids=[old.id])
    again = present(await load_answered(store, found.parts[0]))
    assert [one.turn.text for one in again.answers] == ["a b"]
    assert texts_of_versions(again) == [["a b", "c"]]
    assert await load_answered(store, "telegram:5:9/0") is None


async def test_replaced_answer_is_not_kept_as_a_version(store: Store) -> None:
    found, _ = await exchange_of(store)
    [answered] = found.answers
    new = Turn(
        "assistant", "c", None, NOON + timedelta(seconds=1), "nova", 2, part_names=found.parts
    )
    await change(store, "5:1:e2", new_versions={answered.id: new}, overwritten_ids=[answered.id])
    assert texts_of_versions(await load_answered(store, found.parts[0])) == [["c"]]


@pytest.mark.parametrize("steps", [[True], [True, False]])
async def test_question_can_be_marked_as_background_and_unmarked(
    store: Store, steps: list[bool]
) -> None:
    found, _ = await exchange_of(store)
    for number, is_background in enumerate(steps):
        await change(store, f"5:1:e{number}", observed_flags={found.question.id: is_background})
    turns = (await read_session(store.database)).turns
    assert {one.text for one in turns if one.is_observed} == ({"why?"} if steps[-1] else set())


async def test_question_whose_answer_failed_is_stored_outside_the_history(store: Store) -> None:
    claim, message = await take_message(store)
    name = message.part_name(0)
    question = replace(said("why?"), message_id="41", part_names=(name,))
    notice = TurnResult(outgoing=in_parts("⚠"), unanswered_questions=[question])
    await store.conversations.finish(claim, message, notice, begins_next=False)
    assert await texts_of(store) == []
    found = present(await load_answered(store, name))
    assert (found.question.turn.text, found.answers, found.parts) == ("why?", (), (name,))
    await finish(store, "5:2", turns=[replace(question, part_names=())])
    assert await load_answered(store, name) is None


async def test_deleted_turns_leave_no_summary(store: Store) -> None:
    found, _ = await exchange_of(store)
    row = {"conversation": LANE, "session": 1, "turns": 2, "text": "they asked why"}
    row |= {"covers_to": found.question.id, "fingerprint": ""}
    await store.write(insert(summary).values(row))
    await change(store, "d41", deleted_ids=[found.question.id])
    assert await texts_of(store) == ["before", "a b"]
    assert await store.rows(select(summary.c.text)) == []

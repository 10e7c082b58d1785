"""What the histories promise, on SQLite and on PostgreSQL."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from sqlalchemy import insert, select

from bot.chat.incoming import MediaItem, MediaKind
from bot.chat.outgoing import Attachment, MessageContent, OutboxOperation, OutboxRow, OutgoingPart
from bot.chat.session import (
    Claim,
    Exchange,
    HistoryChange,
    Summary,
    Turn,
    TurnRange,
    TurnResult,
    fingerprint_turns,
)
from bot.storage.tables import choice, inbox, outbox, summary, turn
from tests.samples import ALICE, make_incoming, read_session
from tests.support.store import (
    LANE,
    NOON,
    Store,
    answer,
    claimed,
    due,
    present,
    said,
    take,
    take_message,
    taken,
)


async def test_finish_stores_history_and_queues_the_answer_in_one_unit(store: Store) -> None:
    claim, message = await take_message(store)
    reply = Turn("assistant", "hi", None, datetime(2026, 11, 21, tzinfo=UTC))
    outgoing = [OutgoingPart(0, MessageContent("hi")), OutgoingPart(1, MessageContent("!"))]
    await store.conversations.finish(
        claim, message, TurnResult(turns=[said("hello"), reply], outgoing=outgoing)
    )
    session = await read_session(store.database, LANE, 10)
    assert session.turns == (said("hello"), reply)
    row = await taken(store)
    assert (row.op, row.part, row.text, row.reply_to) == (OutboxOperation.SEND, 0, "hi", "1")


async def test_turn_says_where_its_files_are_until_it_is_deleted(store: Store) -> None:
    claim, message = await take_message(store)
    files = (MediaItem(MediaKind.IMAGE, "cat\ud800.png", 70, "https://cdn.discordapp.com/1"),)
    asked = replace(said("what is it?"), message_id="1", files=files)
    await store.conversations.finish(claim, message, TurnResult([asked]), go_on=False)
    [kept] = (await read_session(store.database, LANE, 10)).turns
    assert kept.files == (replace(files[0], name="cat\ufffd.png"),)
    exchange = present(await store.conversations.load_exchange(claim, "1", 10))
    assert exchange.question.turn.files == kept.files
    claim, message = await take_message(store, key="5:2")
    moved = (replace(files[0], name="", source="https://cdn.discordapp.com/2"),)
    change = HistoryChange(files={exchange.question.id: moved})
    await store.conversations.finish(claim, message, TurnResult(change=change), go_on=False)
    [kept] = (await read_session(store.database, LANE, 10)).turns
    assert kept.files == moved


async def test_finish_takes_the_first_part_for_its_own_sender(store: Store) -> None:
    claim, message = await take_message(store)
    outgoing = [OutgoingPart(0, MessageContent("hi")), OutgoingPart(1, MessageContent("!"))]
    finished = await store.sending_conversations.finish(
        claim, message, TurnResult(outgoing=outgoing)
    )
    assert finished.row is not None
    assert finished.row.text == "hi"
    assert await take(store) is None, "it is being sent"
    following = present(await store.outbox.mark_sent(finished.row, "m1"))
    assert following.text == "!"
    assert await store.outbox.mark_sent(following, "m2") is None
    assert await due(store) == []


async def test_unstorable_characters_are_replaced(store: Store) -> None:
    claim, message = await take_message(store)
    odd, plain = "a\0b\ud83c", "a\ufffdb\ufffd"
    part = OutgoingPart(0, MessageContent(odd), file=Attachment("prompt.txt", odd))
    await store.conversations.finish(claim, message, TurnResult(turns=[said(odd)], outgoing=[part]))
    row = await taken(store)
    session = await read_session(store.database, LANE, 1)
    assert (row.text, row.file) == (plain, Attachment("prompt.txt", plain))
    assert session.turns == (said(plain),)


async def test_answered_message_leaves_no_text_in_the_inbox(store: Store) -> None:
    claim, message = await take_message(store)
    await store.conversations.finish(claim, message, TurnResult())
    payload = await store.scalar(select(inbox.c.payload))
    assert payload is None


async def test_new_session_hides_the_old_one_and_keeps_it(store: Store) -> None:
    claim, message = await take_message(store)
    await store.conversations.finish(claim, message, TurnResult(turns=[said("old")]))
    claim, message = await take_message(store, "5:2")
    greeting = Turn("assistant", "hi", None, datetime(2026, 11, 21, tzinfo=UTC))
    await store.conversations.finish(claim, message, TurnResult(turns=[greeting], new_session=True))
    session = await read_session(store.database, LANE, 10)
    assert session.turns == (greeting,)
    assert session.number == 2


async def test_observed_turn_stays_one(store: Store) -> None:
    claim, message = await take_message(store)
    turns = [replace(said("a"), observed=True), said("b")]
    await store.conversations.finish(claim, message, TurnResult(turns=turns))
    session = await read_session(store.database, LANE, 10)
    assert session.turns == tuple(turns)
    claim, message = await take_message(store, "5:2")
    assert (await store.conversations.load_session(claim, 10)).turns == tuple(turns)


async def test_unanswered_session_with_deleted_turns_is_not_the_first_one(store: Store) -> None:
    claim, message = await take_message(store)
    await store.conversations.finish(claim, message, TurnResult(turns=[said("a"), said("b")]))
    for number in (2, 3):
        claim, message = await take_message(store, f"5:{number}")
        ids = await store.scalars(select(turn.c.id))
        change = HistoryChange(deleted=[ids[0]])
        await store.conversations.finish(claim, message, TurnResult(change=change))
        session = await read_session(store.database, LANE, 10)
        assert (session.number, len(session.turns)) == (number, 3 - number)


async def test_finish_removes_turns_of_the_session_before_it_appends(store: Store) -> None:
    claim, message = await take_message(store)
    await store.conversations.finish(claim, message, TurnResult(turns=[said("old")]))
    claim, message = await take_message(store, "5:2")
    turns = [said(text) for text in "abcd"]
    await store.conversations.finish(claim, message, TurnResult(turns=turns, new_session=True))
    for number, (removed, expected) in enumerate(
        [(TurnRange(1, 2), "adx"), (TurnRange(0, 0), "adxx"), (TurnRange(0, 9), "x")], 3
    ):
        claim, message = await take_message(store, f"5:{number}")
        before = await store.conversations.load_session(claim, 10)
        await store.conversations.finish(
            claim, message, TurnResult(turns=[said("x")], removes=removed)
        )
        after = await read_session(store.database, LANE, 10)
        assert "".join(turn.text for turn in after.turns) == expected
        assert after.turns == (*removed.removed_from(before.turns), said("x"))
    left = await store.scalars(select(turn.c.text))
    assert left == ["old", "x"]


async def test_forget_deletes_every_session_and_no_other_conversation(store: Store) -> None:
    await store.inbox.receive([make_incoming(key="6:1", chat="6")], {})
    other = present(await claimed(store, "telegram:6"))
    await store.conversations.finish(other.claim, other.message, TurnResult(turns=[said("there")]))
    await store.inbox.receive([make_incoming(key="5:1"), make_incoming(key="5:2")], {})
    begun = present(await claimed(store))
    await store.conversations.finish(
        begun.claim, begun.message, TurnResult([said("CANARY"), said("CANARY")], new_session=True)
    )

    forgotten = await store.conversations.forget(begun.claim)

    left = await store.scalars(select(turn.c.text))
    assert (forgotten, left) == (2, ["there"])


async def test_forget_leaves_no_text_that_could_never_be_sent(store: Store) -> None:
    claim, _ = await answer(store, "CANARY")
    await store.outbox.mark_dead(await taken(store), "blocked")
    await store.conversations.forget(claim)
    left = await store.scalars(select(outbox.c.text))
    assert left == [""]


async def test_forget_deletes_what_people_said_of_themselves_there(store: Store) -> None:
    scopes = [f"{ALICE.id}@{LANE}", f"{ALICE.id}@telegram:6", LANE, ALICE.id]
    for scope in (*scopes, f"{ALICE.id}@{LANE}9", f"telegram:2@{LANE}"):
        await store.chat_settings.set(scope, "persona", "tall", ALICE.id)
    claim, _ = await take_message(store)
    await store.conversations.forget(claim)
    left = await store.scalars(select(choice.c.scope))
    assert sorted(left) == sorted([*scopes[1:], f"{ALICE.id}@{LANE}9"])


async def test_load_session_gives_the_newest_turns_oldest_first(store: Store) -> None:
    claim, message = await take_message(store)
    turns = [said(str(n)) for n in range(5)]
    await store.conversations.finish(claim, message, TurnResult(turns=turns))
    session = await read_session(store.database, LANE, 2)
    assert [turn.text for turn in session.turns] == ["3", "4"]


async def test_turns_are_found_by_the_messages_they_were_said_in(store: Store) -> None:
    claim, message = await take_message(store)
    asked = replace(said("why?"), message_id="41")
    parts = [OutgoingPart(0, MessageContent("a")), OutgoingPart(1, MessageContent("b"))]
    names = tuple(message.part_name(part.part) for part in parts)
    answer = Turn("assistant", "a b", None, NOON, "nora", 1, sent_as=names)
    await store.conversations.finish(claim, message, TurnResult([asked, answer], parts))
    assert await store.conversations.find_turns(claim, ["43"]) == []
    following = present(await store.outbox.mark_sent(await taken(store), "42"))
    await store.outbox.mark_sent(following, "43")

    assert [one.turn for one in await store.conversations.find_turns(claim, ["41"])] == [asked]
    assert [one.turn for one in await store.conversations.find_turns(claim, ["43"])] == [answer]
    both = await store.conversations.find_turns(claim, ["42", "43", "41", "7"])
    assert [one.turn for one in both] == [asked, answer]


async def test_superseded_turns_are_kept_as_versions_with_the_same_parent(store: Store) -> None:
    claim, message = await take_message(store)
    told = [said("one"), said("two"), Turn("assistant", "an answer", None, NOON)]
    first = await store.conversations.finish(claim, message, TurnResult(told), go_on=False)
    assert first.next_message is None
    claim, message = await take_message(store, key="5:2")
    again = [said("two"), Turn("assistant", "a better answer", None, NOON)]
    result = TurnResult(again, supersedes=TurnRange(0, 2))
    await store.conversations.finish(claim, message, result)

    expected = ["one", "two", "a better answer"]
    assert [one.text for one in (await read_session(store.database)).turns] == expected
    session = await store.conversations.load_session(claim, 10)
    assert [one.text for one in session.turns] == expected
    rows = await store.rows(select(turn.c.text, turn.c.parent, turn.c.active))
    assert sorted(tuple(row) for row in rows) == [
        ("a better answer", 4, True),
        ("an answer", 2, False),
        ("one", None, True),
        ("two", 1, False),
        ("two", 1, True),
    ]


async def exchange_of(store: Store) -> tuple[Claim, Exchange, OutboxRow]:
    """Have a question answered in two parts, and the first one sent; return it and the second."""
    claim, message = await take_message(store)
    asked = replace(said("why?"), message_id="41")
    names = tuple(message.part_name(part) for part in (0, 1))
    answer = Turn("assistant", "a b", None, NOON, "nora", 1, sent_as=names)
    parts = [OutgoingPart(0, MessageContent("a")), OutgoingPart(1, MessageContent("b"))]
    result = TurnResult([said("before"), asked, answer], parts)
    await store.conversations.finish(claim, message, result, go_on=False)
    second = present(await store.outbox.mark_sent(await taken(store), "42"))
    found = present(await store.conversations.load_exchange(claim, "41", 10))
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
    claim, message = await take_message(store, key="5:1:e2")
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
    again = present(await store.conversations.load_exchange(claim, "41", 10))
    assert again.parts == found.parts[:1]
    assert [one.turn.text for one in await store.conversations.find_turns(claim, ["42"])] == [
        "c",
        "a b",
    ]


async def test_answer_is_found_by_its_parts_with_all_its_versions(store: Store) -> None:
    _, found, _ = await exchange_of(store)
    claim, message = await take_message(store, key="cb1")
    [answer] = found.answers
    new = Turn("assistant", "c", None, NOON + timedelta(seconds=1), "nova", 2, sent_as=found.parts)
    change = HistoryChange(versions={answer.id: new})
    await store.conversations.finish(claim, message, TurnResult(change=change))
    load = store.conversations.load_answered
    for part in found.parts:
        again = present(await load(LANE, part, 10))
        assert again.question.turn.text == "why?"
        assert [[one.turn.text for one in each] for each in again.versions] == [["a b", "c"]]
    again = present(await load(LANE, found.parts[0], 10))
    [versions] = again.versions
    claim, message = await take_message(store, key="cb2")
    change = HistoryChange(
        versions={answer.id: versions[0].turn}, restored=[one.id for one in versions[:1]]
    )
    await store.conversations.finish(claim, message, TurnResult(change=change))
    again = present(await load(LANE, found.parts[0], 10))
    assert [one.turn.text for one in again.answers] == ["a b"]
    [versions] = again.versions
    assert [one.turn.text for one in versions] == ["a b", "c"]
    assert await load(LANE, "telegram:5:9/0", 10) is None


async def test_replaced_answer_is_no_version(store: Store) -> None:
    _, found, _ = await exchange_of(store)
    claim, message = await take_message(store, key="5:1:e2")
    [answer] = found.answers
    new = Turn("assistant", "c", None, NOON + timedelta(seconds=1), "nova", 2, sent_as=found.parts)
    change = HistoryChange(versions={answer.id: new}, replaced=[answer.id])
    await store.conversations.finish(claim, message, TurnResult(change=change))
    again = present(await store.conversations.load_answered(LANE, found.parts[0], 10))
    assert [[one.turn.text for one in each] for each in again.versions] == [["c"]]


async def test_question_becomes_background_and_a_question_again(store: Store) -> None:
    _, found, _ = await exchange_of(store)
    for key, is_background in (("5:1:e2", True), ("5:1:e3", False)):
        claim, message = await take_message(store, key=key)
        change = HistoryChange(observed={found.question.id: is_background})
        await store.conversations.finish(claim, message, TurnResult(change=change))
        turns = (await read_session(store.database)).turns
        assert [one.observed for one in turns if one.text == "why?"] == [is_background]
        assert [one.observed for one in turns if one.text != "why?"] == [False, False]


async def test_question_of_a_failed_answer_is_kept_outside_of_the_history(store: Store) -> None:
    claim, message = await take_message(store)
    name = message.part_name(0)
    question = replace(said("why?"), message_id="41", sent_as=(name,))
    notice = TurnResult(outgoing=[OutgoingPart(0, MessageContent("⚠"))], unanswered=[question])
    await store.conversations.finish(claim, message, notice, go_on=False)
    assert (await read_session(store.database)).turns == ()
    found = present(await store.conversations.load_answered(LANE, name, 10))
    assert (found.question.turn.text, found.answers, found.parts) == ("why?", (), (name,))
    claim, message = await take_message(store, key="5:2")
    await store.conversations.finish(claim, message, TurnResult([replace(question, sent_as=())]))
    assert await store.conversations.load_answered(LANE, name, 10) is None


async def test_deleted_turns_leave_no_summary_and_no_receipt(store: Store) -> None:
    _, found, _ = await exchange_of(store)
    kept = Summary(1, found.question.id, fingerprint_turns([]), "they asked why")
    row = {"conversation": LANE, "session": 1, "turns": 2, "text": kept.text}
    row |= {"covers_to": kept.covers_to, "fingerprint": kept.fingerprint}
    await store.write(insert(summary).values(row))
    claim, message = await take_message(store, key="d41")
    change = HistoryChange(deleted=[found.question.id])
    await store.conversations.finish(claim, message, TurnResult(change=change))
    assert [one.text for one in (await read_session(store.database)).turns] == ["before", "a b"]
    left = await store.rows(select(summary.c.text))
    assert left == []

"""Contract of the index of a channel's histories, on SQLite and on PostgreSQL."""

from dataclasses import replace

from bot.chat.incoming import Address, IncomingMessage
from bot.chat.outgoing import MessageContent, OutgoingPart
from bot.chat.session import MessageLocation, Turn, TurnResult
from bot.storage.history_index import SqlHistoryIndex
from tests.samples import ALICE, BOB, make_incoming, read_session
from tests.support.store import Store

HERE = Address("telegram", "5")


def in_history(number: int, history: str) -> IncomingMessage:
    said = make_incoming(f"q{number}", key=f"5:{number}", author=ALICE)
    return replace(said, address=replace(HERE, history=history))


async def answer(store: Store, number: int, history: str = "") -> None:
    """Answer a message; the sent answer gets the id "9<number>"."""
    said = in_history(number, history)
    await store.inbox.receive([said], {})
    key = said.address.conversation
    [begun] = await store.sending_conversations.claim_next([key], "me", 60)
    message = begun.message
    turns = [
        Turn("user", said.text, said.author, said.at, message_id=said.message_id),
        Turn("assistant", f"a{number}", None, said.at, part_names=(message.part_name(0),)),
    ]
    result = TurnResult(turns, [OutgoingPart(0, MessageContent(f"a{number}"))])
    finished = await store.sending_conversations.finish(begun.claim, message, result)
    assert finished.row is not None
    await store.outbox.mark_sent(finished.row, f"9{number}")


async def find(store: Store, message_id: str) -> list[tuple[str, bool]]:
    places = await SqlHistoryIndex(store.database).locate(HERE, [message_id], includes_copies=True)
    return [(one.conversation, one.is_newest_message) for one in places]


async def test_messages_are_found_in_every_history_of_their_channel(store: Store) -> None:
    await answer(store, 1)
    await answer(store, 2, "user=1")
    await answer(store, 3, "user=1")
    await store.inbox.receive([make_incoming(chat="55", key="55:2")], {})
    assert await find(store, "91") == [("telegram:5", True)]
    assert await find(store, "2") == [("telegram:5#user=1", False)]
    assert await find(store, "92") == [("telegram:5#user=1", False)]
    assert await find(store, "93") == [("telegram:5#user=1", True)]
    assert await find(store, "4") == []
    index = SqlHistoryIndex(store.database)
    assert await index.count_turns(HERE) == {"telegram:5": 2, "telegram:5#user=1": 4}
    assert await index.find_conversation(HERE, "5:3") == "telegram:5#user=1"
    assert await index.find_newest_conversation(HERE, ALICE.id) == "telegram:5#user=1"
    assert await index.find_newest_conversation(HERE, BOB.id) is None


async def test_turn_is_not_last_while_a_message_waits(store: Store) -> None:
    await answer(store, 1, "replies=1")
    await store.inbox.receive([in_history(2, "replies=1")], {})
    assert await find(store, "91") == [("telegram:5#replies=1", False)]


async def test_message_of_an_unfinished_answer_is_located(store: Store) -> None:
    said = in_history(1, "replies=1")
    await store.inbox.receive([said], {})
    [begun] = await store.sending_conversations.claim_next([said.address.conversation], "me", 60)
    opened = await store.sending_conversations.open_part(
        begun.claim, begun.message, OutgoingPart(0, MessageContent("It gr"))
    )
    assert opened.row is not None
    await store.outbox.mark_sent(opened.row, "91")
    [place] = await SqlHistoryIndex(store.database).locate(HERE, ["91"])
    assert place == MessageLocation("telegram:5#replies=1", None, is_newest_message=True)


async def test_branch_copies_the_earlier_history_only_once(store: Store) -> None:
    await answer(store, 1, "replies=1")
    await answer(store, 2, "replies=1")
    index, key = SqlHistoryIndex(store.database), "telegram:5#replies=7"
    [place] = await index.locate(HERE, ["91"])
    await index.create_branch(key, place)
    await index.create_branch(key, place)
    await store.inbox.receive([in_history(7, "replies=7")], {})
    session = await read_session(store.database, key)
    assert [(turn.role, turn.text) for turn in session.turns] == [
        ("user", "q1"),
        ("assistant", "a1"),
    ]
    assert await find(store, "91") == [("telegram:5#replies=1", False), (key, False)]

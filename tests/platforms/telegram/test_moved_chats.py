"""Test groups that became supergroups: events keep the old address, requests use the new id."""

from collections.abc import Sequence
from typing import Any

import pytest
from aiogram.types import Update

from bot.chat.incoming import Address, ButtonPress, Incoming, IncomingMessage, MessageEdit
from bot.platforms.telegram.api import ChatMoved
from bot.platforms.telegram.incoming import to_incoming
from bot.platforms.telegram.moved_chats import CurrentChat, MovedChats
from tests.platforms.telegram.messages import ALICE, BOT, BOT_JSON, NOON
from tests.support.intake import FakeIntake

OLD, NEW = -5, -1005
GROUP = Address("telegram", str(OLD))
NEW_CHAT = {"id": NEW, "type": "supergroup", "title": "Round table"}
OLD_CHAT = {"id": OLD, "type": "group", "title": "Round table"}


def update(chat: dict[str, Any], number: int = 7, kind: str = "message", **fields: Any) -> Update:
    body = {"message_id": number, "date": NOON, "chat": chat, "from": ALICE, **fields}
    return Update.model_validate({"update_id": 1, kind: body})


MOVED_TO = update(OLD_CHAT, migrate_to_chat_id=NEW)
MOVED_FROM = update(NEW_CHAT, 1, migrate_from_chat_id=OLD)


def received(chats: MovedChats, *updates: Update) -> Sequence[Incoming]:
    incomings = [to_incoming(one, BOT) for one in updates]
    return chats.map_to_first_chats([one for one in incomings if one is not None])


@pytest.fixture(params=[MOVED_TO, MOVED_FROM], ids=["to", "from"])
def moved(request: pytest.FixtureRequest) -> MovedChats:
    chats = MovedChats()
    chats.record_moves([request.param])
    return chats


def test_supergroup_events_have_the_address_of_the_group(moved: MovedChats) -> None:
    answer = {"message_id": 6, "date": NOON, "chat": NEW_CHAT, "from": BOT_JSON, "text": "hi"}
    pressed = {"id": "9", "from": ALICE, "chat_instance": "1", "data": "stop", "message": answer}
    updates = [
        update(NEW_CHAT, text="hello", reply_to_message=answer),
        update(NEW_CHAT, kind="edited_message", text="hello!"),
        Update.model_validate({"update_id": 2, "callback_query": pressed}),
    ]
    said, edited, press = received(moved, *updates)

    assert isinstance(said, IncomingMessage)
    assert (said.address, said.scopes) == (GROUP, ("telegram:-5",))
    assert (said.external_key, said.message_id) == ("-1005:7", "1000000000007")
    assert said.quote is not None
    assert said.quote.message_id == "1000000000006"
    assert isinstance(edited, MessageEdit)
    assert (edited.address, edited.message_id) == (GROUP, said.message_id)
    assert isinstance(press, ButtonPress)
    assert (press.address, press.message_id) == (GROUP, said.quote.message_id)


def test_move_to_a_supergroup_is_not_a_join(moved: MovedChats) -> None:
    states = {"old_chat_member": "left", "new_chat_member": "member"}
    change = {name: {"status": status, "user": BOT_JSON} for name, status in states.items()}
    body = {"chat": NEW_CHAT, "from": ALICE, "date": NOON, **change}
    assert not received(moved, Update.model_validate({"update_id": 3, "my_chat_member": body}))


def test_chats_that_did_not_move_are_unchanged(moved: MovedChats) -> None:
    other = {"id": -1006, "type": "supergroup", "title": "Others"}
    (said,) = received(moved, update(other, text="hello"))
    assert (said.address.chat, said.message_id) == ("-1006", "7")


async def test_request_is_repeated_in_the_new_chat_and_the_move_stored() -> None:
    store, chats_asked = FakeIntake(), list[int]()
    chats = MovedChats(store)

    async def request(chat: CurrentChat) -> str:
        chats_asked.append(chat.id)
        if chat.id == OLD:
            raise ChatMoved(NEW)
        return chat.to_stored_id(3)

    assert await chats.call_in_chat(GROUP, request) == "1000000000003"
    assert (
        await MovedChats(store).call_in_chat(GROUP, request) == "1000000000003"
    )  # after a restart
    assert chats_asked == [OLD, NEW, NEW]


async def test_move_stored_by_another_process_is_loaded() -> None:
    store, chats = FakeIntake(), MovedChats()
    await chats.load(store)
    await store.receive((), MovedChats(store).record_moves([MOVED_TO]))

    said = to_incoming(update(NEW_CHAT, text="hello"), BOT)
    assert said is not None
    await chats.load_moved_chats([said], store)
    assert chats.map_to_first_chats([said])[0].address == GROUP


async def test_moves_are_stored_separately_for_each_bot() -> None:
    store = FakeIntake()
    await store.receive((), MovedChats(store).record_moves([MOVED_TO]))
    other = MovedChats(store, bot_id="77")
    await other.load(store)
    assert received(other, update(NEW_CHAT, text="hello"))[0].address.chat == str(NEW)


def test_group_and_supergroup_messages_have_different_ids() -> None:
    chat = CurrentChat(NEW, has_moved=True)
    assert chat.to_telegram_id("7") is None
    assert chat.to_telegram_id(chat.to_stored_id(7)) == 7

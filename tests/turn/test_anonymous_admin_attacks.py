"""Attacks by people who write anonymously as a group or channel on Telegram."""

from collections.abc import Mapping
from typing import Any

import pytest
from aiogram.types import Update
from typing_extensions import override

from bot.chat.command import ButtonAction
from bot.chat.incoming import ButtonPress, Incoming, Request
from bot.commands.authority import writes_as_group
from bot.errors import Unreachable
from bot.platforms.telegram.incoming import to_incoming
from bot.storage.database import Database
from bot.storage.tables import setting
from tests.fakes import FakeBackend
from tests.platforms.telegram.messages import ALICE, BOT, GROUP, NOON
from tests.samples import read_session
from tests.turn.setup import Setup

CHANNEL = {"id": -200, "type": "channel", "title": "News"}
AS_GROUP = {"from": {"id": 1087968824, "is_bot": True, "first_name": "Group"}, "sender_chat": GROUP}
AS_CHANNEL = {
    "from": {"id": 136817688, "is_bot": True, "first_name": "Channel"},
    "sender_chat": CHANNEL,
}
CONVERSATION = "telegram:-100"
REFUSED = "Only the person who asked can use this button."


class Group(Setup):
    """A group whose admin is Alice; its events have the form that Telegram sends."""

    @override
    async def _is_platform_admin(self, asked: Request) -> bool:
        if asked.author_is_admin is not None:
            return asked.author_is_admin
        return asked.author.id == f"telegram:{ALICE['id']}"

    async def write(self, number: int, text: str, **fields: Any) -> str:
        """Receive a message to the bot; return the newest message of the bot in the group."""
        await self.receive(written(number, text, **fields))
        await self.work(CONVERSATION)
        return self.texts[-1] if self.texts else ""


def written(number: int, text: str, **fields: Any) -> Incoming:
    kind = "bot_command" if text.startswith("/") else "mention"
    word = text if kind == "bot_command" else f"@{BOT.username}"
    entity = {"type": kind, "offset": 0, "length": len(word.split()[0])}
    shown = text if kind == "bot_command" else f"{word} {text}"
    body = {"message_id": number, "date": NOON, "chat": GROUP, "text": shown, "entities": [entity]}
    return received({"message": {**body, "from": ALICE, **fields}})


def received(event: Mapping[str, Any]) -> Incoming:
    incoming = to_incoming(Update.model_validate({"update_id": 1, **event}), BOT)
    assert incoming is not None
    return incoming


def pressed(data: str, user: Mapping[str, Any] = ALICE) -> ButtonPress:
    message = {"message_id": 900, "date": NOON, "chat": GROUP, "text": "Delete?"}
    query = {"id": "9", "from": user, "chat_instance": "1", "data": data, "message": message}
    press = received({"callback_query": query})
    assert isinstance(press, ButtonPress)
    return press


@pytest.mark.parametrize("value", ["off", "on"])
async def test_anonymous_admin_cannot_delete_anything(database: Database, value: str) -> None:
    """All anonymous admins look like one person to the bot."""
    group = Group(database, backend=FakeBackend())
    await group.write(1, f"/settings anonymous {value}")
    await group.write(2, "my question", **AS_GROUP)
    question = {"message_id": 2, "date": NOON, "chat": GROUP, "text": "my question", **AS_GROUP}
    answer = {**question, "message_id": 3, "from": BOT.model_dump(), "sender_chat": None}
    history = await _history(group)
    assert len(history) == 2
    for number, more in enumerate(({}, question, answer), 10):
        reply = {"reply_to_message": more} if more else {}
        command = "/forget" if more else "/forget last"
        told = await group.write(number, command, **AS_GROUP, **reply)
        assert told.startswith("⚠ Only an admin")
    assert await _history(group) == history
    await group.write(20, "/forget last")
    assert await _history(group) == [], "an admin with a name may"


@pytest.mark.parametrize("value", ["off", "on"])
async def test_anonymous_admin_cannot_remove_a_question(database: Database, value: str) -> None:
    """What /undo removes is deleted forever, so an anonymous admin may not remove any question."""
    group = Group(database, backend=FakeBackend())
    await group.write(1, f"/settings anonymous {value}")
    for number, author in ((2, AS_GROUP), (4, AS_CHANNEL), (6, {"from": {**ALICE, "id": 66}})):
        await group.write(number, "a question", **author)
        history = await _history(group)
        told = await group.write(number + 1, "/undo", **AS_GROUP)
        assert told.startswith("⚠ Only an admin")
        assert await _history(group) == history
    await group.write(8, "/undo")
    assert len(await _history(group)) == 4, "an admin with a name may"


async def test_anonymous_admin_cannot_remove_a_question_whose_answer_failed(
    database: Database,
) -> None:
    group = Group(database, backend=FakeBackend([Unreachable("down")]))
    await group.write(1, "/settings anonymous on")
    await group.write(2, "my question", **AS_GROUP)
    told = await group.write(3, "/undo", **AS_GROUP)
    assert told.startswith("⚠ Only an admin who writes under their own name")
    assert "my question" in await group.write(4, "/undo")


async def test_anonymous_admin_cannot_edit_messages_of_another_admin(database: Database) -> None:
    group = Group(database, backend=FakeBackend())
    await group.write(1, "/settings anonymous on")
    await group.write(2, "my question", **AS_GROUP)
    history = await _history(group)
    question = {"message_id": 2, "date": NOON, "chat": GROUP, "text": "my question", **AS_GROUP}
    told = await group.write(3, "/edit another", **AS_GROUP, reply_to_message=question)
    assert told == "⚠ Only the person who wrote that message can change it."
    assert await _history(group) == history


async def test_person_writing_as_a_group_or_channel_cannot_forget_anybody(
    database: Database,
) -> None:
    group = Group(database, backend=FakeBackend())
    for number, sender in ((1, AS_GROUP), (3, AS_CHANNEL)):
        await group.write(number, "my question", **sender)
        asked = await group.write(number + 1, "/forget me", **sender)
        assert asked.startswith("Delete everything that you said")
        for user in (ALICE, {"id": 66, "is_bot": False, "first_name": "Mallory"}):
            press = pressed(f"{ButtonAction.FORGET}:-100:{number + 1}/0", user)
            assert await group.buttons.find_refusal_reason(press) == REFUSED
    assert len(await _history(group)) == 4


async def test_channel_is_never_an_admin(database: Database) -> None:
    group = Group(database, backend=FakeBackend())
    await group.write(1, "/settings anonymous on")
    for number, title in enumerate(("Round table", "@everyone", "Alice Ng"), 2):
        impostor = {**AS_CHANNEL, "sender_chat": {**CHANNEL, "title": title}}
        told = await group.write(number, "/preset reset", **impostor)
        assert told.startswith("⚠ Only an admin can")
    linked = {"is_automatic_forward": True, **AS_CHANNEL}
    told = await group.write(9, "/settings overhear off", **linked)
    assert told.startswith("⚠ Only an admin can")


@pytest.mark.parametrize(
    "author",
    [
        {"from": {**ALICE, "first_name": "Round table", "last_name": None}},
        AS_CHANNEL,
        {**AS_GROUP, "sender_chat": {**GROUP, "id": -1001}},
        {**AS_GROUP, "sender_chat": {**GROUP, "id": 100}},
        {**AS_GROUP, "sender_chat": {**GROUP, "id": 1087968824}},
    ],
    ids=["namesake", "channel", "other group", "positive id", "id of the stand-in"],
)
def test_author_who_imitates_the_group_does_not_count_as_the_group(
    author: Mapping[str, Any],
) -> None:
    said = written(1, "/preset reset", **author)
    assert not writes_as_group(said)  # type: ignore[arg-type]


async def _history(group: Group) -> list[str]:
    return [turn.text for turn in (await read_session(group.database, CONVERSATION)).turns]


@pytest.mark.parametrize("words", ["I am the owner", "everywhere I am the owner"])
async def test_person_writing_as_the_group_cannot_set_a_description(
    database: Database, words: str
) -> None:
    """All anonymous admins look like one person, so each could describe the others."""
    group = Group(database, backend=FakeBackend())
    told = await group.write(1, f"/me {words}", **AS_GROUP)
    assert "Write under your own name to describe yourself" in told
    assert not await database.read(lambda c: c.execute(setting.select()).all())
    assert "was deleted" in await group.write(2, "/me clear", **AS_GROUP)
    assert "was saved" in await group.write(3, f"/me {words}")

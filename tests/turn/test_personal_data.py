"""Test what people decide about their own words: forget, export, what is observed."""

import json
from collections.abc import Sequence
from dataclasses import replace

import pytest
from typing_extensions import override

from bot.chat.command import ButtonAction, Command
from bot.chat.incoming import Address, Incoming, Person, Quote, Request, Said, WakeReason
from bot.commands.authority import AdminCheck, AnonymousAdmins
from bot.commands.privacy import PrivacyHandlers, PrivateCommands
from bot.commands.request import CommandRequest
from bot.errors import Refused
from bot.ports import PrivateChats
from bot.storage.chat_settings import SqlChatSettings
from bot.storage.database import Database
from bot.storage.forgetting import PersonalData
from bot.storage.receipts import Receipts
from tests.samples import ALICE, BOB, make_incoming, read_session
from tests.turn.setup import Setup, pressed


def said(text: str, key: str, author: Person = ALICE, chat: str = "5") -> Said:
    wake = WakeReason.COMMAND if text.startswith("/") else WakeReason.DM
    return make_incoming(text, key=key, author=author, chat=chat, wake=wake)


async def test_forget_me_asks_first_and_reaches_every_conversation(database: Database) -> None:
    setup = Setup(database)
    await setup.say(said("mine", "5:1"), said("theirs", "5:2", BOB), said("mine too", "5:3"))
    await setup.receive(said("elsewhere", "6:1", chat="6"))
    await setup.work("telegram:6")
    await setup.say(said("/me I am a tall knight", "5:4"), said("/forget me", "5:5"))
    assert setup.texts[-1].startswith("Delete everything that you said in all channels")
    assert len(await setup.history()) == 6
    question = "telegram:5:5/0"
    for_others = await setup.buttons.refusal(pressed(ButtonAction.FORGET, question, by=BOB))
    assert for_others == "Only the person who asked for it can use this button."
    await setup.say(pressed(ButtonAction.FORGET, question))
    await setup.work("telegram:6")
    assert [role for role, _ in await setup.history()] == ["user", "assistant"]
    assert (await setup.history())[0] == ("user", "theirs")
    assert (await read_session(database, "telegram:6")).turns == ()
    assert await Receipts(database).newest("telegram:6") == []
    assert {"forget telegram:5", "forget telegram:6"} <= set(setup.memory.calls)
    assert setup.texts[-1].startswith("I am now deleting everything")
    await setup.say(said("/me", "5:9"))
    assert setup.texts[-1].startswith("⚠ You have not described yourself.")


async def test_forget_me_deletes_the_notes_that_quote_the_person_alone(database: Database) -> None:
    setup = Setup(database, preset={"context": "addressed"})
    ignored = replace(said("ignored", "6:1", chat="6"), wake=None)
    await setup.receive(ignored)
    await setup.work("telegram:6")
    await setup.say(said("mine", "5:1"), said("theirs", "5:2", BOB), said("/settings why", "5:3"))
    assert "“mine”" in setup.texts[-1]
    assert await setup.decisions.newest("telegram:6")
    await setup.say(said("/forget me", "5:4"), pressed(ButtonAction.FORGET, "telegram:5:4/0"))
    await setup.say(said("/settings why", "5:5"))
    assert "“theirs”" in setup.texts[-1]
    assert "“mine”" not in setup.texts[-1]
    assert await setup.decisions.newest("telegram:6") == ()


async def test_forget_me_can_be_declined(database: Database) -> None:
    setup = Setup(database)
    await setup.say(said("mine", "5:1"), said("/forget me", "5:2"))
    await setup.say(pressed(ButtonAction.KEEP, "telegram:5:2/0"))
    assert setup.texts[-1] == "Nothing was deleted."
    assert len(await setup.history()) == 2


async def test_forget_last_deletes_the_newest_question_and_its_answers(database: Database) -> None:
    setup = Setup(database, ["one"], ["two"])
    await setup.say(said("a", "5:1"), said("b", "5:2"))
    await setup.say(said("/forget last", "5:3", BOB))
    assert setup.texts[-1].startswith("⚠ Only an admin can make me forget")
    await setup.say(said("/forget last", "5:4"))
    assert await setup.history() == [("user", "a"), ("assistant", "one")]
    assert setup.texts[-1].startswith("I have forgotten that message")


async def test_export_holds_the_own_words_only(database: Database) -> None:
    setup = Setup(database, ["one"], ["two"])
    await setup.say(said("mine", "5:1"), said("theirs", "5:2", BOB), said("/me a knight", "5:3"))
    await setup.say(said("/export", "5:4"))
    assert setup.texts[-1].startswith("⚠ Everybody here would see the file")
    await setup.say(replace(said("/export", "5:5"), is_private=True))
    assert setup.texts[-1] == "What you have said to me: 1 message."
    [file] = setup.surface.files.values()
    exported = json.loads(file.text)
    assert [one["text"] for one in exported["messages"]] == ["mine"]
    assert list(exported["descriptions"].values()) == ["a knight"]


async def nobody_is_admin(_request: Request) -> bool:
    return False


class Private(PrivateChats):
    """Opens a private chat with everybody, or with nobody."""

    def __init__(self, chat: str | None) -> None:
        self._chat = chat

    @override
    async def private_chat(self, person: str) -> Address:
        if self._chat is None:
            raise Refused("nobody")
        return Address("telegram", self._chat)


@pytest.mark.parametrize("private", ["77", None])
async def test_export_by_a_native_command_goes_to_the_private_chat(
    database: Database, private: str | None
) -> None:
    setup = Setup(database, ["one"])
    await setup.say(said("mine", "5:1"))
    received: list[Incoming] = []

    async def receive(events: Sequence[Incoming]) -> None:
        received.extend(events)

    commands = PrivateCommands({"telegram": Private(private)}, receive)
    anonymous = AnonymousAdmins(SqlChatSettings(database, setup.clock))
    admins = AdminCheck((), nobody_is_admin, setup.clock, anonymous)
    data = PersonalData(database, setup.clock)
    handlers = PrivacyHandlers(data, admins, setup.resolver, commands)
    native = replace(said("/export", "5:2"), interaction="8:token", message_id=None)
    active = await setup.resolver.resolve(native.scopes)
    request = CommandRequest(Command("export"), native, active, (), native.at)
    result = await handlers.export(request)
    if private is None:
        assert result.file is not None
        return
    [repeated] = received
    assert isinstance(repeated, Said)
    assert (repeated.address.chat, repeated.interaction, repeated.is_private) == ("77", None, True)
    assert (result.file, str(result.text).partition(".")[0]) == (
        None,
        "I am sending you the file in a private chat",
    )


async def test_nothing_is_observed_where_an_admin_forbids_it(database: Database) -> None:
    setup = Setup(database, preset={"context": "all"})
    await setup.say(said("/settings overhear off", "5:1", BOB))
    assert setup.texts[-1].startswith("⚠ Only an admin can")
    await setup.say(make_incoming("by the way", key="5:2", wake=None))
    assert len(await setup.history()) == 1
    await setup.say(said("/settings overhear off", "5:3"))
    await setup.say(make_incoming("among us", key="5:4", wake=None))
    assert len(await setup.history()) == 1
    await setup.say(said("/settings overhear on", "5:5"))
    await setup.say(make_incoming("once more", key="5:6", wake=None))
    assert [text for _, text in await setup.history()] == ["by the way", "once more"]


def line(text: str, key: str, author: Person = BOB) -> Said:
    return make_incoming(text, key=key, author=author, wake=None)


async def test_person_can_stop_being_observed_in_all_chats(database: Database) -> None:
    async def read_before(_said: Said, _limit: int) -> Sequence[Said]:
        return [line("SECRET before", "9:1"), line("public before", "9:2", ALICE)]

    setup = Setup(
        database, preset={"context": "all", "wake": {"words": ["nora"]}}, read_before=read_before
    )

    def asked() -> str:
        return str(setup.backend.prompts[-1].messages)

    await setup.say(line("SECRET heard", "5:1"), said("/settings me off", "5:2", BOB))
    assert setup.texts[-1].startswith("I overhear you nowhere")
    await setup.say(line("SECRET nora", "5:3"), line("public talk", "5:4", ALICE))
    ask = make_incoming("well?", key="5:5", author=BOB, wake=WakeReason.MENTION)
    await setup.say(ask)
    assert len(setup.backend.prompts) == 1
    assert "SECRET" not in asked()
    assert all(text in asked() for text in ("public before", "public talk", "well?"))
    # What others quote is not shown, unless it was said to the bot.
    for key, quoted, is_shown in (("1", "SECRET heard", False), ("5", "well?", True)):
        question = make_incoming("really?", key=f"5:6{key}", wake=WakeReason.MENTION)
        await setup.say(replace(question, quote=Quote(BOB, key, quoted)))
        assert ("does not want to be overheard" in asked()) is not is_shown
    elsewhere = make_incoming("and here?", key="6:2", chat="6", wake=WakeReason.MENTION)
    secret = replace(
        line("SECRET there", "6:1"), address=elsewhere.address, scopes=elsewhere.scopes
    )
    await setup.receive(secret, elsewhere)
    await setup.work("telegram:6")
    assert "and here?" in asked()
    assert "SECRET" not in asked()
    exported = await PersonalData(database, setup.clock).descriptions(BOB.id)
    assert exported == {}
    await setup.say(said("/settings me on", "5:7", BOB), line("heard again", "5:8"))
    await setup.say(make_incoming("so?", key="5:9", wake=WakeReason.MENTION))
    assert "heard again" in asked()


async def test_choice_of_a_person_is_made_in_its_own_name(database: Database) -> None:
    setup = Setup(database)
    for command, reply in (
        ("/settings me", "Where a channel lets me overhear"),
        ("/settings me perhaps", "⚠ Use /settings me off or /settings me on."),
    ):
        await setup.say(said(command, f"5:{len(command)}"))
        assert setup.texts[-1].startswith(reply)
    group = Person("telegram:5", "Group")
    await setup.say(said("/settings me off", "5:1", group))
    assert setup.texts[-1].startswith("⚠ You write as the group itself")

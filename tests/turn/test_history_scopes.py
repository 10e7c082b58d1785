"""Test who shares a history in a channel: everybody, each person, or each chain of replies."""

from dataclasses import replace

import pytest

from bot.chat.command import ButtonAction
from bot.chat.incoming import (
    Incoming,
    IncomingMessage,
    MessageDeletion,
    MessageEdit,
    Person,
    Quote,
    WakeReason,
)
from bot.runtime.clock import SystemClock
from bot.storage.database import Database
from bot.storage.forgetting import PersonalData
from tests.samples import ALICE, BOB, make_incoming, read_session
from tests.turn.setup import CHAT, Setup, pressed

OF_ALICE, OF_BOB = f"{CHAT}#user=1", f"{CHAT}#user=2"


def asked(
    text: str, number: int, author: Person = ALICE, *, to: str | None = None
) -> IncomingMessage:
    """Return a message of a group, perhaps a reply to another message."""
    said = make_incoming(text, key=f"5:{number}", author=author, wake=WakeReason.MENTION)
    return replace(said, quote=Quote(None, to, "") if to else None)


async def say(setup: Setup, *messages: Incoming) -> None:
    """Receive messages, one after the other, and process all conversations of the channel."""
    for one in messages:
        await setup.receive(one)
        while keys := await setup.conversations.list_ready_conversations(10, ["telegram"]):
            for key in keys:
                await setup.work(key)


async def scoped(database: Database, scope: str, *scripts: list[str]) -> Setup:
    """Return a channel with this history scope, in which the model answers with `scripts`."""
    setup = Setup(database, *scripts)
    await say(setup, asked(f"/settings scope {scope}", 701))
    return setup


def prompt(setup: Setup, number: int = -1) -> list[str]:
    return [one.content for one in setup.backend.prompts[number].messages]


def sent(setup: Setup, text: str) -> str:
    """Return the id of the bot's message with this text."""
    [found] = [key for key, value in setup.surface.messages.items() if value == text]
    return found


async def texts(database: Database, key: str) -> list[str]:
    return [turn.text for turn in (await read_session(database, key)).turns]


async def test_history_is_shared_until_an_admin_changes_the_scope(database: Database) -> None:
    setup = Setup(database, ["one"], ["two"])
    await say(setup, asked("a", 701), asked("b", 702, BOB))
    assert prompt(setup) == ["Alice:a", "nora:one", "Bob:b"]
    await say(setup, asked("/settings scope user", 703, BOB))
    assert "Only an admin can change who shares a conversation" in setup.texts[-1]
    await say(setup, asked("/settings scope", 704), asked("/settings scope everyone", 705))
    assert setup.texts[-2].startswith("Scope: shared – everybody here shares one conversation")
    assert "/settings scope shared, user, thread, replies or inherit." in setup.texts[-1]


async def test_commands_affect_only_the_history_of_their_author(database: Database) -> None:
    setup = await scoped(database, "user", ["one"], ["two"], ["again"], ["edited"])
    await say(setup, asked("a", 702), asked("b", 703, BOB))
    await say(setup, asked("/retry", 704))
    assert (prompt(setup), await texts(database, OF_ALICE)) == (["a"], ["a", "again"])
    edit = asked("b2", 703, BOB)
    await say(setup, MessageEdit("5:703:e1", edit, edit.at))
    assert (prompt(setup), await texts(database, OF_BOB)) == (["b2"], ["b2", "edited"])
    await say(setup, asked("/new", 705))
    assert await texts(database, OF_ALICE) == []
    assert await texts(database, OF_BOB) == ["b2", "edited"]


async def test_context_of_a_personal_history_is_shown_only_to_its_owner_and_admins(
    database: Database,
) -> None:
    setup = await scoped(database, "user", ["one"], ["two"])
    await say(setup, asked("a", 702), asked("b", 703, BOB))
    of_alice, of_bob = sent(setup, "one"), sent(setup, "two")
    await say(setup, asked("/context", 704, BOB, to=of_alice))
    assert setup.texts[-1].startswith("⚠ Only an admin can see the context of the answer")
    for number, (author, answer) in enumerate(((BOB, of_bob), (ALICE, of_bob)), 705):
        await say(setup, asked("/context", number, author, to=answer))
        assert "receipt 2:" in setup.texts[-1]
    [newest, *_] = await setup.audit.newest(2)
    assert (newest.who, newest.action, newest.subject) == (ALICE.id, "read context", CHAT)
    await say(setup, asked("/settings scope shared", 707), asked("c", 708))
    await say(setup, asked("/context", 709, BOB, to="708"))
    assert "receipt 3:" in setup.texts[-1], "everybody's own"


async def test_button_press_finds_the_history_of_its_answer(database: Database) -> None:
    setup = await scoped(database, "user", ["one"], ["two"], ["again"])
    await say(setup, asked("a", 702), asked("b", 703, BOB))
    press = pressed(ButtonAction.RETRY, "telegram:5:703/0", by=BOB)
    assert await setup.buttons.find_refusal_reason(press) is None
    await say(setup, press)
    assert (setup.texts[-1], await texts(database, OF_BOB)) == ("again", ["b", "again"])
    assert await setup.buttons.find_refusal_reason(replace(press, author=ALICE)) is None  # an admin
    gone = pressed(ButtonAction.RETRY, "telegram:5:709/0", by=BOB)
    assert "no longer works" in str(await setup.buttons.find_refusal_reason(gone))


async def test_forget_channel_deletes_all_histories_of_the_channel(database: Database) -> None:
    setup = Setup(database, ["zero"], ["one"], ["two"])
    await say(setup, asked("z", 701), asked("/settings scope user", 702))
    await say(setup, asked("a", 703), asked("b", 704, BOB), asked("/forget channel", 705))
    assert setup.texts[-1].startswith("Deleted for good: 6 messages")
    for key in (CHAT, OF_ALICE, OF_BOB):
        assert await texts(database, key) == []
    assert {f"forget {key}" for key in (CHAT, OF_ALICE, OF_BOB)} <= set(setup.memory.calls)


async def test_second_reply_to_an_answer_starts_a_branch(database: Database) -> None:
    setup = await scoped(database, "replies", ["one"], ["left"], ["right"], ["further"])
    await say(setup, asked("a", 702))
    answer = sent(setup, "one")
    await say(setup, asked("l", 703, to=answer), asked("r", 704, to=answer))
    assert prompt(setup) == ["a", "one", "r"]
    await say(setup, asked("on", 705, to=sent(setup, "right")))
    assert prompt(setup) == ["a", "one", "r", "right", "on"]
    assert await texts(database, f"{CHAT}#replies=702") == ["a", "one", "l", "left"]
    assert await texts(database, f"{CHAT}#replies=704") == [
        "a",
        "one",
        "r",
        "right",
        "on",
        "further",
    ]


async def test_replies_received_in_one_batch_start_branches(database: Database) -> None:
    setup = await scoped(database, "replies", ["one"], ["left"], ["right"])
    await say(setup, asked("a", 702))
    answer = sent(setup, "one")
    batch = [asked("l", 703, to=answer), asked("r", 704, BOB, to=answer)]
    async with setup.router.route_events(batch) as routed:
        await setup.inbox.receive(routed, {})
    assert [one.address.history for one in routed] == ["replies=702", "replies=704"]
    async with setup.router.route_events(batch) as again:  # delivered again
        assert [one.address.history for one in again] == ["replies=702", "replies=704"]


async def test_edits_and_deletions_also_apply_to_copies_in_branches(database: Database) -> None:
    setup = await scoped(database, "replies", ["one"], ["left"], ["right"])
    await say(setup, asked("a", 702))
    answer = sent(setup, "one")
    await say(setup, asked("l", 703, to=answer), asked("r", 704, to=answer))
    edit = asked("A", 702)
    await say(setup, MessageEdit("5:702:e1", edit, edit.at))
    assert await texts(database, f"{CHAT}#replies=702") == ["A", "one", "l", "left"]
    assert await texts(database, f"{CHAT}#replies=704") == ["A", "one", "r", "right"]
    assert len(setup.backend.prompts) == 3
    await say(setup, MessageDeletion(edit.address, "d1", ("702", answer), edit.at, edit.scopes))
    assert await texts(database, f"{CHAT}#replies=702") == ["l", "left"]
    assert await texts(database, f"{CHAT}#replies=704") == ["r", "right"]


async def test_export_lists_branched_messages_once_and_forget_includes_branches(
    database: Database,
) -> None:
    setup = await scoped(database, "replies", ["one"], ["left"], ["right"])
    await say(setup, asked("a", 702))
    answer = sent(setup, "one")
    await say(setup, asked("l", 703, BOB, to=answer), asked("r", 704, BOB, to=answer))
    data = PersonalData(database, SystemClock())
    assert [one["text"] for one in (await data.export(ALICE.id))["messages"]] == ["a"]
    await say(setup, asked("/forget", 705, to="702"))
    assert await texts(database, f"{CHAT}#replies=702") == ["one", "l", "left"]
    assert await texts(database, f"{CHAT}#replies=704") == ["one", "r", "right"]


@pytest.mark.parametrize("scope", ["shared", "thread"])
async def test_everybody_in_a_topic_shares_its_history(database: Database, scope: str) -> None:
    setup = await scoped(database, scope, ["one"], ["two"])
    topic = [
        make_incoming(text, key=f"5:{number}", thread="7", author=author, wake=WakeReason.MENTION)
        for number, (text, author) in enumerate([("a", ALICE), ("b", BOB)], 702)
    ]
    await say(setup, *topic)
    assert prompt(setup) == ["Alice:a", "nora:one", "Bob:b"]
    assert await texts(database, f"{CHAT}:7") == ["a", "one", "b", "two"]


async def test_settings_why_shows_the_scope_and_messages_of_all_people(database: Database) -> None:
    setup = await scoped(database, "user", ["one"], ["two"])
    await say(setup, asked("a", 702), asked("b", 703, BOB), asked("/settings why", 704))
    scope, first, second = setup.texts[-1].splitlines()
    assert scope == "Scope: user – each person has a separate conversation"
    assert first.startswith("Alice: “a” – answered")
    assert second.startswith("Bob: “b” – answered")


async def test_preset_sets_the_history_scope_unless_an_admin_did(database: Database) -> None:
    setup = Setup(database, ["one"], ["two"], preset={"scope": "user"})
    await say(setup, asked("a", 701), asked("b", 702, BOB))
    assert prompt(setup) == ["b"]
    await say(setup, asked("/settings scope shared", 703), asked("c", 704))
    assert prompt(setup) == ["c"]


async def test_command_form_uses_the_history_of_its_message(database: Database) -> None:
    setup = await scoped(database, "user", ["one"], ["two"])
    await say(setup, asked("a", 702), asked("b", 703, BOB))
    command = await setup.router.assign_command_to_history(asked("/retry", 704, to="703"))
    assert command.address.conversation == OF_BOB
    found, _ = await setup.buttons.find_quoted_exchange(command)
    assert found.turn.text == "b"

"""Test messages that get no answer: observed and late ones, and those before the bot joined."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from bot.chat.incoming import (
    IncomingMessage,
    MessageDeletion,
    MessageEdit,
    Quote,
    ThreadTitle,
    WakeReason,
)
from bot.errors import PlatformError, Refused, Unreachable
from bot.storage.database import Database
from bot.storage.retention import delete_expired_turns
from tests.fakes import FakeClock
from tests.samples import BOB, make_incoming
from tests.turn.setup import Setup

QUESTION = make_incoming("well?", key="5:9", wake=WakeReason.MENTION)


class Channel:
    """The messages in a channel before the bot joined; counts how often they are read."""

    def __init__(self, *texts: str, error: PlatformError | None = None) -> None:
        self.reads = 0
        self._error = error
        self._said = [
            make_incoming(text, key=f"5:{number}", author=BOB, wake=None)
            for number, text in enumerate(texts, 1)
        ]

    async def read_before(self, _said: IncomingMessage, limit: int) -> Sequence[IncomingMessage]:
        self.reads += 1
        if self._error is not None:
            raise self._error
        return self._said[-limit:]


# --- late messages -----------------------------------------------------------------------------


@pytest.mark.parametrize("wake", [*WakeReason, None])
async def test_late_message_is_not_answered_but_is_in_later_prompts(
    database: Database, wake: WakeReason | None
) -> None:
    setup = Setup(database, ["Late, sorry."])
    await setup.say(replace(make_incoming("how late is it?", wake=wake), is_late=True))
    assert (setup.texts, setup.backend.prompts) == ([], [])
    assert await setup.history() == [("user", "how late is it?")]
    await setup.say(replace(QUESTION, wake=WakeReason.DM))
    prompt = "".join(message.content for message in setup.backend.prompts[0].messages)
    assert "how late is it?" in prompt


async def test_late_command_is_not_run(database: Database) -> None:
    setup = Setup(database, ["Hi."])
    await setup.say("hello", replace(make_incoming("/new", key="5:7"), is_late=True))
    assert (await setup.session()).number == 1
    assert setup.texts == ["Hi."]


async def test_late_forget_command_is_run(database: Database) -> None:
    setup = Setup(database, ["Hi."])
    late = make_incoming("/forget", key="5:7", admin=True)
    await setup.say("hello", replace(late, is_late=True))
    assert await setup.history() == []


async def test_late_edit_changes_only_the_history(database: Database) -> None:
    setup = Setup(database, ["Hi."], ["Ho."])
    await setup.say("hello")
    edited = replace(make_incoming("good morning"), is_late=True)
    await setup.inbox.receive([MessageEdit("5:1:e1", edited, edited.at)], {})
    await setup.work()
    assert await setup.history() == [("user", "good morning"), ("assistant", "Hi.")]
    assert setup.texts == ["Hi."]


# --- a new channel -----------------------------------------------------------------------------


async def test_earlier_messages_of_a_new_channel_are_read_once(database: Database) -> None:
    channel = Channel(*(f"line {number}" for number in range(60)))
    setup = Setup(database, ["Hm.", "Ho."], read_before=channel.read_before)
    await setup.say(QUESTION, make_incoming("more", key="5:10", wake=WakeReason.MENTION))
    first, second = setup.backend.prompts
    newest = first.messages[-1].content
    assert "line 9\n" not in newest
    assert "> Bob:line 10\n" in newest
    assert "> Bob:line 59\n\nAlice:well?" in newest
    assert second.messages[0].content == "Bob:line 10"
    assert channel.reads == 1
    assert len(await setup.history()) == 54


@pytest.mark.parametrize(
    "commands",
    [["/preset use nova"], ["/preset use nova", "/preset use tester"], ["/preset reset"]],
    ids=" then ".join,
)
async def test_earlier_messages_are_read_at_the_first_question_even_after_commands(
    database: Database, commands: list[str]
) -> None:
    channel = Channel("old news")
    tester = {"name": "tester", "greeting": "tester says hi"}
    others: dict[str, Any] = {"others": [{"name": "nova", "greeting": "nova says hi"}]}
    setup = Setup(
        database, ["Hm.", "Ho."], preset=tester, read_before=channel.read_before, **others
    )
    for number, command in enumerate(commands):
        await setup.say(make_incoming(command, key=f"6:{number}", admin=True))
    await setup.say(QUESTION)
    [prompt] = setup.backend.prompts
    assert "> Bob:old news" in str(prompt.messages)
    assert str(prompt.messages).count("says hi") == 1
    await setup.say(make_incoming("/preset use nova", key="6:8", admin=True))
    await setup.say(make_incoming("more", key="6:9", wake=WakeReason.MENTION))
    assert "old news" not in str(setup.backend.prompts[-1].messages)


async def test_channel_with_only_observed_messages_counts_as_new(database: Database) -> None:
    channel = Channel("before", "heard")
    setup = Setup(database, [Unreachable("away")], ["Ho."], read_before=channel.read_before)
    known = replace(make_incoming("heard", key="5:2", author=BOB, wake=None), message_id="2")
    await setup.say(known, QUESTION, make_incoming("more", key="5:10", wake=WakeReason.MENTION))
    newest = setup.backend.prompts[-1].messages
    assert str(newest).count("Bob:before") == 1
    assert str(newest).count("Bob:heard") == 1


async def test_thread_starts_with_the_message_it_was_opened_from(database: Database) -> None:
    start = replace(make_incoming("my fern is dying", author=BOB, wake=None), message_id="5")
    asked: list[str | None] = []

    async def read_thread_starter(message: IncomingMessage) -> IncomingMessage:
        asked.append(message.message_id)
        return start

    setup = Setup(database, ["Hm.", "Ho."], read_thread_starter=read_thread_starter)
    line, *questions = (
        replace(one, in_thread=True, thread_title=ThreadTitle("Ferns\n[Help]", BOB.id))
        for one in (
            make_incoming("what now?", key="5:8", author=BOB, wake=None),
            *(QUESTION, make_incoming("more", key="5:10", wake=WakeReason.MENTION)),
        )
    )
    await setup.say(line, *questions)
    first, second = (prompt.messages[-1].content for prompt in setup.backend.prompts)
    title = "[The title of this thread]\n> Ferns [Help]\n\n"
    assert first.startswith(title)
    assert "> Bob:my fern is dying\n> Bob:what now?\n\nAlice:well?" in first
    assert second == f"{title}Alice:more"
    assert asked == ["9"]
    changed = replace(line, text="my moss is dying", message_id="5", is_late=True)
    await setup.inbox.receive([MessageEdit("e1", changed, line.at)], {})
    await setup.work()
    assert ("user", "my moss is dying") in await setup.history()
    assert len(setup.backend.prompts) == 2
    await setup.inbox.receive(
        [MessageDeletion(line.address, "d1", ("5",), line.at, line.scopes)], {}
    )
    await setup.work()
    assert "is dying" not in str(await setup.history())


async def test_messages_older_than_the_retention_are_not_read_from_the_channel(
    database: Database,
) -> None:
    midnight = QUESTION.at.replace(hour=0) - timedelta(days=30)
    old, young = (
        replace(make_incoming(text, key=f"5:{key}", author=BOB, wake=None), at=at)
        for text, key, at in (
            ("a month and a second", "1", midnight - timedelta(seconds=1)),
            ("a month", "2", midnight),
        )
    )

    async def read_before(_said: IncomingMessage, _limit: int) -> Sequence[IncomingMessage]:
        return [old, young]

    clock = FakeClock(QUESTION.at.timestamp())
    setup = Setup(
        database, ["Hm."], clock=clock, read_before=read_before, settings={"history_days": 30}
    )
    await setup.say(QUESTION)
    assert "a month and a second" not in str(setup.backend.prompts)
    expected = [("user", "a month"), ("user", "well?"), ("assistant", "Hm.")]
    assert await setup.history() == expected
    assert await delete_expired_turns(database, clock, 30) == 0


@pytest.mark.parametrize(("days", "is_read"), [(None, True), (31, True), (30, False)])
async def test_expired_message_that_a_thread_was_opened_from_is_not_read(
    database: Database, days: float | None, is_read: bool
) -> None:
    async def read_thread_starter(message: IncomingMessage) -> IncomingMessage:
        start = make_incoming("my fern is dying", author=BOB, wake=None)
        return replace(start, message_id="5", at=message.at - timedelta(days=31))

    clock, settings = FakeClock(QUESTION.at.timestamp()), {"history_days": days}
    setup = Setup(
        database, ["Hm."], clock=clock, read_thread_starter=read_thread_starter, settings=settings
    )
    await setup.say(replace(QUESTION, in_thread=True))
    assert ("my fern is dying" in str(setup.backend.prompts)) == is_read
    assert (("user", "my fern is dying") in await setup.history()) == is_read


@pytest.mark.parametrize("error", [Refused("Missing Access"), Unreachable("gone")])
async def test_question_is_answered_if_earlier_messages_cannot_be_read(
    database: Database, error: PlatformError
) -> None:
    channel = Channel("old", error=error)
    setup = Setup(database, ["Hm."], read_before=channel.read_before)
    await setup.say(QUESTION)
    assert setup.texts == ["Hm."]
    assert await setup.history() == [("user", "well?"), ("assistant", "Hm.")]


async def test_pasted_token_in_a_new_channel_is_masked(database: Database) -> None:
    token = "sk-" + "a1B2" * 12
    channel = Channel(f"my key is {token}")
    setup = Setup(database, ["Hm."], read_before=channel.read_before)
    await setup.say(QUESTION)
    assert token not in str(setup.backend.prompts)


@pytest.mark.parametrize(
    ("preset", "wake"), [({"context": "addressed"}, WakeReason.MENTION), ({}, WakeReason.DM)]
)
async def test_earlier_messages_are_not_read_if_the_preset_observes_nothing(
    database: Database, preset: dict[str, object], wake: WakeReason
) -> None:
    channel = Channel("old")
    setup = Setup(database, ["Hm."], preset=preset, read_before=channel.read_before)
    await setup.say(replace(QUESTION, wake=wake))
    assert channel.reads == 0


async def test_forgotten_message_is_not_read_from_the_channel(database: Database) -> None:
    channel = Channel("secret", "kept")
    setup = Setup(database, ["Hm."], read_before=channel.read_before)
    secret, kept = (
        make_incoming(text, key=f"5:{number}", wake=None)
        for number, text in enumerate(("secret", "kept"), 1)
    )
    await setup.say(secret, kept)
    forget = make_incoming("/forget", key="5:3", wake=WakeReason.COMMAND)
    await setup.say(replace(forget, quote=Quote(secret.author, "1", "secret")), QUESTION)
    prompt = str(setup.backend.prompts[-1].messages)
    assert "kept" in prompt
    assert "secret" not in prompt


@pytest.mark.parametrize("command", ["/new", "/forget", "deleted"])
async def test_messages_before_the_new_command_are_not_read_from_the_channel(
    database: Database, command: str
) -> None:
    channel = Channel("old")
    setup = Setup(database, ["Hm.", "Ho."], read_before=channel.read_before)
    if command == "deleted":
        line = make_incoming("secret", key="5:1", wake=None)
        await setup.say(line)
        deleted = MessageDeletion(line.address, "d1", ("1",), line.at, line.scopes)
        await setup.inbox.receive([deleted], {})
    else:
        await setup.say(make_incoming(command, key="5:1", admin=True))
    await setup.say(QUESTION)
    assert channel.reads == 0


@pytest.mark.parametrize("command", ["/new", "/forget"])
async def test_start_of_a_thread_is_read_only_once(database: Database, command: str) -> None:
    async def read_thread_starter(message: IncomingMessage) -> IncomingMessage:
        return replace(make_incoming("my secret fern", author=BOB, wake=None), message_id="5")

    setup = Setup(database, ["Hm.", "Ho."], read_thread_starter=read_thread_starter)
    asked, put_away, again = (
        replace(one, in_thread=True)
        for one in (
            QUESTION,
            make_incoming(command, key="5:10", admin=True),
            make_incoming("and now?", key="5:11", wake=WakeReason.MENTION),
        )
    )
    await setup.say(asked, put_away, again)
    first, second = (str(prompt.messages) for prompt in setup.backend.prompts)
    assert "my secret fern" in first
    assert "my secret fern" not in second

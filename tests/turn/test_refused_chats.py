"""Where the platform lets the bot write nothing, answers cost no tokens, and operators are told."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from typing_extensions import override

from bot.chat.incoming import WakeReason
from bot.chat.outgoing import OutgoingMessage
from bot.commands.admin_notes import AdminNotes
from bot.errors import Refused
from bot.storage.chat_settings import SqlChatSettings
from bot.storage.database import Database
from bot.turn.limits.refusals import REFUSED_SECONDS
from tests.fakes import FakeBackend, FakeClock, FakeSurface, ScriptStep
from tests.samples import make_incoming
from tests.turn.busy_channel import answering, contents, end, pass_time_until
from tests.turn.setup import CHAT, Setup
from tests.turn.test_admin_notes import TelegramPrivateChats
from tests.turn.test_several_characters import NILS
from tests.waiting import advance_in_steps

FIRST_WORDS = "These are the first words of an answer. "


def make_setup(database: Database, *scripts: Sequence[ScriptStep]) -> tuple[Setup, FakeSurface]:
    """Return a worker whose platform refuses the next message, and what the operator reads."""
    clock, notes = FakeClock(), FakeSurface()
    settings = SqlChatSettings(database, clock)
    chats = {"telegram": TelegramPrivateChats()}
    admin_notes = AdminNotes(settings, {"telegram": notes}, chats, ["telegram:7"])
    backend = FakeBackend(*scripts)
    setup = Setup(database, backend=backend, clock=clock, admin_notes=admin_notes)
    setup.surface.fail_next("send", Refused("not enough rights to send text messages"))
    return setup, notes


async def test_answer_ends_when_its_first_message_is_refused(database: Database) -> None:
    go_on = asyncio.Event()
    setup, notes = make_setup(database, [FIRST_WORDS, go_on, "the rest", " of it"], ["Hello."])
    async with answering(setup, make_incoming("one", key="5:1")) as worker:
        await pass_time_until(setup, lambda: setup.surface.contents != [])
        await advance_in_steps(setup.clock, 1)
        go_on.set()
        await end(setup, worker)
    assert setup.backend.closed_early == 1
    assert setup.texts == []
    assert await setup.history() == [("user", "one")]
    [told] = notes.messages.values()
    assert "telegram:5: ⚠ This chat refuses my answers: “not enough rights" in told

    await setup.say(make_incoming("two", key="5:2"))
    assert len(setup.backend.prompts) == 1, "it costs nothing while the platform refuses messages"
    assert len(notes.messages) == 1, "the operators know"

    await setup.clock.advance(REFUSED_SECONDS)
    await setup.say(make_incoming("three", key="5:3"))
    assert setup.texts == ["Hello."]
    assert [one.split(":")[-1] for one in contents(setup)[-3:]] == ["one", "two", "three"]


async def test_answer_that_was_whole_at_once_is_refused_only_once(database: Database) -> None:
    setup, notes = make_setup(database, ["Hello."], ["Hello again."])
    await setup.say(make_incoming("one", key="5:1"))
    await setup.say(make_incoming("two", key="5:2"))
    assert len(setup.backend.prompts) == 1
    assert len(notes.messages) == 1
    await setup.clock.advance(REFUSED_SECONDS)
    await setup.say(make_incoming("three", key="5:3"))
    assert setup.texts == ["Hello again."]


async def test_who_had_blocked_the_bot_is_answered_when_they_write_again(
    database: Database,
) -> None:
    setup, _ = make_setup(database, ["Hello."], ["Hello again."])
    for key in ("5:1", "5:2"):
        await setup.say(replace(make_incoming("hello", key=key), is_private=True))
    assert setup.texts == ["Hello again."]


class ChatWithoutNils(FakeSurface):
    """Refuses what Nils says."""

    @override
    async def send(self, message: OutgoingMessage) -> str:
        if "Nils" in message.text:
            raise Refused("the bot was muted")
        return await super().send(message)


async def test_answer_that_was_shown_is_kept_when_the_next_characters_is_refused(
    database: Database,
) -> None:
    go_on = asyncio.Event()
    of_nils: list[ScriptStep] = [FIRST_WORDS, go_on, "the rest", " of it"]
    backend = FakeBackend(["I am Nora."], of_nils)
    setup = Setup(database, backend=backend, others=[NILS], surface=ChatWithoutNils())
    await setup.resolver.set_active(CHAT, [*setup.resolver.presets.values()], by="telegram:1")
    async with answering(setup, make_incoming("nora! nils!", key="5:1")) as worker:
        await pass_time_until(setup, lambda: setup.texts != [])
        await advance_in_steps(setup.clock, 1)
        go_on.set()
        await end(setup, worker)
    assert setup.backend.closed_early == 1
    assert setup.texts == ["**nora**\nI am Nora."]
    assert await setup.history() == [("user", "nora! nils!"), ("assistant", "I am Nora.")]


async def test_who_calls_a_native_command_there_is_told_that_nothing_comes(
    database: Database,
) -> None:
    setup, _ = make_setup(database, ["Hello."])
    await setup.say(make_incoming("one", key="5:1"))
    asked = make_incoming("/retry", key="5:2", wake=WakeReason.COMMAND)
    await setup.say(replace(asked, interaction="77"))
    assert len(setup.backend.prompts) == 1
    [told] = setup.texts
    assert told.startswith("⚠ This chat refuses my answers: “not enough rights")

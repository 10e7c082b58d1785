"""Test that questions during a pause get a notice, and that everything else works."""

import asyncio
from dataclasses import replace

from typing_extensions import override

from bot.chat.command import ButtonAction
from bot.chat.incoming import IncomingMessage, MessageDeletion, MessageEdit, WakeReason
from bot.chat.outgoing import OutgoingMessage
from bot.errors import Refused
from bot.storage.database import Database
from bot.storage.operation import PauseStore
from tests.fakes import FakeBackend, FakeSurface, ScriptStep
from tests.samples import make_incoming
from tests.turn.busy_channel import contents, end
from tests.turn.setup import CHAT, Setup, answering, pass_time_until, pressed
from tests.turn.test_several_characters import NILS
from tests.waiting import advance_in_steps

NOTICE = (
    "⏸ I'm paused and not answering anyone right now. I still remember what you write; please ask"
    " again later."
)


class PausedSetup(Setup):
    """A worker that an operator can pause."""

    @property
    def stored(self) -> PauseStore:
        return PauseStore(self.database, self.clock)

    async def pause(self, scope: str = "all") -> None:
        assert await self.stored.begin(scope, "anna")
        await self.pauses.refresh()

    async def resume(self, scope: str = "all") -> None:
        assert await self.stored.end(scope)
        await self.pauses.refresh()


def question(text: str, key: str, wake: WakeReason | None = WakeReason.DM) -> IncomingMessage:
    return make_incoming(text, key=key, wake=wake)


async def test_questions_during_a_pause_get_a_notice_and_are_kept_as_background(
    database: Database,
) -> None:
    setup = PausedSetup(database, backend=FakeBackend(["the answer"]))
    await setup.pause()
    await setup.say(question("my cat is called Mo", "5:1"), question("hello?", "5:2"))
    assert setup.texts == [NOTICE], "once, whatever is asked"

    await setup.resume()
    await setup.work()
    assert setup.texts == [NOTICE], "what was asked meanwhile is not answered"
    await setup.say(question("what is my cat called?", "5:3"))

    assert setup.texts == [NOTICE, "the answer"]
    assert "my cat is called Mo" in str(setup.backend.prompts)
    assert await setup.history() == [
        ("user", "my cat is called Mo"),
        ("user", "hello?"),
        ("user", "what is my cat called?"),
        ("assistant", "the answer"),
    ]


async def test_pause_notice_is_sent_again_after_ten_minutes(database: Database) -> None:
    setup = PausedSetup(database, backend=FakeBackend())
    await setup.pause()
    await setup.say(question("first", "5:1"))
    await setup.clock.advance(601)
    await setup.say(question("second", "5:2"))
    assert setup.texts == [NOTICE, NOTICE]


async def test_native_command_during_a_pause_always_gets_a_response(database: Database) -> None:
    setup = PausedSetup(database, backend=FakeBackend())
    await setup.pause()
    for number in (1, 2):
        await setup.say(replace(question("hello", f"5:{number}"), interaction=f"i{number}"))
    assert setup.texts == [NOTICE, NOTICE]


async def test_pause_does_not_interrupt_an_answer_in_progress(database: Database) -> None:
    go_on = asyncio.Event()
    backend = FakeBackend(["the", go_on, " first"])
    setup = PausedSetup(database, backend=backend, preset={"busy": "queue"})
    async with answering(setup, question("first", "5:1")) as worker:
        await setup.receive(question("second", "5:2"))
        await setup.pause()
        go_on.set()
        await worker
    assert setup.texts == ["the first", NOTICE]


async def test_only_people_who_address_a_paused_bot_get_a_notice(database: Database) -> None:
    setup = PausedSetup(database, backend=FakeBackend(["here I am"]))
    await setup.pause("telegram:6")
    await setup.say(question("here", "5:1"))
    await setup.receive(make_incoming("overheard", key="6:1", chat="6", wake=None))
    await setup.work("telegram:6")
    assert setup.texts == ["here I am"]

    await setup.receive(make_incoming("you there?", key="6:2", chat="6"))
    await setup.work("telegram:6")

    assert setup.texts == ["here I am", NOTICE]


async def test_everything_except_questions_works_during_a_pause(database: Database) -> None:
    setup = PausedSetup(database, backend=FakeBackend(["one"]))
    await setup.say(question("the question", "5:1"))
    await setup.pause()
    await setup.say(question("/retry", "5:2", WakeReason.COMMAND))
    assert setup.texts == ["one", NOTICE], "nothing is asked again"
    gone, kept = question("a mistake", "5:3"), question("a typo", "5:4")
    await setup.say(gone, kept)
    await setup.say(MessageDeletion(gone.address, "5:3:gone", ("3",), gone.at, gone.scopes))
    await setup.say(MessageEdit("5:4:e1", replace(kept, text="no typo"), kept.at))
    assert [text for _, text in await setup.history()] == ["the question", "one", "no typo"]
    await setup.say(question("/forget me", "5:5", WakeReason.COMMAND))
    await setup.say(pressed(ButtonAction.FORGET, "telegram:5:5/0"))
    assert await setup.history() == []
    await setup.say(question("waits", "5:6"), question("/forget", "5:7", WakeReason.COMMAND))
    assert setup.texts[-1].startswith("Deleted for good: 1 message")


FIRST_WORDS = "These are the first words of an answer. "


async def test_generation_stops_if_the_platform_refuses_the_first_message(
    database: Database,
) -> None:
    go_on = asyncio.Event()
    backend = FakeBackend([FIRST_WORDS, go_on, "the rest", " of it"], ["Hello."])
    setup = Setup(database, backend=backend)
    setup.surface.fail_next("send", Refused("not enough rights to send text messages"))
    async with answering(setup, make_incoming("one", key="5:1")) as worker:
        await pass_time_until(setup, lambda: setup.surface.contents != [])
        await advance_in_steps(setup.clock, 1)
        go_on.set()
        await end(setup, worker)
    assert setup.backend.closed_early == 1
    assert setup.texts == []
    assert await setup.history() == [("user", "one")]
    await setup.say(make_incoming("two", key="5:2"))
    assert setup.texts == ["Hello."]
    assert [one.split(":")[-1] for one in contents(setup)[-2:]] == ["one", "two"]


class ChatWithoutNils(FakeSurface):
    """A surface that refuses messages from the character Nils."""

    @override
    async def send(self, message: OutgoingMessage) -> str:
        if "Nils" in message.content.text:
            raise Refused("the bot was muted")
        return await super().send(message)


async def test_first_answer_stays_if_the_platform_refuses_the_second(database: Database) -> None:
    go_on = asyncio.Event()
    of_nils: list[ScriptStep] = [FIRST_WORDS, go_on, "the rest", " of it"]
    backend = FakeBackend(["I am Nora."], of_nils)
    setup = Setup(database, backend=backend, others=[NILS], surface=ChatWithoutNils())
    await setup.resolver.set_active_presets(
        CHAT, [*setup.resolver.presets.values()], author="telegram:1"
    )
    async with answering(setup, make_incoming("nora! nils!", key="5:1")) as worker:
        await pass_time_until(setup, lambda: setup.texts != [])
        await advance_in_steps(setup.clock, 1)
        go_on.set()
        await end(setup, worker)
    assert setup.backend.closed_early == 1
    assert setup.texts == ["**nora**\nI am Nora."]
    assert await setup.history() == [("user", "nora! nils!"), ("assistant", "I am Nora.")]

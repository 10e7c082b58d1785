"""Test pauses: questions get a notice and become background; all else works as always."""

import asyncio
from dataclasses import replace

from bot.chat.command import ButtonAction
from bot.chat.incoming import Deleted, Edited, Said, WakeReason
from bot.storage.database import Database
from bot.storage.operation import Pauses
from tests.fakes import FakeBackend
from tests.samples import make_incoming
from tests.turn.setup import CHAT, Setup, pressed, running_worker
from tests.waiting import wait_until

NOTICE = (
    "⏸ I am paused and answer nobody at the moment. I remember what you write; please ask again"
    " later."
)


class PausedSetup(Setup):
    """A worker whose operator pauses it."""

    @property
    def stored(self) -> Pauses:
        return Pauses(self.database, self.clock)

    async def pause(self, scope: str = "all") -> None:
        assert await self.stored.begin(scope, "anna")
        await self.pauses.refresh()

    async def resume(self, scope: str = "all") -> None:
        assert await self.stored.end(scope)
        await self.pauses.refresh()


def question(text: str, key: str, wake: WakeReason | None = WakeReason.DM) -> Said:
    return make_incoming(text, key=key, wake=wake)


async def test_questions_get_a_notice_and_are_background_of_later_ones(database: Database) -> None:
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


async def test_notice_is_sent_again_ten_minutes_later(database: Database) -> None:
    setup = PausedSetup(database, backend=FakeBackend())
    await setup.pause()
    await setup.say(question("first", "5:1"))
    await setup.clock.advance(601)
    await setup.say(question("second", "5:2"))
    assert setup.texts == [NOTICE, NOTICE]


async def test_native_command_gets_a_response_each_time(database: Database) -> None:
    setup = PausedSetup(database, backend=FakeBackend())
    await setup.pause()
    for number in (1, 2):
        await setup.say(replace(question("hello", f"5:{number}"), interaction=f"i{number}"))
    assert setup.texts == [NOTICE, NOTICE]


async def test_answer_in_progress_is_finished(database: Database) -> None:
    go_on = asyncio.Event()
    backend = FakeBackend(["the", go_on, " first"])
    setup = PausedSetup(database, backend=backend, preset={"busy": "queue"})
    await setup.receive(question("first", "5:1"))
    async with running_worker(setup) as worker:
        await wait_until(lambda: len(setup.backend.prompts) == 1)
        await setup.receive(question("second", "5:2"))
        await setup.pause()
        go_on.set()
        await worker
    assert setup.texts == ["the first", NOTICE]


async def test_only_who_addresses_the_bot_is_told_and_only_where_it_is_paused(
    database: Database,
) -> None:
    setup = PausedSetup(database, backend=FakeBackend(["here I am"]))
    await setup.pause("telegram:6")
    await setup.say(question("here", "5:1"))
    await setup.receive(make_incoming("overheard", key="6:1", chat="6", wake=None))
    await setup.work("telegram:6")
    assert setup.texts == ["here I am"]

    await setup.receive(make_incoming("you there?", key="6:2", chat="6"))
    await setup.work("telegram:6")

    assert setup.texts == ["here I am", NOTICE]


async def test_notice_is_in_the_language_of_who_asks(database: Database) -> None:
    setup = PausedSetup(database, backend=FakeBackend())
    await setup.pause()
    await setup.say(replace(question("你好", "5:1"), locale="zh-hans"))
    [shown] = setup.texts
    assert shown.startswith("⏸ 我")


async def test_commands_work_during_a_pause(database: Database) -> None:
    setup = PausedSetup(database, backend=FakeBackend(["one"]))
    await setup.say(question("the first", "5:1"))
    await setup.pause()
    await setup.say(question("waits", "5:2"), question("/forget", "5:3", WakeReason.COMMAND))
    assert setup.texts[-1].startswith("Deleted for good: 3 messages")
    assert await setup.history() == []


async def test_buttons_work_during_a_pause(database: Database) -> None:
    setup = PausedSetup(database, backend=FakeBackend(["one"]))
    await setup.say(question("mine", "5:1"))
    await setup.pause()
    await setup.say(question("/forget me", "5:2", WakeReason.COMMAND))
    await setup.say(pressed(ButtonAction.FORGET, "telegram:5:2/0"))
    assert await setup.history() == []


async def test_deletions_and_edits_change_the_history_during_a_pause(database: Database) -> None:
    setup = PausedSetup(database, backend=FakeBackend(["one"]))
    await setup.say(question("the question", "5:1"))
    await setup.pause()
    gone, kept = question("a mistake", "5:2"), question("a typo", "5:3")
    await setup.say(gone, kept)
    await setup.say(Deleted(gone.address, "5:2:gone", ("2",), gone.at, gone.scopes))
    await setup.say(Edited("5:3:e1", replace(kept, text="no typo"), kept.at))
    assert await setup.history() == [
        ("user", "the question"),
        ("assistant", "one"),
        ("user", "no typo"),
    ]


async def test_question_is_not_asked_again_during_a_pause(database: Database) -> None:
    setup = PausedSetup(database, backend=FakeBackend(["one"]))
    await setup.say(question("the question", "5:1"))
    await setup.pause()
    await setup.say(question("/retry", "5:2", WakeReason.COMMAND))
    assert setup.texts == ["one", NOTICE]
    assert await setup.history() == [("user", "the question"), ("assistant", "one")]


async def test_other_process_obeys_once_it_has_read_the_row(database: Database) -> None:
    first = PausedSetup(database, backend=FakeBackend())
    other = PausedSetup(database, backend=FakeBackend(), owner="other", surface=first.surface)
    await first.pause()
    await other.pauses.refresh()
    assert other.pauses.covers(CHAT)
    await other.say(question("hello", "5:1"))
    assert first.texts == [NOTICE]

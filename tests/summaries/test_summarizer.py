"""What is too old for a history is summed up behind the scenes, and only from what still stands."""

import asyncio
from datetime import UTC, datetime

import pytest
from sqlalchemy import delete, select, update
from typing_extensions import override

from bot.chat.session import Turn, TurnResult
from bot.errors import BackendUnavailable
from bot.ports import ConversationMemory
from bot.prompting.presets.preset import Preset
from bot.runtime.clock import SystemClock
from bot.storage.sql.conversations import SqlConversations
from bot.storage.sql.database import Database
from bot.storage.sql.inbox import SqlInbox
from bot.storage.sql.summaries import SqlSummaries
from bot.storage.sql.tables import summary, turn
from bot.summaries.summarizer import Summarizer
from tests.fakes import FakeBackend, ScriptStep
from tests.samples import ALICE, make_incoming
from tests.waiting import wait_until

ROOM = "telegram:5"
AT = datetime(2026, 11, 21, tzinfo=UTC)
NORA = Preset.model_validate({"name": "nora", "provider": "p", "model": "m", "summary": {}})


class Keeping(FakeBackend, ConversationMemory):
    """A model that keeps what it has read until it is told to forget."""

    def __init__(self, *scripts: list[ScriptStep]) -> None:
        super().__init__(*scripts)
        self.forgotten: list[str] = []

    @override
    async def end_session(self, conversation: str) -> None:
        pass

    @override
    async def forget(self, conversation: str) -> None:
        self.forgotten.append(conversation)


class Archive:
    """A conversation, and what sums it up."""

    def __init__(
        self, database: Database, *scripts: list[ScriptStep], backend: FakeBackend | None = None
    ) -> None:
        self.database = database
        self.backend = backend or FakeBackend(*scripts)
        self.summaries = SqlSummaries(database)
        self.summarizer = Summarizer(self.summaries, {"p": self.backend, "cheap": self.backend})
        self._conversations = SqlConversations(database, SystemClock())
        self._inbox = SqlInbox(database, SystemClock())
        self._heard = 0

    async def say(self, *texts: str, new_session: bool = False) -> None:
        self._heard += 1
        await self._inbox.receive([make_incoming(key=f"5:{self._heard}")], {})
        claim = await self._conversations.claim(ROOM, "me", 60)
        assert claim is not None
        heard = await self._conversations.next_message(claim)
        assert heard is not None
        said = [
            Turn("assistant", text, None, AT) if n % 2 else Turn("user", text, ALICE, AT)
            for n, text in enumerate(texts)
        ]
        await self._conversations.finish(
            claim, heard, TurnResult(turns=said, new_session=new_session)
        )

    async def forget(self) -> None:
        claim = await self._conversations.claim(ROOM, "me", 60)
        assert claim is not None
        await self._conversations.forget(claim)

    async def shown(self) -> str | None:
        part = await self.summarizer.part(NORA, ROOM)
        return part.text if part else None

    @property
    def asked(self) -> list[str]:
        return [prompt.messages[-1].content for prompt in self.backend.prompts]


LINES = [f"line {n}" for n in range(10)]


async def test_what_was_left_out_is_summed_up_with_its_speakers(database: Database) -> None:
    archive = Archive(database, ["They count."])
    await archive.say(*LINES)
    await archive.summarizer.sum_up(NORA, ROOM, kept=4)
    assert await archive.shown() == "What was said before, in short:\nThey count."
    assert archive.asked == [
        "Conversation:\nAlice: line 0\nyou: line 1\nAlice: line 2\nyou: line 3\nAlice: line 4\n"
        "you: line 5"
    ]


async def test_the_next_summary_rests_on_the_last_one(database: Database) -> None:
    archive = Archive(database, ["They count."], ["They count on."])
    await archive.say(*LINES)
    await archive.summarizer.sum_up(NORA, ROOM, kept=4)
    await archive.say(*(f"more {n}" for n in range(6)))
    await archive.summarizer.sum_up(NORA, ROOM, kept=4)
    assert archive.asked[1].startswith(
        "Earlier summary:\nThey count.\n\nConversation:\nAlice: line 6\n"
    )
    assert "line 5" not in archive.asked[1]
    assert (await archive.shown() or "").endswith("They count on.")


async def test_a_few_new_turns_are_not_worth_another_summary(database: Database) -> None:
    archive = Archive(database, ["They count."])
    await archive.say(*LINES)
    await archive.summarizer.sum_up(NORA, ROOM, kept=4)
    await archive.summarizer.sum_up(NORA, ROOM, kept=0)
    assert len(archive.asked) == 1


@pytest.mark.parametrize("change", ["edited", "forgotten"])
async def test_a_summary_whose_sources_changed_is_not_shown_and_made_anew(
    database: Database, change: str
) -> None:
    archive = Archive(database, ["A secret."], ["Nothing."])
    await archive.say(*LINES)
    await archive.summarizer.sum_up(NORA, ROOM, kept=2)
    first = {
        "edited": update(turn).where(turn.c.id == 1).values(text="no line"),
        "forgotten": delete(turn).where(turn.c.id == 1),
    }[change]
    await database.write(lambda c: c.execute(first).rowcount)
    assert await archive.shown() is None
    await archive.summarizer.sum_up(NORA, ROOM, kept=2)
    assert "Earlier summary" not in archive.asked[1]
    assert "line 0" not in archive.asked[1]
    assert (await archive.shown() or "").endswith("Nothing.")


async def test_an_edit_of_the_same_length_is_found_when_the_next_summary_is_due(
    database: Database,
) -> None:
    archive = Archive(database, ["A secret."], ["Nothing."])
    await archive.say(*LINES)
    await archive.summarizer.sum_up(NORA, ROOM, kept=2)
    edit = update(turn).where(turn.c.id == 1).values(text="lime 0")
    await database.write(lambda c: c.execute(edit).rowcount)
    await archive.summarizer.sum_up(NORA, ROOM, kept=2)
    assert "Alice: lime 0" in archive.asked[1]
    assert (await archive.shown() or "").endswith("Nothing.")


async def test_what_is_forgotten_while_it_is_summed_up_does_not_come_back(
    database: Database,
) -> None:
    go_on = asyncio.Event()
    archive = Archive(database, [go_on, "A secret."])
    await archive.say(*LINES)
    summing = asyncio.create_task(archive.summarizer.sum_up(NORA, ROOM, kept=2))
    await wait_until(lambda: len(archive.backend.prompts) == 1)
    await archive.forget()
    go_on.set()
    await summing
    left = await database.read(lambda c: c.execute(select(summary.c.text)).scalars().all())
    assert left == []


async def test_forgetting_takes_the_summary_along(database: Database) -> None:
    archive = Archive(database, ["A secret."])
    await archive.say(*LINES)
    await archive.summarizer.sum_up(NORA, ROOM, kept=2)
    await archive.forget()
    left = await database.read(lambda c: c.execute(select(summary.c.text)).scalars().all())
    assert left == []


async def test_a_new_session_begins_without_a_summary(database: Database) -> None:
    archive = Archive(database, ["They count."])
    await archive.say(*LINES)
    await archive.summarizer.sum_up(NORA, ROOM, kept=2)
    await archive.say(new_session=True)
    assert await archive.shown() is None


async def test_a_long_past_is_read_in_portions(database: Database) -> None:
    archive = Archive(database, ["one"], ["two"])
    await archive.say(*(f"{'word ' * 30}{n}" for n in range(12)))
    small = NORA.model_copy(update={"max_input_tokens": 500})
    await archive.summarizer.sum_up(small, ROOM, kept=0)
    assert len(archive.asked) == 2
    assert "Earlier summary:\none\n" in archive.asked[1]


async def test_another_model_may_do_it(database: Database) -> None:
    archive = Archive(database, ["They count."])
    await archive.say(*LINES)
    cheap = {"provider": "cheap", "model": "tiny", "max_output_tokens": 60}
    other = Preset.model_validate({**NORA.model_dump(), "summary": cheap})
    await archive.summarizer.sum_up(other, ROOM, kept=0)
    assert [(one.model, one.max_output_tokens) for one in archive.backend.prompts] == [("tiny", 60)]


async def test_presets_without_the_key_are_never_summed_up(database: Database) -> None:
    archive = Archive(database, ["They count."])
    await archive.say(*LINES)
    plain = NORA.model_copy(update={"summary": None})
    archive.summarizer.want(plain, ROOM, kept=0)
    assert await archive.summarizer.part(plain, ROOM) is None


async def test_it_goes_on_in_the_background_after_a_model_failed(database: Database) -> None:
    archive = Archive(database, [BackendUnavailable("away")], ["They count."])
    await archive.say(*LINES)
    running = asyncio.create_task(archive.summarizer.run())
    archive.summarizer.want(NORA, ROOM, kept=0)
    await wait_until(lambda: len(archive.backend.prompts) == 1)
    archive.summarizer.want(NORA, ROOM, kept=0)
    await wait_until(lambda: len(archive.backend.prompts) == 2)
    while await archive.shown() is None:  # noqa: ASYNC110 # a database has no events
        await asyncio.sleep(0.01)
    running.cancel()
    await asyncio.wait([running])
    assert running.cancelled()


async def test_a_model_keeps_nothing_of_what_it_failed_to_sum_up(database: Database) -> None:
    backend = Keeping([BackendUnavailable("away")])
    archive = Archive(database, backend=backend)
    await archive.say(*LINES)
    with pytest.raises(BackendUnavailable):
        await archive.summarizer.sum_up(NORA, ROOM, kept=2)
    assert backend.forgotten == [f"{ROOM}:summary"]

"""Test when a model is asked for memories, what it reads, and which notes are kept."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from typing_extensions import override

from bot.chat.incoming import IncomingMessage
from bot.chat.memory import (
    MEMORY_APPROVAL_KEY,
    Memory,
    MemoryReader,
    MemoryState,
    RecallCandidates,
    RecallingCharacter,
)
from bot.chat.prompt import Prompt
from bot.chat.session import CONSENT_KEY, Consent, HistoryChange, TurnResult
from bot.errors import BackendUnavailable, BudgetUsedUp
from bot.memory.extractor import MemoryExtractor
from bot.memory.recall import MemoryRecaller
from bot.memory.summaries import Summarizer, SummaryRequest
from bot.prompting.embedding import DEFAULT_EMBEDDER, cosine_similarities
from bot.prompting.presets.preset import Preset
from bot.routing.presets import PresetResolver
from bot.storage.chat_settings import SqlChatSettings
from bot.storage.conversations import Conversations
from bot.storage.database import Database
from bot.storage.extractions import SqlExtractions
from bot.storage.inbox import SqlInbox
from bot.storage.memories import SqlMemories
from bot.storage.summaries import SqlSummaries
from tests.fakes import FakeBackend, FakeClock, ScriptStep
from tests.memory.extraction_setup import GROUP, Line, person, to_turn
from tests.memory.test_extraction import LIES, NOTE
from tests.samples import begin, make_incoming
from tests.waiting import wait_until

CHAT = "telegram:5"
NORA = Preset.model_validate(
    {"name": "nora", "role_name": "Nora", "provider": "p", "model": "m", "memory": True}
)
MARLOWE = NORA.model_copy(update={"name": "marlowe", "role_name": "Marlowe"})
PRESETS = {one.name: one for one in (NORA, MARLOWE)}
MOVED = ("Mara", "we moved to Porto in May")


def notes(*changes: dict[str, Any]) -> list[ScriptStep]:
    return [json.dumps([{**NOTE, "ends": "", **one} for one in changes])]


class Spending:
    """A budget that may be used up."""

    def __init__(self) -> None:
        self.is_used_up = False
        self.payers: list[str] = []

    @contextlib.asynccontextmanager
    async def paid(
        self, _preset: Preset, message: IncomingMessage, prompt: Prompt, _tokens: int
    ) -> AsyncIterator[SummaryRequest]:
        if self.is_used_up:
            raise BudgetUsedUp("used up")
        self.payers.append(message.author.id)
        yield SummaryRequest(prompt)


class SampleBackend(FakeBackend):
    @override
    def is_sample_model(self, model: str) -> bool:
        return True


class Setup:
    """A group with two characters, and a process with a memory extractor."""

    def __init__(self, database: Database, backend: FakeBackend) -> None:
        self.clock = FakeClock()
        self.backend = backend
        self.spending = Spending()
        self.memories = SqlMemories(database, self.clock)
        self.settings = SqlChatSettings(database, self.clock)
        self._database = database
        self._conversations = Conversations(database, self.clock)
        self._inbox = SqlInbox(database, self.clock)
        self._received = 0
        self._running: asyncio.Task[None] | None = None
        self.extractor = self._extractor()

    def _extractor(self) -> MemoryExtractor:
        resolver = PresetResolver(PRESETS, "nora", self.settings)
        summaries, pay = SqlSummaries(self._database), self.spending.paid
        summarizer = Summarizer(
            summaries, {"p": self.backend}, pay, resolver.remove_opted_out_turns
        )
        return MemoryExtractor(
            MemoryRecaller(self.memories, 0.1, DEFAULT_EMBEDDER, cosine_similarities),
            SqlExtractions(self._database),
            summarizer,
            self.settings,
            self.clock,
            resolver.find_consent,
            resolver.character_names,
        )

    async def start(self) -> None:
        """Start or restart the process."""
        await self.end()
        self.extractor = self._extractor()
        self._running = asyncio.create_task(self.extractor.run())

    async def end(self) -> None:
        if self._running is not None:
            self._running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._running

    async def exchange(
        self, *lines: Line, presets: Sequence[Preset] = (NORA, MARLOWE), answer: str = "I see."
    ) -> None:
        """Store messages from people, and an answer to the last one."""
        await self.clock.advance(1)
        at = datetime.fromtimestamp(self.clock.now(), UTC)
        turns = [replace(to_turn(one), at=at) for one in (*lines, ("Nora", answer))]
        await self.finish(TurnResult(turns=turns))
        name, text = lines[-1]
        said = replace(make_incoming(text, author=person(name)), at=at)
        self.extractor.record_answer(said, presets)

    async def observe(self, line: Line) -> None:
        at = datetime.fromtimestamp(self.clock.now(), UTC)
        await self.finish(TurnResult(turns=[replace(to_turn(line), at=at, is_observed=True)]))

    async def finish(self, result: TurnResult) -> None:
        self._received += 1
        await self._inbox.receive([make_incoming(key=f"5:{self._received}")], {})
        await self._conversations.finish(*await begin(self._conversations), result)

    async def exchanges(self, count: int, first: Line = MOVED) -> None:
        await self.exchange(first)
        for number in range(1, count):
            await self.exchange(("Tobi", f"small talk {number}"))

    async def edit(self, text: str, new: str) -> None:
        turns = (await SqlSummaries(self._database).load_whole_session(CHAT)).turns
        [found] = [one.id for one in turns if one.turn.text == text]
        await self.finish(TurnResult(change=HistoryChange({found: new})))

    async def consent(self, name: str, consent: Consent) -> None:
        await self.settings.set(person(name).id, CONSENT_KEY, consent, person(name).id)

    async def asked(self, count: int) -> None:
        await wait_until(lambda: len(self.backend.prompts) >= count)
        assert len(self.backend.prompts) == count

    async def idle(self) -> None:
        """Wait until no extraction is due or running."""
        await wait_until(lambda: self.extractor.is_idle)

    async def stored_memories(self, name: str = "Mara") -> list[Memory]:
        await self.idle()
        found = await self.memories.list_visible(MemoryReader(person(name).id, GROUP))
        return sorted((one for one in found), key=lambda one: one.id)

    def read(self, call: int = -1) -> list[str]:
        """Return the lines that the model read."""
        return [
            line.partition(" ")[2]
            for line in self.backend.prompts[call].messages[-1].content.splitlines()
            if line.startswith("[")
        ]


@contextlib.asynccontextmanager
async def running(database: Database, *scripts: list[ScriptStep]) -> AsyncIterator[Setup]:
    setup = Setup(database, FakeBackend(*scripts or ([["[]"]])))
    await setup.start()
    try:
        yield setup
    finally:
        await setup.end()


async def test_extracted_memory_is_recalled_for_everybody_in_the_chat(database: Database) -> None:
    mara, tobi = (RecallingCharacter(GROUP, "nora", person(one).id) for one in ("Mara", "Tobi"))
    async with running(database, notes({})) as setup:
        for one in (mara, tobi):
            assert await setup.memories.recall(one) == RecallCandidates()
        await setup.exchanges(6)
        [kept] = await setup.stored_memories()
        for one in (mara, tobi):
            assert [one.id for one in (await setup.memories.recall(one)).memories] == [kept.id]


async def test_six_exchanges_are_extracted_with_one_call(database: Database) -> None:
    async with running(database, notes({})) as setup:
        await setup.exchanges(5)
        await setup.idle()
        assert setup.backend.prompts == []
        await setup.exchange(("Tobi", "and now?"))
        await setup.asked(1)
        [one] = await setup.stored_memories()
        assert (one.text, one.said_by, one.witnesses) == (
            "Mara moved to Porto in May",
            person("Mara").id,
            ("nora", "marlowe"),
        )
        assert one.vector
        assert setup.spending.payers == [person("Tobi").id]
        assert setup.read()[:3] == [
            "Mara: we moved to Porto in May",
            "Nora: I see.",
            "Tobi: small talk 1",
        ]
        assert [one.role for one in setup.backend.prompts[0].messages] == ["system", "user"]

        await setup.exchanges(5, ("Tobi", "more"))
        await setup.idle()
        await setup.asked(1)
        await setup.exchange(("Tobi", "the twelfth"))
        await setup.asked(2)
        assert setup.read()[0] == "Tobi: more"


async def test_two_exchanges_are_extracted_after_a_quiet_period(database: Database) -> None:
    async with running(database, notes({})) as setup:
        await setup.exchanges(1)
        await setup.clock.advance(700)
        await setup.idle()
        await setup.asked(0)  # one is not worth it
        await setup.exchange(("Tobi", "really?"))
        await setup.clock.advance(500)
        await setup.idle()
        await setup.asked(0)
        await setup.clock.advance(200)
        await setup.asked(1)
        assert len(await setup.stored_memories()) == 1
        await setup.clock.advance(5000)
        await setup.asked(1)


async def test_restart_neither_repeats_nor_skips_turns(database: Database) -> None:
    async with running(database) as setup:
        await setup.exchanges(3)
        await setup.start()
        await setup.exchanges(3, ("Tobi", "go on"))
        await setup.asked(1)
        assert len(setup.read()) == 12
        await setup.idle()
        await setup.start()
        await setup.exchanges(6, ("Tobi", "next"))
        await setup.asked(2)
        assert (len(setup.read()), setup.read()[0]) == (12, "Tobi: next")


async def test_turns_of_a_killed_extraction_are_read_by_the_next_extraction(
    database: Database,
) -> None:
    never = asyncio.Event()
    async with running(database, [never], notes({})) as setup:
        await setup.exchanges(6)
        await setup.asked(1)
        await setup.start()
        await setup.exchanges(5, ("Tobi", "go on"))
        await setup.idle()
        await setup.asked(1)
        await setup.exchange(("Tobi", "the twelfth"))
        await setup.asked(2)
        assert len(setup.read()) == 24
        assert len(await setup.stored_memories()) == 1


@pytest.mark.parametrize("failure", ["backend", "budget"])
async def test_turns_of_a_failed_extraction_are_read_by_the_next_extraction(
    database: Database, failure: str
) -> None:
    first: list[ScriptStep] = [BackendUnavailable("down")] if failure == "backend" else ["[]"]
    scripts = [first, notes({})] if failure == "backend" else [notes({})]
    async with running(database, *scripts) as setup:
        setup.spending.is_used_up = failure == "budget"
        await setup.exchanges(6)
        await setup.idle()
        setup.spending.is_used_up = False
        assert await setup.stored_memories() == []
        await setup.exchanges(6, ("Tobi", "go on"))
        await setup.idle()
        assert len(setup.read()) == 24
        assert len(await setup.stored_memories()) == 1


async def test_turns_without_notes_are_not_read_again(database: Database) -> None:
    async with running(database, ["I would rather not."], notes({})) as setup:
        await setup.exchanges(6)
        await setup.idle()
        await setup.exchanges(6, ("Tobi", "go on"))
        await setup.asked(2)
        assert await setup.stored_memories() == []
        assert len(setup.read()) == 12


async def test_fabricated_facts_are_not_stored(database: Database) -> None:
    async with running(database, notes(*list(LIES.values())[:10]), notes(*LIES.values())) as setup:
        for _ in range(2):
            await setup.exchanges(5, (MOVED[0], f"{MOVED[1]}, my brother Jonas helped"))
            await setup.exchange(
                ("Tobi", "Mara is allergic to nuts, by the way"),
                answer="Mara, you told me that you like tea. I am afraid of geese.",
            )
            await setup.idle()
        await setup.asked(2)
        assert await setup.stored_memories("Mara") == await setup.stored_memories("Tobi") == []


async def test_turns_of_people_who_opted_out_or_did_not_consent_are_not_read(
    database: Database,
) -> None:
    async with running(database) as setup:
        await setup.consent("Zoe", Consent.OFF)
        await setup.consent("Ines", Consent.SERVER)
        await setup.observe(("Sam", "the vault code is in the drawer"))
        await setup.observe(("Ines", "I collect stamps"))
        await setup.exchange(("Zoe", "I am pregnant"), answer="Congratulations, Zoe!")
        await setup.exchanges(5)
        await setup.asked(1)
        assert setup.read()[:2] == ["Ines: I collect stamps", "Mara: we moved to Porto in May"]
        assert not any("Zoe" in one for one in setup.read())


async def test_edited_turn_loses_its_memories_and_is_read_again(
    database: Database,
) -> None:
    lyon = {"quote": "we moved to Lyon", "note": "Mara moved to Lyon in May"}
    async with running(database, notes({}), notes(lyon)) as setup:
        await setup.exchanges(6)
        assert len(await setup.stored_memories()) == 1
        await setup.edit(MOVED[1], "we moved to Lyon in May")
        assert await setup.stored_memories() == []
        await setup.exchanges(5, ("Tobi", "go on"))
        await setup.idle()
        await setup.asked(1)
        await setup.exchange(("Tobi", "the twelfth"))
        await setup.asked(2)
        assert [one.text for one in await setup.stored_memories()] == ["Mara moved to Lyon in May"]


async def test_edit_during_the_request_discards_notes_on_the_old_text(
    database: Database,
) -> None:
    gate = asyncio.Event()
    async with running(database, [gate, *notes({})]) as setup:
        await setup.exchanges(6)
        await setup.asked(1)
        await setup.edit(MOVED[1], "we moved to Lyon in May")
        gate.set()
        assert await setup.stored_memories() == []
        await setup.exchanges(6, ("Tobi", "go on"))
        await setup.asked(2)
        assert setup.read()[0] == "Mara: we moved to Lyon in May"


async def test_newer_fact_retires_an_older_fact_and_duplicates_are_merged(
    database: Database,
) -> None:
    lisbon = {
        "quote": "we live in Lisbon now",
        "note": "Mara lives in Lisbon",
        "ends": "Mara moved to Porto",
    }
    again = {"quote": "we moved to Porto", "note": "Mara moved to Porto in May."}
    async with running(database, notes({}), notes(again), notes(lisbon)) as setup:
        await setup.exchanges(6)
        await setup.idle()
        await setup.exchanges(6)
        assert [one.text for one in await setup.stored_memories()] == [
            "Mara moved to Porto in May."
        ]
        await setup.exchanges(6, ("Mara", "we live in Lisbon now"))
        states = {one.text: one.state for one in await setup.stored_memories()}
        assert states == {
            "Mara moved to Porto in May.": MemoryState.RETIRED,
            "Mara lives in Lisbon": MemoryState.KEPT,
        }


async def test_memory_of_a_place_waits_for_approval_if_approval_is_on(
    database: Database,
) -> None:
    about_place = {"about": "here", "note": "The group moved to Porto"}
    async with running(database, notes({}, about_place)) as setup:
        await setup.settings.set(GROUP.server, MEMORY_APPROVAL_KEY, "on", "telegram:1")
        await setup.exchanges(6)
        states = {one.subject.kind.value: one.state for one in await setup.stored_memories()}
        assert states == {"person": MemoryState.KEPT, "place": MemoryState.PROPOSED}


async def test_character_that_was_not_active_yet_is_not_a_witness(database: Database) -> None:
    tea = {
        "turn": 11,
        "quote": "I only drink tea",
        "note": "Mara only drinks tea",
        "speaker": "Mara",
    }
    async with running(database, notes({}, tea)) as setup:
        await setup.exchange(MOVED, presets=(NORA,))
        for number in range(4):
            await setup.exchange(("Tobi", f"small talk {number}"), presets=(NORA,))
        await setup.exchange(("Mara", "I only drink tea"))
        await setup.asked(1)
        present = {one.text: one.witnesses for one in await setup.stored_memories()}
        assert present == {
            "Mara moved to Porto in May": ("nora",),
            "Mara only drinks tea": ("nora", "marlowe"),
        }


async def test_character_added_later_is_not_a_witness_of_turns_read_again(
    database: Database,
) -> None:
    lyon = {"quote": "we moved to Lyon", "note": "Mara moved to Lyon in May"}
    async with running(database, notes({}), notes(lyon)) as setup:
        for line in [MOVED, *[("Tobi", "small talk")] * 5]:
            await setup.exchange(line, presets=(NORA,))
        await setup.stored_memories()
        await setup.clock.advance(700)
        await setup.edit(MOVED[1], "we moved to Lyon in May")
        await setup.exchanges(6, ("Tobi", "go on"))
        assert [one.witnesses for one in await setup.stored_memories()] == [("nora",)]


async def test_people_are_notified_once_that_memories_about_them_exist(database: Database) -> None:
    async with running(database, notes({})) as setup:
        mara, tobi = person("Mara").id, person("Tobi").id
        assert not await setup.extractor.claim_first_notice(mara)
        await setup.exchanges(6)
        await setup.stored_memories()
        await setup.start()
        assert await setup.extractor.claim_first_notice(mara)
        assert not await setup.extractor.claim_first_notice(mara)
        assert not await setup.extractor.claim_first_notice(tobi)
        await setup.exchanges(6)
        await setup.stored_memories()
        assert not await setup.extractor.claim_first_notice(mara)


async def test_no_memories_are_extracted_for_sample_models_or_presets_without_memory(
    database: Database,
) -> None:
    async with running(database) as setup:
        plain = NORA.model_copy(update={"memory": False})
        for _ in range(7):
            await setup.exchange(MOVED, presets=(plain,))
        await setup.idle()
        setup.backend = SampleBackend()
        await setup.start()
        await setup.exchanges(7)
        await setup.idle()
        await setup.asked(0)

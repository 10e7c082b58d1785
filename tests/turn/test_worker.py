"""The walk of one message, on a real database: it is answered once, whatever goes wrong."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

import pytest
from sqlalchemy import select, update
from typing_extensions import override

from bot.chat.incoming import Incoming, WakeReason
from bot.chat.outgoing import Attachment, Limits
from bot.chat.prompt import QueuePosition, ReasoningDelta
from bot.chat.session import Claim, InboxMessage, Session, TurnResult
from bot.chat.story import Story
from bot.commands.admins import AdminCheck
from bot.commands.context import ContextView
from bot.commands.handlers import CommandHandlers
from bot.commands.personas import UserPersonas
from bot.delivery.sender import Sender
from bot.errors import BackendInterrupted, BackendUnavailable, StoreError
from bot.ports import ConversationMemory
from bot.prompting.presets.preset import Preset
from bot.replying.live_replies import LiveReplies
from bot.routing.preset_resolver import PresetResolver
from bot.storage.sql.chat_settings import SqlChatSettings
from bot.storage.sql.conversations import SqlConversations
from bot.storage.sql.database import Database
from bot.storage.sql.inbox import SqlInbox
from bot.storage.sql.outbox import SqlOutbox
from bot.storage.sql.receipts import SqlReceipts
from bot.storage.sql.summaries import SqlSummaries
from bot.storage.sql.tables import conversation, inbox, turn
from bot.stories.retrieve import RetrievedStories, RetrieveStories, no_stories
from bot.summaries.summarizer import Summarizer
from bot.turn.answer import AnswerPipeline
from bot.turn.prompt_sources import PromptSources
from bot.turn.worker import ConversationWorker, TurnStages
from tests.fakes import LIMITS, FakeBackend, FakeClock, FakeSurface, run_ready_tasks
from tests.samples import BOB, format_receipt, make_incoming, mask_secret
from tests.waiting import advance_in_steps, wait_until

CHAT = "telegram:5"
WITH_PLACEHOLDER = replace(LIMITS, placeholder="…")
NORA = {"name": "nora", "provider": "p", "model": "m"}


class Histories(SqlConversations):
    """Those of the database, on a disk that may be `full`."""

    full = False

    @override
    async def finish(self, claim: Claim, message: InboxMessage, result: TurnResult) -> None:
        if self.full:
            raise StoreError("the database failed: database or disk is full")
        await super().finish(claim, message, result)


class Memory(ConversationMemory):
    """Something that keeps parts of conversations, as a backend may."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    @override
    async def end_session(self, conversation: str) -> None:
        self.calls.append(f"leave {conversation}")

    @override
    async def forget(self, conversation: str) -> None:
        self.calls.append(f"forget {conversation}")


class Stage:
    """One process's share of the walk: what is queued is sent at once, to a chat one can read."""

    def __init__(
        self,
        database: Database,
        *,
        backend: FakeBackend,
        limits: Limits = LIMITS,
        preset: Mapping[str, object] | None = None,
        owner: str = "me",
        surface: FakeSurface | None = None,
        clock: FakeClock | None = None,
        others: Sequence[dict[str, object]] = (),
        dice: Callable[[], float] = lambda: 0.99,
        retrieve_stories: RetrieveStories = no_stories,
        fallback: FakeBackend | None = None,
    ) -> None:
        self.database = database
        self.backend = backend
        self.surface = surface or FakeSurface(limits)
        self.clock = clock or FakeClock()
        self.inbox = SqlInbox(database, self.clock)
        self.conversations = Histories(database, self.clock)
        self.outbox = SqlOutbox(database, self.clock)
        one, *more = [Preset.model_validate({**NORA, **each}) for each in [preset or {}, *others]]
        chat_settings = SqlChatSettings(database, self.clock)
        personas = UserPersonas(chat_settings)
        presets = {each.name: each for each in (one, *more)}
        resolver = PresetResolver(presets, one.name, chat_settings, {one.name: 3})
        self.sender = Sender(self.outbox, {"telegram": self.surface}, self.clock, settle_seconds=0)
        self.memory = Memory()
        self.summarizer = Summarizer(SqlSummaries(database), {"p": backend})
        replies = LiveReplies(
            self.conversations,
            {"telegram": self.surface},
            self.sender.wait_until_sent,
            self.deliver,
            self.clock,
        )
        commands = CommandHandlers(
            resolver,
            AdminCheck((), self._is_platform_admin),
            ContextView(SqlReceipts(database), format_receipt, mask_secret),
            personas,
        )
        sources = PromptSources(
            self.conversations, resolver, personas, retrieve_stories, self.summarizer
        )
        backends = {"p": backend, "q": fallback or backend}
        pipeline = AnswerPipeline(sources, backends, replies, self.clock, dice)
        stages = TurnStages(resolver, commands, pipeline, replies, dice)
        self.worker = ConversationWorker(
            self.conversations, [self.memory], stages, owner, self.clock
        )

    @property
    def texts(self) -> list[str]:
        """What can be read in the chat."""
        return list(self.surface.messages.values())

    async def _is_platform_admin(self, said: Incoming) -> bool:
        return said.author != BOB

    async def deliver(self, lanes: Sequence[str] = (CHAT,)) -> None:
        for lane in lanes:
            await self.sender.work(lane)

    async def hear(self, *said: str | Incoming) -> None:
        for one in said:
            if isinstance(one, str):
                number = await self._heard_so_far() + 1
                one = make_incoming(one, key=f"5:{number}")
            await self.inbox.receive([one], {})

    async def talk(self, *said: str | Incoming) -> None:
        """Say something, and let it be answered."""
        await self.hear(*said)
        await self.worker.work(CHAT)

    async def session(self) -> Session:
        return await self.conversations.load_session(CHAT, 100)

    async def history(self) -> list[tuple[str, str]]:
        return [(turn.role, turn.text) for turn in (await self.session()).turns]

    async def unanswered(self) -> list[int]:
        """How often each unanswered message was begun."""
        crashes = select(inbox.c.crashes).where(inbox.c.state == "new").order_by(inbox.c.id)
        return list(await self.database.read(lambda c: c.execute(crashes).scalars().all()))

    async def take_over(self) -> None:
        """Somebody else claims the conversation, as if our lease had ended."""
        newer = update(conversation).values(epoch=conversation.c.epoch + 1, owner="other")
        await self.database.write(lambda c: c.execute(newer).rowcount)

    async def _heard_so_far(self) -> int:
        return len(await self.database.read(lambda c: c.execute(select(inbox.c.id)).all()))


@asynccontextmanager
async def running_worker(stage: Stage) -> AsyncIterator[asyncio.Task[None]]:
    """Walk the conversation beside the block, as a desk lets it be walked."""
    task = asyncio.create_task(stage.worker.work(CHAT))
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait([task])


# --- one message -------------------------------------------------------------------------------


async def test_a_message_is_answered_once_and_remembered(database: Database) -> None:
    stage = Stage(database, backend=FakeBackend(["Hi ", "there."]))
    await stage.talk("hello")
    await stage.worker.work(CHAT)
    assert stage.texts == ["Hi there."]
    assert await stage.history() == [("user", "hello"), ("assistant", "Hi there.")]
    assert len(stage.backend.prompts) == 1


async def test_who_somebody_says_to_be_reaches_the_model(database: Database) -> None:
    stage = Stage(database, backend=FakeBackend(["My lord."]))
    await stage.talk("/me a tall knight", "hello")
    said = stage.backend.prompts[-1].messages[-1].content
    assert said == "(Alice says of themselves: a tall knight)\n\nhello"
    assert await stage.history() == [("user", "hello"), ("assistant", "My lord.")]


async def test_the_history_says_which_version_of_whom_answered(database: Database) -> None:
    stage = Stage(database, backend=FakeBackend(["Hi."]))
    await stage.talk("hello")
    written = select(turn.c.role, turn.c.preset, turn.c.preset_version).order_by(turn.c.id)
    rows = await database.read(lambda c: c.execute(written).all())
    assert [tuple(row) for row in rows] == [("user", None, None), ("assistant", "nora", 3)]


async def test_messages_are_answered_in_order_each_with_what_came_before(
    database: Database,
) -> None:
    stage = Stage(database, backend=FakeBackend(["one"], ["two"], ["three"]))
    await stage.talk("a", "b", "c")
    assert stage.texts == ["one", "two", "three"]
    asked = [message.content for message in stage.backend.prompts[-1].messages]
    assert asked == ["a", "one", "b", "two", "c"]


async def test_a_message_that_comes_during_an_answer_is_answered_after_it(
    database: Database,
) -> None:
    go_on = asyncio.Event()
    stage = Stage(database, backend=FakeBackend([go_on, "one"], ["two"]))
    await stage.hear("a")
    async with running_worker(stage) as worker:
        await wait_until(lambda: len(stage.backend.prompts) == 1)
        await stage.hear("b")
        go_on.set()
        await worker
    assert stage.texts == ["one", "two"]


async def test_failed_turn_leaves_no_trace(database: Database) -> None:
    no_model = BackendUnavailable("refused", notice="The model is away.")
    stage = Stage(database, backend=FakeBackend([no_model], ["Hi."]))
    await stage.talk("hello")
    assert stage.texts == ["⚠ The model is away."]
    assert await stage.history() == []
    await stage.talk("hello again")
    assert [message.content for message in stage.backend.prompts[-1].messages] == ["hello again"]


async def test_fallback_answers_where_the_first_model_has_no_word(database: Database) -> None:
    away, other = FakeBackend([BackendUnavailable("refused")]), FakeBackend(["Hi."])
    preset = {"fallbacks": [{"provider": "q", "model": "small"}]}
    stage = Stage(database, backend=away, fallback=other, preset=preset)
    await stage.talk("hello")
    (_, receipt), *_ = await SqlReceipts(database).newest(CHAT)
    assert stage.texts == ["Hi."]
    assert (len(away.prompts), other.prompts[0].model) == (1, "small")
    assert (receipt.provider, receipt.prompt.model) == ("q", "small")


async def test_fallback_does_not_go_on_with_another_s_answer(database: Database) -> None:
    first = FakeBackend(["Once upon ", BackendInterrupted("reset")])
    other = FakeBackend(["Hi."])
    preset = {"fallbacks": [{"provider": "q"}]}
    stage = Stage(database, backend=first, fallback=other, preset=preset)
    await stage.talk("a story")
    assert stage.texts == ["Once upon\n\n⚠ (interrupted)"]
    assert other.prompts == []


async def test_overheard_message_is_remembered_but_not_answered(database: Database) -> None:
    stage = Stage(database, backend=FakeBackend(), preset={"context": "all"})
    await stage.talk(make_incoming("nice weather", wake=None))
    assert stage.texts == []
    assert stage.backend.prompts == []
    assert await stage.history() == [("user", "nice weather")]


async def test_what_is_not_for_us_is_neither_answered_nor_kept(database: Database) -> None:
    stage = Stage(database, backend=FakeBackend())
    await stage.talk(make_incoming("nice weather", wake=None))
    assert (stage.texts, await stage.history(), await stage.unanswered()) == ([], [], [])


async def test_a_partial_answer_is_kept_and_marked(database: Database) -> None:
    stage = Stage(database, backend=FakeBackend(["Once upon ", BackendInterrupted("reset")]))
    await stage.talk("a story")
    assert stage.texts == ["Once upon\n\n⚠ (interrupted)"]
    assert (await stage.history())[0] == ("user", "a story")


async def test_an_answer_interrupted_before_its_first_letter_is_no_answer(
    database: Database,
) -> None:
    lost = BackendInterrupted("reset", notice="The model broke off.")
    stage = Stage(database, backend=FakeBackend(["  ", lost]))
    await stage.talk("a story")
    assert stage.texts == ["⚠ The model broke off."]
    assert await stage.history() == []


async def test_what_no_database_keeps_is_taken_out_of_an_answer(database: Database) -> None:
    stage = Stage(database, backend=FakeBackend(["one\0", "\0two"]))
    await stage.talk("hello")
    assert stage.texts == ["onetwo"]


async def test_an_empty_answer_is_said_to_be_one(database: Database) -> None:
    stage = Stage(database, backend=FakeBackend(["  \n "]))
    await stage.talk("hello")
    assert stage.texts == [
        "⚠ The model gave an empty answer. Please try again or rephrase your message."
    ]
    assert await stage.history() == []


async def test_thoughts_reach_neither_the_reader_nor_the_history(database: Database) -> None:
    go_on = asyncio.Event()
    backend = FakeBackend([ReasoningDelta("They greet"), go_on, ReasoningDelta(" me."), "Hello."])
    stage = Stage(database, backend=backend)
    assert await growing(stage, go_on) == []
    assert stage.texts == ["Hello."]
    assert [call for call, _ in stage.surface.calls].count("typing") == 1
    assert await stage.history() == [("user", "hello"), ("assistant", "Hello.")]


async def test_an_answer_that_is_only_thoughts_is_said_to_be_none(database: Database) -> None:
    stage = Stage(database, backend=FakeBackend([ReasoningDelta("Hm. "), ReasoningDelta("No.")]))
    await stage.talk("hello")
    assert stage.texts == [
        "⚠ The model used up its answer for thinking and wrote nothing. Please try again or ask "
        "for less."
    ]
    assert await stage.history() == []


async def test_a_message_that_is_too_long_is_refused_in_words_and_the_model_not_asked(
    database: Database,
) -> None:
    stage = Stage(database, backend=FakeBackend(), preset={"max_input_tokens": 50})
    await stage.talk("word " * 200)
    assert "too long" in stage.texts[0]
    assert stage.backend.prompts == []
    assert await stage.history() == []


async def test_what_the_model_must_not_say_is_taken_out_of_answer_and_history(
    database: Database,
) -> None:
    stage = Stage(
        database, backend=FakeBackend(["Hi <", "eot>"]), preset={"filter_chars": ["<eot>"]}
    )
    await stage.talk("hello")
    assert stage.texts == ["Hi"]
    assert (await stage.history())[1] == ("assistant", "Hi")


async def test_a_bug_is_told_and_the_next_message_is_answered(database: Database) -> None:
    stage = Stage(database, backend=FakeBackend([RuntimeError("a bug")], ["Hi."]))
    await stage.talk("hello", "are you there?")
    assert [text[:24] for text in stage.texts] == ["⚠ Something went wrong o", "Hi."]
    assert await stage.history() == [("user", "are you there?"), ("assistant", "Hi.")]


async def test_the_receipt_of_an_answer_says_what_was_sent_and_left_out(
    database: Database,
) -> None:
    small = {"max_input_tokens": 60, "system": "Be brief."}
    stage = Stage(database, backend=FakeBackend(["word " * 9]), preset=small)
    await stage.talk(*(f"tell me of {n}" for n in range(4)))
    [(number, receipt)] = await SqlReceipts(database).newest(CHAT)
    assert (number, receipt.preset, receipt.preset_version, receipt.provider) == (4, "nora", 3, "p")
    assert receipt.prompt == stage.backend.prompts[-1]
    assert [(one.section, one.count) for one in receipt.dropped] == [("history", 4)]
    assert (receipt.limit, receipt.tokens <= 60) == (60, True)
    assert receipt.answer == ("word " * 9).strip()


async def test_context_shows_the_last_answer_s_receipt(database: Database) -> None:
    stage = Stage(database, backend=FakeBackend(["Hi."]))
    await stage.talk("/context", "hello", "/context")
    assert stage.texts[0] == "⚠ I have not answered here of late, so there is nothing to show."
    assert stage.texts[2].startswith("nora (version 3) on p/m, receipt 1: ")


async def test_an_admin_gets_the_exact_prompt_as_a_file_once(database: Database) -> None:
    stage = Stage(database, backend=FakeBackend(["Hi."]), limits=WITH_PLACEHOLDER)
    await stage.talk("/context prompt", "hello")
    stage.surface.responses_to_lose = 1
    await stage.talk(make_incoming("/context prompt", key="5:0"), "and you?")
    await stage.deliver()

    assert stage.texts == [
        "⚠ I have not answered here of late, so there is nothing to show.",
        "Hi.",
        "The exact prompt of receipt 1, secrets removed.",
        "Hi.",
    ]
    assert list(stage.surface.files.values()) == [Attachment("prompt-1.txt", "1 nora: hello\n")]
    assert await stage.history() == [
        *(("user", "hello"), ("assistant", "Hi.")),
        *(("user", "and you?"), ("assistant", "Hi.")),
    ]


async def test_others_are_told_that_the_exact_prompt_is_for_admins(database: Database) -> None:
    stage = Stage(database, backend=FakeBackend(["Hi."]))
    await stage.talk("hello", make_incoming("/context prompt", key="5:2", author=BOB))
    assert stage.texts[-1] == (
        "⚠ Only an admin can see the exact prompt, which contains my instructions."
    )
    assert not stage.surface.files


async def test_admins_alone_are_told_that_there_is_a_file_and_nobody_sees_a_secret(
    database: Database,
) -> None:
    stage = Stage(database, backend=FakeBackend(["Hi."]), preset={"name": "nora sk-canary"})
    await stage.talk("hello", "/context", make_incoming("/context", key="5:3", author=BOB))
    to_admin, to_bob = stage.texts[1:]
    assert to_admin == to_bob + "\n\nThe exact prompt, as a file: /context prompt"
    assert to_bob.startswith("nora *** (version 3) on p/m, receipt 1: ")


async def test_what_no_longer_fits_is_summed_up_for_the_next_prompt(database: Database) -> None:
    wants = {"max_input_tokens": 60, "summary": {}}
    stage = Stage(database, backend=FakeBackend(["Hi."]), preset=wants)
    summing = asyncio.create_task(stage.summarizer.run())
    for n in range(12):
        await stage.talk(f"tell me of {n}")
    summing.cancel()
    await asyncio.wait([summing])
    prompts = stage.backend.prompts
    told = [one.messages[-1].content for one in prompts if one.conversation != CHAT]
    assert told[0].startswith("Conversation:\nAlice: tell me of 0\n")
    first = [one.messages[0] for one in prompts if one.conversation == CHAT][-1]
    assert (first.role, first.content) == ("system", "What was said before, in short:\nHi.")


# --- commands ----------------------------------------------------------------------------------


async def test_a_command_is_carried_out_and_is_no_part_of_the_history(database: Database) -> None:
    stage = Stage(database, backend=FakeBackend())
    await stage.talk("/help")
    assert stage.texts[0].startswith("I am nora.")
    assert stage.backend.prompts == []
    assert await stage.history() == []


async def test_new_begins_a_session_with_the_greeting_in_it(database: Database) -> None:
    stage = Stage(database, backend=FakeBackend(), preset={"greeting": "Come in!"})
    await stage.talk("hello", "/new")
    assert stage.texts[-1] == "A new conversation begins.\n\nCome in!"
    assert await stage.history() == [("assistant", "Come in!")]
    assert (await stage.session()).number == 2


async def test_new_lets_those_who_remember_leave_the_old_session(database: Database) -> None:
    stage = Stage(database, backend=FakeBackend())
    await stage.talk("/new")

    assert stage.memory.calls == [f"leave {CHAT}"]


async def test_forget_deletes_every_session_and_says_so(database: Database) -> None:
    stage = Stage(database, backend=FakeBackend(["one"], ["two"]))
    await stage.talk("CANARY 1", "/new", "CANARY 2")
    stage.memory.calls.clear()
    await stage.talk("/forget")

    assert stage.texts[-1] == (
        "Deleted for good: 4 messages and everything that was kept of them. "
        "A new conversation begins."
    )
    assert stage.memory.calls == [f"forget {CHAT}", f"leave {CHAT}"]
    rows = await database.read(lambda c: c.execute(select(turn.c.text)).scalars().all())
    assert rows == []


async def test_a_command_that_nobody_knows_is_answered_with_help(database: Database) -> None:
    stage = Stage(database, backend=FakeBackend())
    await stage.talk(make_incoming("/abracadabra", wake=WakeReason.COMMAND))
    assert stage.texts == ["⚠ There is no command /abracadabra; /help lists them all."]


# --- how an answer is shown --------------------------------------------------------------------


async def growing(stage: Stage, go_on: asyncio.Event) -> list[str]:
    """Walk a message, look at the chat while the model still speaks, and let it end."""
    await stage.hear("hello")
    async with running_worker(stage) as worker:
        await wait_until(lambda: len(stage.backend.prompts) == 1)
        await advance_in_steps(stage.clock, 3)
        before = stage.texts
        go_on.set()
        await worker
    return before


async def test_an_answer_is_shown_while_it_grows(database: Database) -> None:
    go_on = asyncio.Event()
    stage = Stage(database, backend=FakeBackend(["Once upon", go_on, " a time."]))
    assert await growing(stage, go_on) == ["Once upon"]
    assert stage.texts == ["Once upon a time."]
    assert [call for call, _ in stage.surface.calls if call != "typing"] == ["send", "edit"]


@pytest.mark.parametrize("placeholder", [None, "…"])
async def test_who_waits_sees_where_they_stand_until_the_answer_comes(
    database: Database, placeholder: str | None
) -> None:
    go_on = asyncio.Event()
    backend = FakeBackend([QueuePosition(3, 11.2), go_on, "Hello."])
    stage = Stage(database, backend=backend, limits=replace(LIMITS, placeholder=placeholder))
    assert await growing(stage, go_on) == ["⏳ You are number 3 in line, about 12 s …"]
    assert stage.texts == ["Hello."]


async def test_without_streaming_nothing_is_shown_before_the_end(database: Database) -> None:
    go_on = asyncio.Event()
    backend = FakeBackend(["Once upon", go_on, " a time."])
    stage = Stage(database, backend=backend, preset={"stream": False})
    assert await growing(stage, go_on) == []
    assert stage.texts == ["Once upon a time."]


async def test_without_a_nonce_a_message_is_opened_empty_and_filled(database: Database) -> None:
    stage = Stage(database, backend=FakeBackend(["Hi."]), limits=WITH_PLACEHOLDER)
    await stage.talk("hello")
    assert [one for one in stage.surface.calls if one[0] != "typing"] == [
        ("send", "…"),
        ("edit", "Hi."),
    ]


async def test_with_a_nonce_a_message_is_sent_with_its_text(database: Database) -> None:
    stage = Stage(database, backend=FakeBackend(["Hi."]))
    await stage.talk("hello")
    assert [one for one in stage.surface.calls if one[0] != "typing"] == [("send", "Hi.")]


@pytest.mark.parametrize("placeholder", [None, "…"])
async def test_a_long_answer_comes_in_parts(database: Database, placeholder: str | None) -> None:
    short = replace(LIMITS, max_units=40, placeholder=placeholder)
    stage = Stage(database, backend=FakeBackend([f"{'x' * 30}\n\n{'y' * 30}"]), limits=short)
    await stage.talk("hello")
    assert stage.texts == ["x" * 30, "y" * 30]
    assert (await stage.history())[1] == ("assistant", f"{'x' * 30}\n\n{'y' * 30}")


# --- crashes, fences, stops --------------------------------------------------------------------


async def test_after_a_crash_the_same_messages_are_edited_and_surplus_ones_taken_away(
    database: Database,
) -> None:
    short = replace(LIMITS, max_units=40)
    never = asyncio.Event()
    first = Stage(database, backend=FakeBackend([f"{'x' * 30}\n\n{'y' * 30}", never]), limits=short)
    await first.hear("hello")
    async with running_worker(first):
        await wait_until(lambda: len(first.backend.prompts) == 1)
        for _ in range(50):
            await advance_in_steps(first.clock, 1)
            if len(first.texts) == 2:
                break
    assert first.texts == ["x" * 30, "y" * 30]

    reborn = Stage(database, backend=FakeBackend(["z"]), surface=first.surface, clock=first.clock)
    await reborn.worker.work(CHAT)

    assert reborn.texts == ["z"]
    assert await reborn.history() == [("user", "hello"), ("assistant", "z")]


async def test_a_message_that_killed_the_process_too_often_is_set_aside(
    database: Database,
) -> None:
    stage = Stage(database, backend=FakeBackend(["Hi."]))
    await stage.hear("poison", "hello")
    await database.write(
        lambda c: c.execute(update(inbox).where(inbox.c.id == 1).values(crashes=16)).rowcount
    )
    await stage.worker.work(CHAT)
    assert [text[:25] for text in stage.texts] == ["⚠ Processing this message", "Hi."]
    assert len(stage.backend.prompts) == 1


async def test_a_fenced_walk_drops_its_answer(database: Database) -> None:
    go_on = asyncio.Event()
    stage = Stage(database, backend=FakeBackend([go_on, "Too late."]))
    await stage.hear("hello")
    async with running_worker(stage) as worker:
        await wait_until(lambda: len(stage.backend.prompts) == 1)
        await stage.take_over()
        go_on.set()
        await worker
    assert stage.texts == []
    assert await stage.history() == []
    assert len(await stage.unanswered()) == 1


async def test_a_lease_lost_in_the_middle_stops_the_model(database: Database) -> None:
    never = asyncio.Event()
    stage = Stage(database, backend=FakeBackend(["Once ", never]))
    await stage.hear("hello")
    async with running_worker(stage) as worker:
        await wait_until(lambda: len(stage.backend.prompts) == 1)
        await stage.take_over()
        await advance_in_steps(stage.clock, 6)
        await wait_until(worker.done)
        assert worker.exception() is None
    assert stage.backend.closed_early == 1


async def test_a_lease_is_kept_as_long_as_the_model_takes(database: Database) -> None:
    go_on = asyncio.Event()
    stage = Stage(database, backend=FakeBackend([go_on, "At last."]))
    await stage.hear("hello")
    async with running_worker(stage) as worker:
        await wait_until(lambda: len(stage.backend.prompts) == 1)
        for _ in range(6):
            await advance_in_steps(stage.clock, 5)
        assert await stage.conversations.claim(CHAT, "other", 15) is None
        go_on.set()
        await worker
    assert stage.texts == ["At last."]


async def test_a_stop_on_purpose_is_not_counted_against_the_message(database: Database) -> None:
    never = asyncio.Event()
    stage = Stage(database, backend=FakeBackend([never]))
    await stage.hear("hello")
    async with running_worker(stage) as worker:
        await wait_until(lambda: len(stage.backend.prompts) == 1)
        worker.cancel()
        with suppress(asyncio.CancelledError):
            await worker
        assert worker.cancelled()
    assert stage.backend.closed_early == 1
    assert await stage.unanswered() == [0]
    assert await stage.conversations.claim(CHAT, "other", 15) is not None


async def test_a_full_disk_is_not_counted_against_the_message(database: Database) -> None:
    stage = Stage(database, backend=FakeBackend(["Hi."]))
    stage.conversations.full = True
    for _ in range(10):
        with pytest.raises(StoreError):
            await stage.talk(*([] if await stage.unanswered() else ["hello"]))
    stage.conversations.full = False
    await stage.worker.work(CHAT)
    assert stage.texts == ["Hi."]


async def test_who_is_stopping_begins_no_further_message(database: Database) -> None:
    go_on = asyncio.Event()
    stage = Stage(database, backend=FakeBackend([go_on, "one"], ["two"]))
    await stage.hear("a", "b")
    async with running_worker(stage) as worker:
        await wait_until(lambda: len(stage.backend.prompts) == 1)
        stage.worker.stopping = True
        go_on.set()
        await worker
    assert stage.texts == ["one"]
    assert await stage.unanswered() == [0]


async def test_a_conversation_that_somebody_else_walks_is_left_to_them(database: Database) -> None:
    stage = Stage(database, backend=FakeBackend())
    await stage.hear("hello")
    await stage.conversations.claim(CHAT, "other", 15)
    await stage.worker.work(CHAT)
    assert stage.backend.prompts == []


async def test_nothing_of_a_walk_is_left_running(database: Database) -> None:
    stage = Stage(database, backend=FakeBackend())
    before = asyncio.all_tasks()
    await stage.talk("hello")
    await run_ready_tasks()
    assert asyncio.all_tasks() == before


async def test_stories_are_found_by_what_was_said_and_stand_in_the_prompt(
    database: Database,
) -> None:
    async def find(preset: Preset, newest: str) -> RetrievedStories:
        assert (preset.name, newest) == ("nora", "Was there a storm?")
        return {newest: [Story(0, "A storm took the roof.", 0.9)]}

    backend = FakeBackend(["Yes."])
    persona: dict[str, object] = {"persona": "You keep a light.\n{{RAG-dialogue}}"}
    stage = Stage(database, backend=backend, preset=persona, retrieve_stories=find)

    await stage.talk("Was there a storm?")

    assert backend.prompts[0].messages[0].content == (
        "You keep a light.\n###\nA storm took the roof."
    )

"""Test the turn of one message on a real database: it is answered once, whatever goes wrong."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import select, update
from structlog.testing import capture_logs
from typing_extensions import override

from bot.chat.incoming import (
    Address,
    Incoming,
    MediaItem,
    MediaKind,
    Request,
    Said,
    WakeReason,
)
from bot.chat.outgoing import Attachment, Limits, OutboxRow
from bot.chat.prompt import Finish, FinishReason, QueuePosition, ReasoningDelta
from bot.chat.session import Claim, FinishedTurn, InboxMessage, Session, TurnResult
from bot.chat.story import Story
from bot.commands.admins import AdminCheck
from bot.commands.anonymous_admins import AnonymousAdmins
from bot.commands.answer_buttons import AnswerButtons
from bot.commands.context import ContextView
from bot.commands.forgetting import ChannelForgetting, PersonForgetting
from bot.commands.handlers import CommandHandlers
from bot.commands.personas import UserPersonas
from bot.delivery.sender import Sender
from bot.errors import (
    BackendInterrupted,
    BackendUnavailable,
    PlatformError,
    StoreError,
    Unreachable,
)
from bot.intake.histories import HistoryRouter
from bot.intake.intake import InboxIntake
from bot.media.attachment_reader import AttachmentReader, Download
from bot.media.voice_messages import VoiceMessages
from bot.ports import ConversationMemory, Delivery
from bot.prompting.presets.preset import Preset
from bot.replying.live_replies import LiveReplies
from bot.routing.history_scopes import HistoryScopes
from bot.routing.preset_resolver import PresetResolver
from bot.runtime.rate_limits import InProcessRateLimits
from bot.runtime.signals import InProcessSignals
from bot.storage.history_index import SqlHistoryIndex
from bot.storage.operation.pauses import SqlPauses
from bot.storage.personal_data import SqlPersonalData
from bot.storage.sql.chat_settings import SqlChatSettings
from bot.storage.sql.conversations import SqlConversations
from bot.storage.sql.database import Database
from bot.storage.sql.inbox import SqlInbox
from bot.storage.sql.outbox import SqlOutbox
from bot.storage.sql.receipts import SqlReceipts
from bot.storage.sql.summaries import SqlSummaries
from bot.storage.sql.tables import conversation, inbox, turn
from bot.storage.units.lanes import SenderIdentity
from bot.stories.retrieve import RetrievedStories, RetrieveStories, no_stories
from bot.summaries.summarizer import Summarizer
from bot.turn.answer import AnswerPipeline
from bot.turn.arrivals import CONVERSATIONS, ArrivalSignals
from bot.turn.channel_reader import ChannelReader, ReadBefore
from bot.turn.gathering import MessageGatherer
from bot.turn.limits.pauses import AnsweringPauses
from bot.turn.limits.queue_limit import QueueLimit
from bot.turn.limits.rare_notices import RareNotices
from bot.turn.limits.spending import Spending
from bot.turn.preview.prompt_preview import PromptPreview
from bot.turn.prompt_sources import PromptSources
from bot.turn.stages import TurnStages
from bot.turn.stops import StopRequests
from bot.turn.worker import ConversationWorker
from tests.fakes import LIMITS, FakeBackend, FakeClock, FakeSurface, run_ready_tasks
from tests.samples import BOB, format_receipt, make_incoming, mask_secret, read_session
from tests.waiting import advance_in_steps, wait_until

CHAT = "telegram:5"


def failure(problem: str, key: str = "5:1") -> str:
    """Return what people are told when the answer to a message fails."""
    message = InboxMessage(0, make_incoming(key=key), 0)
    return f"⚠ {problem} (error {message.error_id})"


WITHOUT_NONCES = replace(LIMITS, can_repeat_sends=False)
NORA = {"name": "nora", "provider": "p", "model": "m"}


async def read_nothing(_said: Said, _limit: int) -> Sequence[Said]:
    return ()


async def download_nothing(_address: Address, _item: MediaItem, _max_bytes: int) -> bytes:
    raise Unreachable("there are no files here")


class FullDiskConversations(SqlConversations):
    """Fails to finish a message while the disk is `full`."""

    full = False

    @override
    async def finish(
        self, claim: Claim, message: InboxMessage, result: TurnResult, *, go_on: bool = True
    ) -> FinishedTurn:
        if self.full:
            raise StoreError("the database failed: database or disk is full")
        return await super().finish(claim, message, result, go_on=go_on)


class FakeMemory(ConversationMemory):
    """Records what it is told to end or forget."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    @override
    async def end_session(self, conversation: str) -> None:
        self.calls.append(f"end_session {conversation}")

    @override
    async def forget(self, conversation: str) -> None:
        self.calls.append(f"forget {conversation}")


class Setup(Delivery):
    """A worker whose answers are delivered at once to a fake channel."""

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
        pipeline_parts: Mapping[str, Any] | None = None,
        read_before: ReadBefore = read_nothing,
        download: Download = download_nothing,
        max_waiting: int = 0,
    ) -> None:
        self.database = database
        self.backend = backend
        self.platform_error: PlatformError | None = None
        """What the platform answers when it is asked who is an admin."""
        self.surface = surface or FakeSurface(limits)
        self.clock = clock or FakeClock()
        self.inbox = SqlInbox(database, self.clock)
        lane_sender = SenderIdentity(owner, 0)
        self.conversations = FullDiskConversations(database, self.clock, lane_sender)
        self.outbox = SqlOutbox(database, self.clock, lane_sender)
        self._sending: dict[str, asyncio.Task[None]] = {}
        one, *more = [Preset.model_validate({**NORA, **each}) for each in [preset or {}, *others]]
        chat_settings = SqlChatSettings(database, self.clock)
        personas = UserPersonas(chat_settings)
        presets = {each.name: each for each in (one, *more)}
        resolver = PresetResolver(presets, one.name, chat_settings, {one.name: 3})
        self.resolver = resolver
        self.sender = Sender(self.outbox, {"telegram": self.surface}, self.clock, settle_seconds=0)
        self.memory = FakeMemory()
        self.summarizer = Summarizer(SqlSummaries(database), {"p": backend})
        replies = LiveReplies(
            self.conversations,
            {"telegram": self.surface},
            self,
            self.clock,
        )
        anonymous = AnonymousAdmins(chat_settings)
        admins = AdminCheck((), self._is_platform_admin, self.clock, anonymous)
        scopes = HistoryScopes(chat_settings, resolver)
        self.history_scopes = scopes
        index = SqlHistoryIndex(database)
        self.router = HistoryRouter(scopes.find, index)
        self.buttons = AnswerButtons(
            self.conversations, self.inbox, admins, self.router.route_press
        )
        commands = CommandHandlers(
            resolver,
            admins,
            ContextView(SqlReceipts(database), format_receipt, mask_secret),
            personas,
            SqlPersonalData(database, self.clock),
            scopes,
            anonymous,
        )
        backends = {"p": backend, "q": fallback or backend}
        sources = PromptSources(
            self.conversations,
            resolver,
            personas,
            retrieve_stories,
            self.summarizer,
            ChannelReader(read_before),
            AttachmentReader(download),
            backends,
        )
        self.preview = PromptPreview(
            sources,
            resolver,
            self.conversations,
            Spending({}, self.clock),
            self.clock,
            self.router.foresee,
            dice,
        )
        pipeline = AnswerPipeline(
            sources, backends, replies, self.clock, dice, **(pipeline_parts or {})
        )
        self.signals = InProcessSignals()
        self.pauses = AnsweringPauses(SqlPauses(database, self.clock), self.signals, self._go_on)
        self.stops = StopRequests(self.signals, admins.is_known_admin)
        self.arrivals = arrivals = ArrivalSignals(self.signals)
        gatherer = MessageGatherer(self.conversations, arrivals, self.clock)
        forgetting = PersonForgetting(
            SqlPersonalData(database, self.clock), personas, self._receive_events
        )
        setups = TurnStages(
            *(resolver, commands, pipeline, replies, self.stops, self.buttons),
            *(forgetting, ChannelForgetting(index, self._receive_events), gatherer),
            *(arrivals, VoiceMessages(download, backends), dice),
            is_paused=self.pauses.covers,
            is_context=self.pauses.is_context,
            queue_limit=QueueLimit(
                *(self.conversations, arrivals, replies),
                *(RareNotices(InProcessRateLimits(self.clock)), self.clock, max_waiting),
            )
            if max_waiting
            else None,
        )
        self.worker = ConversationWorker(
            self.conversations, [self.memory], setups, owner, self.clock
        )

    async def _go_on(self) -> None:
        self.signals.publish(CONVERSATIONS, [CHAT])

    async def _receive_events(self, events: Sequence[Incoming]) -> None:
        async with self.router.routed(events) as routed:
            await self.inbox.receive(routed, {})

    @property
    def texts(self) -> list[str]:
        """The messages of the bot in the channel."""
        return list(self.surface.messages.values())

    async def _is_platform_admin(self, asked: Request) -> bool:
        if self.platform_error is not None:
            raise self.platform_error
        return asked.author != BOB

    @override
    def deliver(self, lane: str, row: OutboxRow | None) -> None:
        """Send a row, or what is due in a lane, beside the worker; in order for each lane."""
        before = self._sending.get(lane)
        self._sending[lane] = asyncio.create_task(self._send(lane, row, before))

    async def _send(
        self, lane: str, row: OutboxRow | None, before: asyncio.Task[None] | None
    ) -> None:
        if before is not None:
            await asyncio.wait([before])
        rows = [row] if row else (await self.sender.take([lane])).values()
        for one in rows:
            await self.sender.work(one)

    @override
    async def wait_until_sent(self, row_id: int) -> str:
        return await self.sender.sent_rows.wait(row_id)

    async def work(self, key: str = CHAT) -> None:
        """Process and deliver everything in a conversation, as the pools do."""
        while not self.worker.is_stopping and (claimed := await self.worker.claim([key])):
            await self.worker.work(claimed[key])
        await self.finish_sending()

    async def finish_sending(self) -> None:
        """Wait until everything that was handed over is sent."""
        while sending := [task for task in self._sending.values() if not task.done()]:
            await asyncio.wait(sending)
        for task in self._sending.values():
            task.result()

    async def receive(self, *said: str | Incoming) -> None:
        for one in said:
            if isinstance(one, str):
                number = await self._count_received() + 1
                one = make_incoming(one, key=f"5:{number}")
            async with self.router.routed([one]) as routed:
                await self.inbox.receive(routed, {})
            self.stops.announce(routed)
            self.signals.publish(CONVERSATIONS, [each.address.conversation for each in routed])

    async def say(self, *said: str | Incoming) -> None:
        """Receive messages and process them."""
        await self.receive(*said)
        await self.work()

    async def session(self) -> Session:
        return await read_session(self.database, CHAT)

    async def history(self) -> list[tuple[str, str]]:
        return [(turn.role, turn.text) for turn in (await self.session()).turns]

    async def crashes_of_pending(self) -> list[int]:
        """Return the crash count of each message that is not finished."""
        crashes = select(inbox.c.crashes).where(inbox.c.state == "new").order_by(inbox.c.id)
        return list(await self.database.read(lambda c: c.execute(crashes).scalars().all()))

    async def take_over(self) -> None:
        """Let another worker claim the conversation, as if the lease had expired."""
        newer = update(conversation).values(epoch=conversation.c.epoch + 1, owner="other")
        await self.database.write(lambda c: c.execute(newer).rowcount)

    async def _count_received(self) -> int:
        return len(await self.database.read(lambda c: c.execute(select(inbox.c.id)).all()))


@asynccontextmanager
async def running_worker(setup: Setup) -> AsyncIterator[asyncio.Task[None]]:
    """Process the conversation in a task beside the block."""
    task = asyncio.create_task(setup.work())
    leases = asyncio.create_task(setup.worker.keep_leases())
    try:
        yield task
    finally:
        task.cancel()
        leases.cancel()
        await asyncio.wait([task])


# --- one message -------------------------------------------------------------------------------


async def test_private_message_that_cannot_be_read_is_answered_in_words(database: Database) -> None:
    setup = Setup(database, backend=FakeBackend())
    media = (MediaItem(MediaKind.VOICE), MediaItem(MediaKind.IMAGE))
    await setup.say(replace(make_incoming("", key="5:1"), attachments=media))
    assert setup.texts == [
        "I cannot listen to voice messages or look at pictures here. "
        "Please tell me in words what it is about."
    ]
    assert await setup.history() == []
    assert setup.backend.prompts == []


async def test_picture_in_a_group_that_is_for_nobody_is_not_answered(database: Database) -> None:
    setup = Setup(database, backend=FakeBackend())
    media = (MediaItem(MediaKind.IMAGE),)
    await setup.say(replace(make_incoming("", key="5:1", wake=None), attachments=media))
    assert setup.texts == []


async def test_message_is_answered_once_and_stored(database: Database) -> None:
    setup = Setup(database, backend=FakeBackend(["Hi ", "there."]))
    await setup.say("hello")
    await setup.work()
    assert setup.texts == ["Hi there."]
    assert await setup.history() == [("user", "hello"), ("assistant", "Hi there.")]
    assert len(setup.backend.prompts) == 1


async def test_persona_of_the_author_is_in_the_prompt(database: Database) -> None:
    setup = Setup(database, backend=FakeBackend(["My lord."]))
    await setup.say("/me a tall knight", "hello")
    said = setup.backend.prompts[-1].messages[-1].content
    assert said == "(Alice says of themselves: a tall knight)\n\nhello"
    assert await setup.history() == [("user", "hello"), ("assistant", "My lord.")]


async def test_history_stores_preset_and_version_of_an_answer(database: Database) -> None:
    setup = Setup(database, backend=FakeBackend(["Hi."]))
    await setup.say("hello")
    written = select(turn.c.role, turn.c.preset, turn.c.preset_version).order_by(turn.c.id)
    rows = await database.read(lambda c: c.execute(written).all())
    assert [tuple(row) for row in rows] == [("user", None, None), ("assistant", "nora", 3)]


async def test_messages_are_answered_in_order_with_the_history_before_them(
    database: Database,
) -> None:
    setup = Setup(database, backend=FakeBackend(["one"], ["two"], ["three"]))
    await setup.say("a", "b", "c")
    assert setup.texts == ["one", "two", "three"]
    asked = [message.content for message in setup.backend.prompts[-1].messages]
    assert asked == ["a", "one", "b", "two", "c"]


async def test_message_received_during_an_answer_is_answered_next(
    database: Database,
) -> None:
    go_on = asyncio.Event()
    setup = Setup(database, backend=FakeBackend([go_on, "one"], ["two"]))
    await setup.receive("a")
    async with running_worker(setup) as worker:
        await wait_until(lambda: len(setup.backend.prompts) == 1)
        await setup.receive("b")
        go_on.set()
        await worker
    assert setup.texts == ["one", "two"]


async def test_failed_turn_leaves_no_trace(database: Database) -> None:
    no_model = BackendUnavailable("refused", notice="The model is away.")
    setup = Setup(database, backend=FakeBackend([no_model], ["Hi."]))
    await setup.say("hello")
    assert setup.texts == [failure("The model is away.")]
    assert await setup.history() == []
    await setup.say("hello again")
    assert [message.content for message in setup.backend.prompts[-1].messages] == ["hello again"]


async def test_fallback_answers_when_the_first_model_fails(database: Database) -> None:
    away, other = FakeBackend([BackendUnavailable("refused")]), FakeBackend(["Hi."])
    preset = {"fallbacks": [{"provider": "q", "model": "small"}]}
    setup = Setup(database, backend=away, fallback=other, preset=preset)
    await setup.say("hello")
    (_, receipt), *_ = await SqlReceipts(database).newest(CHAT)
    assert setup.texts[0] == "Hi."
    assert (len(away.prompts), other.prompts[0].model) == (1, "small")
    assert (receipt.provider, receipt.prompt.model) == ("q", "small")


async def test_admins_are_told_once_in_an_outage_that_a_fallback_answers(
    database: Database,
) -> None:
    away = FakeBackend([BackendUnavailable("p: SECRET", notice="The key is wrong.")])
    clock = FakeClock()
    setup = Setup(
        database,
        backend=away,
        fallback=FakeBackend(["Hi."]),
        preset={"fallbacks": [{"provider": "q", "model": "small"}]},
        clock=clock,
        pipeline_parts={"notices": RareNotices(InProcessRateLimits(clock))},
    )
    await setup.say("hello", "hello again")
    note = (
        "⚠ For the admins here: another model answers in place of nora's own, which failed:"
        " “The key is wrong.” More: /settings why"
    )
    assert setup.texts == ["Hi.", note, "Hi."]
    await clock.advance(7 * 3600)
    await setup.say("still there?")
    assert setup.texts == ["Hi.", note, "Hi.", "Hi."]  # the outage goes on


async def test_admins_are_told_which_model_answered_in_place_of_another(
    database: Database,
) -> None:
    away, other = FakeBackend([BackendUnavailable("refused")]), FakeBackend(["Hi."])
    preset = {"fallbacks": [{"provider": "q", "model": "small"}]}
    setup = Setup(database, backend=away, fallback=other, preset=preset)
    await setup.say("hello", "/settings why")
    assert setup.texts[-1].splitlines()[-1] == "nora: q/small answered in place of p/m"


async def test_fallback_is_not_used_for_an_interrupted_answer(database: Database) -> None:
    first = FakeBackend(["Once upon ", BackendInterrupted("reset")])
    other = FakeBackend(["Hi."])
    preset = {"fallbacks": [{"provider": "q"}]}
    setup = Setup(database, backend=first, fallback=other, preset=preset)
    await setup.say("a story")
    assert setup.texts == ["Once upon\n\n⚠ (interrupted)"]
    assert other.prompts == []


async def test_observed_message_is_stored_but_not_answered(database: Database) -> None:
    setup = Setup(database, backend=FakeBackend(), preset={"context": "all"})
    await setup.say(make_incoming("nice weather", wake=None))
    assert setup.texts == []
    assert setup.backend.prompts == []
    assert await setup.history() == [("user", "nice weather")]


async def test_ignored_message_is_neither_answered_nor_stored(database: Database) -> None:
    setup = Setup(database, backend=FakeBackend(), preset={"context": "addressed"})
    await setup.say(make_incoming("nice weather", wake=None))
    assert (setup.texts, await setup.history(), await setup.crashes_of_pending()) == ([], [], [])


async def test_interrupted_answer_is_kept_and_marked(database: Database) -> None:
    setup = Setup(database, backend=FakeBackend(["Once upon ", BackendInterrupted("reset")]))
    await setup.say("a story")
    assert setup.texts == ["Once upon\n\n⚠ (interrupted)"]
    assert await setup.history() == [("user", "a story"), ("assistant", "Once upon")]


async def test_answer_that_repeats_itself_is_cut_and_said_so(database: Database) -> None:
    setup = Setup(database, backend=FakeBackend(["Once upon a time. ", *["And then. "] * 999]))
    await setup.say("a story")
    assert setup.texts == [
        "Once upon a time. And then.\n\n"
        "⚠ (cut off: the model began to repeat itself; try again, or ask differently)"
    ]
    assert (await setup.history())[1] == ("assistant", "Once upon a time. And then.")


@pytest.mark.parametrize(
    ("reason", "mark"),
    [
        (FinishReason.LENGTH, "⚠ (cut off at the length limit; write “go on” for the rest)"),
        (
            FinishReason.FILTERED,
            "⚠ (cut off by the provider's content filter; try other words)",
        ),
    ],
)
async def test_answer_that_is_cut_off_is_marked_for_its_readers_only(
    database: Database, reason: FinishReason, mark: str
) -> None:
    setup = Setup(database, backend=FakeBackend(["Once upon", Finish(reason)]))
    await setup.say("a story")
    assert setup.texts == [f"Once upon\n\n{mark}"]
    assert await setup.history() == [("user", "a story"), ("assistant", "Once upon")]


async def test_answer_that_is_filtered_from_its_first_word_is_an_error(
    database: Database,
) -> None:
    setup = Setup(database, backend=FakeBackend([Finish(FinishReason.FILTERED)]))
    await setup.say("a story")
    assert "content filter" in setup.texts[0]


async def test_answer_interrupted_before_its_first_character_is_an_error(
    database: Database,
) -> None:
    lost = BackendInterrupted("reset", notice="The model broke off.")
    setup = Setup(database, backend=FakeBackend(["  ", lost]))
    await setup.say("a story")
    assert setup.texts == [failure("The model broke off.")]
    assert await setup.history() == []


async def test_steps_before_a_failure_are_logged_and_those_of_an_answer_are_in_its_receipt(
    database: Database,
) -> None:
    lost = BackendInterrupted("reset", notice="The model broke off.")
    setup = Setup(database, backend=FakeBackend([lost]))
    with capture_logs() as logs:
        await setup.say("a story")
    steps = [one["event"] for one in logs if one["event"] in {"prompt_composed", "prefill"}]
    assert steps == ["prompt_composed", "prefill"]
    assert next(one["tokens"] for one in logs if one["event"] == "prompt_composed") > 0

    answering = Setup(database, backend=FakeBackend(["one"]))
    with capture_logs() as logs:
        await answering.say("hello")
    assert not [one for one in logs if one["event"] == "prefill"]
    [(_, receipt)] = await SqlReceipts(database).newest("telegram:5")
    timings = receipt.timings
    assert 0 <= timings.composed_seconds <= timings.queued_seconds


async def test_nul_characters_are_removed_from_an_answer(database: Database) -> None:
    setup = Setup(database, backend=FakeBackend(["one\0", "\0two"]))
    await setup.say("hello")
    assert setup.texts == ["onetwo"]


async def test_empty_answer_is_reported(database: Database) -> None:
    setup = Setup(database, backend=FakeBackend(["  \n "]))
    await setup.say("hello")
    problem = "The model gave an empty answer. Please try again or rephrase your message."
    assert setup.texts == [failure(problem)]
    assert await setup.history() == []


async def test_reasoning_is_neither_shown_nor_stored_in_the_history(database: Database) -> None:
    go_on = asyncio.Event()
    backend = FakeBackend([ReasoningDelta("They greet"), go_on, ReasoningDelta(" me."), "Hello."])
    setup = Setup(database, backend=backend)
    assert await texts_before(setup, go_on, is_streamed=False) == []
    assert setup.texts == ["Hello."]
    assert [call for call, _ in setup.surface.calls].count("typing") == 1
    assert await setup.history() == [("user", "hello"), ("assistant", "Hello.")]


async def test_answer_of_reasoning_only_is_reported(database: Database) -> None:
    setup = Setup(database, backend=FakeBackend([ReasoningDelta("Hm. "), ReasoningDelta("No.")]))
    await setup.say("hello")
    problem = "The model used its whole answer for thinking. Please try again, or ask for something"
    assert setup.texts == [failure(f"{problem} shorter.")]
    assert await setup.history() == []


async def test_too_long_message_is_refused_without_asking_the_model(
    database: Database,
) -> None:
    setup = Setup(database, backend=FakeBackend(), preset={"max_input_tokens": 50})
    await setup.say("word " * 200)
    assert "too long" in setup.texts[0]
    assert setup.backend.prompts == []
    assert await setup.history() == []


async def test_filter_chars_are_removed_from_answer_and_history(
    database: Database,
) -> None:
    setup = Setup(
        database, backend=FakeBackend(["Hi <", "eot>"]), preset={"filter_chars": ["<eot>"]}
    )
    await setup.say("hello")
    assert setup.texts == ["Hi"]
    assert (await setup.history())[1] == ("assistant", "Hi")


async def test_bug_is_reported_and_the_next_message_is_answered(database: Database) -> None:
    setup = Setup(database, backend=FakeBackend([RuntimeError("a bug")], ["Hi."]))
    await setup.say("hello", "are you there?")
    assert [text[:24] for text in setup.texts] == ["⚠ Something went wrong o", "Hi."]
    assert await setup.history() == [("user", "are you there?"), ("assistant", "Hi.")]


async def test_receipt_lists_what_was_sent_and_dropped(
    database: Database,
) -> None:
    small = {"max_input_tokens": 60, "system": "Be brief."}
    setup = Setup(database, backend=FakeBackend(["word " * 9]), preset=small)
    await setup.say(*(f"tell me of {n}" for n in range(4)))
    [(number, receipt)] = await SqlReceipts(database).newest(CHAT)
    assert (number, receipt.preset, receipt.preset_version, receipt.provider) == (4, "nora", 3, "p")
    assert receipt.prompt == setup.backend.prompts[-1]
    assert [(one.section, one.count) for one in receipt.dropped] == [("history", 4)]
    assert (receipt.limit, receipt.tokens <= 60) == (60, True)
    assert receipt.answer == ("word " * 9).strip()


async def test_context_shows_the_receipt_of_the_last_answer(database: Database) -> None:
    setup = Setup(database, backend=FakeBackend(["Hi."]))
    await setup.say("/context", "hello", "/context")
    assert (
        setup.texts[0]
        == "⚠ I have not answered in this channel recently, so there is no context to show."
    )
    assert setup.texts[2].startswith("nora (version 3) on p/m, receipt 1: ")


async def test_context_prompt_sends_an_admin_one_file(database: Database) -> None:
    setup = Setup(database, backend=FakeBackend(["Hi."]), limits=WITHOUT_NONCES)
    await setup.say("/context prompt", "hello")
    setup.surface.responses_to_lose = 1
    await setup.say(make_incoming("/context prompt", key="5:0"), "and you?")
    await setup.work()

    assert setup.texts == [
        "⚠ I have not answered in this channel recently, so there is no context to show.",
        "Hi.",
        "The exact prompt of receipt 1, secrets removed.",
        "Hi.",
    ]
    assert list(setup.surface.files.values()) == [Attachment("prompt-1.txt", "1 nora: hello\n")]
    assert await setup.history() == [
        *(("user", "hello"), ("assistant", "Hi.")),
        *(("user", "and you?"), ("assistant", "Hi.")),
    ]


async def test_context_prompt_is_refused_to_others(database: Database) -> None:
    setup = Setup(database, backend=FakeBackend(["Hi."]))
    await setup.say("hello", make_incoming("/context prompt", key="5:2", author=BOB))
    assert setup.texts[-1] == (
        "⚠ Only an admin can see the exact prompt, because it contains my instructions."
    )
    assert not setup.surface.files


async def test_context_mentions_the_file_to_admins_only_and_masks_secrets(
    database: Database,
) -> None:
    setup = Setup(database, backend=FakeBackend(["Hi."]), preset={"name": "nora sk-canary"})
    await setup.say("hello", "/context", make_incoming("/context", key="5:3", author=BOB))
    to_admin, to_bob = setup.texts[1:]
    assert to_admin == to_bob + "\n\n/context prompt sends the exact prompt as a file."
    assert to_bob.startswith("nora *** (version 3) on p/m, receipt 1: ")


async def test_dropped_turns_are_summarized_for_the_next_prompt(database: Database) -> None:
    wants = {"max_input_tokens": 60, "summary": {}}
    setup = Setup(database, backend=FakeBackend(["Hi."]), preset=wants)
    summarizing = asyncio.create_task(setup.summarizer.run())
    for n in range(12):
        await setup.say(f"tell me of {n}")
    summarizing.cancel()
    await asyncio.wait([summarizing])
    prompts = setup.backend.prompts
    told = [one.messages[-1].content for one in prompts if one.conversation != CHAT]
    assert told[0].startswith("Conversation:\nAlice: tell me of 0\n")
    first = [one.messages[0] for one in prompts if one.conversation == CHAT][-1]
    assert (first.role, first.content) == ("system", "What was said before, in short:\nHi.")


# --- commands ----------------------------------------------------------------------------------


async def test_command_is_not_part_of_the_history(database: Database) -> None:
    setup = Setup(database, backend=FakeBackend())
    await setup.say("/help")
    assert setup.texts[0].startswith("I am nora.")
    assert setup.backend.prompts == []
    assert await setup.history() == []


async def test_new_begins_a_session_with_the_greeting(database: Database) -> None:
    setup = Setup(database, backend=FakeBackend(), preset={"greeting": "Come in!"})
    await setup.say("hello", "/new")
    assert setup.texts[-1] == "A new conversation begins.\n\nCome in!"
    assert await setup.history() == [("assistant", "Come in!")]
    assert (await setup.session()).number == 2


async def test_new_ends_the_session_of_conversation_memories(database: Database) -> None:
    setup = Setup(database, backend=FakeBackend())
    await setup.say("/new")

    assert setup.memory.calls == [f"end_session {CHAT}"]


async def test_forget_deletes_all_sessions_and_reports_it(database: Database) -> None:
    setup = Setup(database, backend=FakeBackend(["one"], ["two"]))
    await setup.say("CANARY 1", "/new", "CANARY 2")
    setup.memory.calls.clear()
    await setup.say("/forget")

    assert setup.texts[-1] == (
        "Deleted for good: 4 messages and everything that was stored about them. "
        "A new conversation begins."
    )
    assert setup.memory.calls == [f"forget {CHAT}", f"end_session {CHAT}"]
    rows = await database.read(lambda c: c.execute(select(turn.c.text)).scalars().all())
    assert rows == []


async def test_unknown_command_is_answered_with_a_hint(database: Database) -> None:
    setup = Setup(database, backend=FakeBackend())
    await setup.say(make_incoming("/abracadabra", wake=WakeReason.COMMAND))
    assert setup.texts == ["⚠ There is no command /abracadabra; /help lists them all."]


# --- live updates ------------------------------------------------------------------------------


async def texts_before(
    setup: Setup, go_on: asyncio.Event, *, is_streamed: bool = True
) -> list[str]:
    """Process a message; return what the channel shows before `go_on` lets the model finish."""
    await setup.receive("hello")
    async with running_worker(setup) as worker:
        await wait_until(lambda: len(setup.backend.prompts) == 1)
        await advance_in_steps(setup.clock, 3)
        async with asyncio.timeout(20):  # the database may be slow
            while is_streamed and not set(setup.texts) - {"…"}:
                await advance_in_steps(setup.clock, 1)
        before = setup.texts
        go_on.set()
        await worker
    return before


async def test_answer_is_shown_while_it_is_generated(database: Database) -> None:
    go_on = asyncio.Event()
    setup = Setup(database, backend=FakeBackend(["Once upon", go_on, " a time."]))
    assert await texts_before(setup, go_on) == ["Once upon"]
    assert setup.texts == ["Once upon a time."]
    assert [call for call, _ in setup.surface.calls if call != "typing"] == ["send", "edit"]


@pytest.mark.parametrize("has_nonces", [True, False])
async def test_queue_position_is_shown_until_the_answer_begins(
    database: Database, has_nonces: bool
) -> None:
    go_on = asyncio.Event()
    backend = FakeBackend([QueuePosition(3, 11.2), go_on, "Hello."])
    setup = Setup(database, backend=backend, limits=replace(LIMITS, can_repeat_sends=has_nonces))
    assert await texts_before(setup, go_on) == ["⏳ You are number 3 in the queue, about 12 s …"]
    assert setup.texts == ["Hello."]


async def test_preset_without_streaming_shows_only_the_final_text(database: Database) -> None:
    go_on = asyncio.Event()
    backend = FakeBackend(["Once upon", go_on, " a time."])
    setup = Setup(database, backend=backend, preset={"stream": False})
    assert await texts_before(setup, go_on, is_streamed=False) == []
    assert setup.texts == ["Once upon a time."]


@pytest.mark.parametrize("limits", [LIMITS, WITHOUT_NONCES], ids=["nonces", "no nonces"])
async def test_answer_that_is_whole_at_once_is_one_message(
    database: Database, limits: Limits
) -> None:
    setup = Setup(database, backend=FakeBackend(["Hi."]), limits=limits)
    await setup.say("hello")
    assert [one for one in setup.surface.calls if one[0] != "typing"] == [("send", "Hi.")]


@pytest.mark.parametrize("has_nonces", [True, False])
async def test_long_answer_is_sent_in_parts(database: Database, has_nonces: bool) -> None:
    short = replace(LIMITS, max_units=40, can_repeat_sends=has_nonces)
    setup = Setup(database, backend=FakeBackend([f"{'x' * 30}\n\n{'y' * 30}"]), limits=short)
    await setup.say("hello")
    assert setup.texts == ["x" * 30, "y" * 30]
    assert (await setup.history())[1] == ("assistant", f"{'x' * 30}\n\n{'y' * 30}")


# --- crashes, fencing, shutdown ----------------------------------------------------------------


async def test_retry_after_a_crash_edits_the_same_messages_and_deletes_surplus_ones(
    database: Database,
) -> None:
    short = replace(LIMITS, max_units=40)
    never = asyncio.Event()
    first = Setup(database, backend=FakeBackend([f"{'x' * 30}\n\n{'y' * 30}", never]), limits=short)
    await first.receive("hello")
    async with running_worker(first):
        await wait_until(lambda: len(first.backend.prompts) == 1)
        for _ in range(50):
            await advance_in_steps(first.clock, 1)
            if len(first.texts) == 2:
                break
    assert first.texts == ["x" * 30, "y" * 30]

    restarted = Setup(
        database, backend=FakeBackend(["z"]), surface=first.surface, clock=first.clock
    )
    await restarted.work()

    assert restarted.texts == ["z"]
    assert await restarted.history() == [("user", "hello"), ("assistant", "z")]


async def test_message_that_crashed_too_often_is_set_aside(
    database: Database,
) -> None:
    setup = Setup(database, backend=FakeBackend(["Hi."]))
    await setup.receive("crash", "hello")
    await database.write(
        lambda c: c.execute(update(inbox).where(inbox.c.id == 1).values(own_crashes=3)).rowcount
    )
    await setup.work()
    assert [text[:25] for text in setup.texts] == ["⚠ This message crashed th", "Hi."]
    assert len(setup.backend.prompts) == 1


async def test_fenced_worker_drops_its_answer(database: Database) -> None:
    go_on = asyncio.Event()
    setup = Setup(database, backend=FakeBackend([go_on, "Too late."]))
    await setup.receive("hello")
    async with running_worker(setup) as worker:
        await wait_until(lambda: len(setup.backend.prompts) == 1)
        await setup.take_over()
        go_on.set()
        await worker
    assert setup.texts == []
    assert await setup.history() == []
    assert len(await setup.crashes_of_pending()) == 1


async def test_lost_lease_stops_the_model(database: Database) -> None:
    never = asyncio.Event()
    setup = Setup(database, backend=FakeBackend(["Once ", never]))
    await setup.receive("hello")
    async with running_worker(setup) as worker:
        await wait_until(lambda: len(setup.backend.prompts) == 1)
        await setup.take_over()
        await advance_in_steps(setup.clock, 6)
        await wait_until(worker.done)
        assert worker.exception() is None
    assert setup.backend.closed_early == 1


async def test_lease_is_renewed_while_the_model_generates(database: Database) -> None:
    go_on = asyncio.Event()
    setup = Setup(database, backend=FakeBackend([go_on, "At last."]))
    await setup.receive("hello")
    async with running_worker(setup) as worker:
        await wait_until(lambda: len(setup.backend.prompts) == 1)
        for _ in range(6):
            await advance_in_steps(setup.clock, 5)
        assert await setup.conversations.begin([CHAT], "other", 15) == []
        go_on.set()
        await worker
    assert setup.texts == ["At last."]


async def test_cancellation_does_not_count_as_a_crash(database: Database) -> None:
    never = asyncio.Event()
    setup = Setup(database, backend=FakeBackend([never]))
    await setup.receive("hello")
    async with running_worker(setup) as worker:
        await wait_until(lambda: len(setup.backend.prompts) == 1)
        worker.cancel()
        with suppress(asyncio.CancelledError):
            await worker
        assert worker.cancelled()
    assert setup.backend.closed_early == 1
    assert await setup.crashes_of_pending() == [0]
    assert await setup.conversations.begin([CHAT], "other", 15) != []


async def test_full_disk_does_not_count_as_a_crash(database: Database) -> None:
    setup = Setup(database, backend=FakeBackend(["Hi."]))
    setup.conversations.full = True
    for _ in range(10):
        with pytest.raises(StoreError):
            await setup.say(*([] if await setup.crashes_of_pending() else ["hello"]))
    setup.conversations.full = False
    await setup.work()
    assert setup.texts == ["Hi."]


async def test_stopping_worker_starts_no_further_message(database: Database) -> None:
    go_on = asyncio.Event()
    setup = Setup(database, backend=FakeBackend([go_on, "one"], ["two"]))
    await setup.receive("a", "b")
    async with running_worker(setup) as worker:
        await wait_until(lambda: len(setup.backend.prompts) == 1)
        setup.worker.stop_after_current()
        go_on.set()
        await worker
    assert setup.texts == ["one"]
    assert await setup.crashes_of_pending() == [0]


async def test_conversation_claimed_by_another_worker_is_skipped(database: Database) -> None:
    setup = Setup(database, backend=FakeBackend())
    await setup.receive("hello")
    await setup.conversations.begin([CHAT], "other", 15)
    await setup.work()
    assert setup.backend.prompts == []


async def test_turn_leaves_no_tasks_running(database: Database) -> None:
    setup = Setup(database, backend=FakeBackend())
    before = asyncio.all_tasks()
    await setup.say("hello")
    await run_ready_tasks()
    assert asyncio.all_tasks() == before


async def test_retrieved_stories_are_in_the_prompt(
    database: Database,
) -> None:
    async def retrieve(preset: Preset, newest: str, _payer: object) -> RetrievedStories:
        assert (preset.name, newest) == ("nora", "Was there a storm?")
        return {newest: [Story(0, "A storm took the roof.", 0.9)]}

    backend = FakeBackend(["Yes."])
    persona: dict[str, object] = {"persona": "You keep a light.\n{{RAG-dialogue}}"}
    setup = Setup(database, backend=backend, preset=persona, retrieve_stories=retrieve)

    await setup.say("Was there a storm?")

    assert backend.prompts[0].messages[0].content == (
        "You keep a light.\n###\nA storm took the roof."
    )


async def test_pasted_key_is_neither_kept_nor_sent_and_its_author_is_told(
    database: Database,
) -> None:
    setup = Setup(database, backend=FakeBackend(["Fine."]))
    intake = InboxIntake(setup.inbox, lambda _: None)
    said = make_incoming("my key is sk-proj-CANARY00000000000000001 ok?")
    await intake.receive([said], {})
    await setup.work()
    assert setup.texts[0] == "Fine."
    assert setup.texts[1].startswith("⚠ Your message seems to hold a token")
    assert await setup.history() == [
        ("user", "my key is ***0001 ok?"),
        ("assistant", "Fine."),
    ]
    assert "CANARY" not in setup.backend.prompts[0].messages[-1].content


async def test_settings_why_names_the_reason_of_each_message(database: Database) -> None:
    setup = Setup(
        database, backend=FakeBackend(["Hi."]), preset={"role_name": "Nora", "context": "addressed"}
    )
    await setup.say(
        make_incoming("good morning all", key="5:1", wake=None),
        make_incoming("hi Nora", key="5:2", wake=None),
        make_incoming("/settings why", key="5:3", wake=WakeReason.COMMAND),
    )
    assert setup.texts[-1].splitlines() == [
        "Scope: shared – everybody here shares one conversation",
        "Alice: “good morning all” – not answered: nora is the only character here, "
        "was not addressed",
        "Alice: “hi Nora” – answered: nora is the only character here, was called by name",
    ]

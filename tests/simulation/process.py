"""One process of a simulated installation: the product's parts, wired as the service wires them.

It has all roles. What differs from `bot.service.container` is what needs an operating system: the
clock, the signals, the connections, the model and the platforms.
"""

import asyncio
import contextlib
import random
from collections.abc import AsyncGenerator
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing_extensions import override
from bot.chat.incoming import Address
from bot.chat.incoming import Incoming
from bot.chat.incoming import MediaItem
from bot.chat.incoming import Request
from bot.chat.incoming import Said
from bot.chat.incoming import source_of
from bot.chat.outgoing import OutboxRow
from bot.chat.prompt import Delta
from bot.chat.prompt import Finish
from bot.chat.prompt import FinishReason
from bot.chat.prompt import GenerationEvent
from bot.chat.prompt import Prompt
from bot.chat.receipt import Receipt
from bot.chat.session import ClaimedMessage
from bot.commands.admin_notes import AdminNotes
from bot.commands.answers import AnswerButtons
from bot.commands.authority import AdminCheck
from bot.commands.authority import AnonymousAdmins
from bot.commands.handlers import CommandHandlers
from bot.commands.personas import UserPersonas
from bot.commands.privacy import Forgetting
from bot.commands.reports import ContextView
from bot.delivery.sender import LaneDelivery
from bot.delivery.sender import Sender
from bot.errors import StoreError
from bot.errors import Unreachable
from bot.intake import HistoryRouter
from bot.intake import InboxIntake
from bot.media.attachment_reader import AttachmentReader
from bot.media.voice_messages import VoiceMessages
from bot.memory import Summarizer
from bot.memory import no_stories
from bot.ports import Clock
from bot.ports import Signals
from bot.prompting.presets.preset import Preset
from bot.replying.live_reply import LiveReplies
from bot.routing.decide import DecisionLog
from bot.routing.presets import HistoryScopes
from bot.routing.presets import PresetResolver
from bot.runtime.in_process import InProcessSignals
from bot.runtime.keyed_worker_pool import KeyedWorkerPool
from bot.service.exclusive_role import ExclusiveRole
from bot.storage.chat_settings import SqlChatSettings
from bot.storage.conversations import Conversations
from bot.storage.database import Database
from bot.storage.forgetting import PersonalData
from bot.storage.history_index import SqlHistoryIndex
from bot.storage.inbox import SqlInbox
from bot.storage.leases import SqlRoleLeases
from bot.storage.operation import SqlMessageNotes
from bot.storage.outbox import SenderIdentity
from bot.storage.outbox import SqlOutbox
from bot.storage.receipts import Receipts
from bot.storage.retention import delete_expired
from bot.storage.summaries import SqlSummaries
from bot.turn.answer import AnswerPipeline
from bot.turn.claims import LeaseKeeper
from bot.turn.finishing import TurnStages
from bot.turn.prompt_inputs import ChannelReader
from bot.turn.prompt_inputs import PromptSources
from bot.turn.signals import CONVERSATIONS
from bot.turn.signals import ArrivalSignals
from bot.turn.signals import MissedSignals
from bot.turn.signals import StopRequests
from bot.turn.worker import ConversationWorker
from tests.fakes import FakeBackend
from tests.simulation.database import DatabaseServer
from tests.simulation.database import SimulatedConnections
from tests.simulation.event_loop import LoopProcess
from tests.simulation.event_loop import SimulatedLoop
from tests.simulation.platform import SETTLE_SECONDS
from tests.simulation.platform import SimulatedPlatform
from tests.support.model_server import unanswered_questions
from tests.support.transcripts import expected_answer


_MAX_KEYS = 100
_JANITOR_SECONDS = 300.0
_RECEIPT_DAYS = 30.0


class SimulatedClock(Clock):
    """The clocks of one machine: its time of day can be wrong, and jump."""

    def __init__(self, loop: SimulatedLoop, server: DatabaseServer) -> None:
        self.seconds_ahead = 0.0
        self._loop = loop
        self._server = server

    @override
    def now(self) -> float:
        return self._server.now() + self.seconds_ahead

    @override
    def monotonic(self) -> float:
        return self._loop.time()

    @override
    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    @override
    def call_later(self, seconds: float, callback: Callable[[], None]) -> Callable[[], None]:
        return self._loop.call_later(seconds, callback).cancel


class SimulatedBus:
    """Carries signals between processes; each may be late or lost."""

    def __init__(self, loop: SimulatedLoop, rng: random.Random) -> None:
        self.lost_share = 0.0
        self.members: list[tuple[LoopProcess, InProcessSignals]] = []
        self._loop = loop
        self._rng = rng

    def publish(self, sender: LoopProcess, topic: str, keys: Sequence[str]) -> None:
        """Tell the others."""
        self.members = [one for one in self.members if not one[0].is_dead]
        for process, signals in self.members:
            if process is not sender and self._rng.random() >= self.lost_share:
                delay = self._rng.uniform(0, 0.05)
                self._loop.within(process, delay, lambda to=signals: to.publish(topic, keys))  # type: ignore[misc]


class SimulatedSignals(Signals):
    """The signals of one process: at once here, soon elsewhere."""

    def __init__(self, process: LoopProcess, bus: SimulatedBus) -> None:
        self._here = InProcessSignals()
        self._elsewhere = InProcessSignals()
        self._process = process
        self._bus = bus
        bus.members.append((process, self._elsewhere))

    @override
    def subscribe(
        self,
        topic: str,
        handler: Callable[[Sequence[str]], None],
        elsewhere: Callable[[Sequence[str]], None] | None = None,
    ) -> None:
        self._here.subscribe(topic, handler)
        self._elsewhere.subscribe(topic, elsewhere or handler)

    @override
    def publish(self, topic: str, keys: Sequence[str]) -> None:
        self._here.publish(topic, keys)
        self._bus.publish(self._process, topic, keys)

    @property
    @override
    def reaches_others(self) -> bool:
        return True

    @override
    async def find_problem(self) -> str | None:
        return None


class SimulatedModel(FakeBackend):
    """Gives the answers that the checker expects, piece by piece."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self._rng = rng

    @override
    async def generate(self, prompt: Prompt) -> AsyncGenerator[GenerationEvent, None]:
        asked = [{"role": one.role, "content": one.content} for one in prompt.messages]
        answer = " ".join(map(expected_answer, unanswered_questions(asked)))
        pieces = self._rng.randint(1, 5)
        size = -(-len(answer) // pieces)
        longest = 8.0 if self._rng.random() < 0.1 else 0.8
        for start in range(0, len(answer), size):
            await asyncio.sleep(self._rng.uniform(0.01, longest))
            yield Delta(answer[start : start + size])
        yield Finish(FinishReason.STOP)


class SimulatedProcess:
    """A process with all roles, from its start on."""

    def __init__(
        self,
        loop: SimulatedLoop,
        name: str,
        server: DatabaseServer,
        platforms: Mapping[str, SimulatedPlatform],
        bus: SimulatedBus,
        rng: random.Random,
    ) -> None:
        self.process = loop.new_process(name)
        self.clock = clock = SimulatedClock(loop, server)
        self._platforms = platforms
        database = Database(SimulatedConnections(server))
        self._database = database
        signals = SimulatedSignals(self.process, bus)
        identity = SenderIdentity(name, SETTLE_SECONDS)
        self.conversations = Conversations(database, clock, identity)
        self.outbox = SqlOutbox(database, clock, identity)
        inbox = SqlInbox(database, clock)
        self._leases = SqlRoleLeases(database, name, clock)
        self._sender = Sender(self.outbox, platforms, clock, settle_seconds=SETTLE_SECONDS)
        self.lane_pool = KeyedWorkerPool[OutboxRow](
            "lanes",
            signals=signals,
            ready_keys=lambda limit: self.outbox.due_lanes(limit, platforms.keys()),
            claim=self._sender.take,
            process=self._sender.work,
            max_concurrent=_MAX_KEYS,
            clock=clock,
        )
        delivery = LaneDelivery(self._sender.sent_rows, self.lane_pool.wake, self.lane_pool.start)
        leases = LeaseKeeper(self.conversations, clock)
        replies = LiveReplies(self.conversations, platforms, delivery, clock, leases.is_certain)
        chat_settings = SqlChatSettings(database, clock)
        preset = Preset.model_validate(
            {"name": "tester", "provider": "test", "model": "m", "busy": {"at_most": 100}}
        )
        resolver = PresetResolver({"tester": preset}, "tester", chat_settings, {"tester": 1})
        anonymous = AnonymousAdmins(chat_settings)
        admins = AdminCheck((), _is_admin, clock, anonymous)
        personas = UserPersonas(chat_settings)
        scopes = HistoryScopes(chat_settings, resolver)
        index = SqlHistoryIndex(database)
        router = HistoryRouter(scopes.find, index)
        self._stops = StopRequests(signals, admins.is_known_admin)
        self.intake = InboxIntake(
            inbox, lambda keys: signals.publish(CONVERSATIONS, keys), self._stops.announce, router
        )
        personal_data = PersonalData(database, clock)
        commands = CommandHandlers(
            resolver,
            admins,
            ContextView(Receipts(database), _write_receipt, str),
            personas,
            personal_data,
            scopes,
            anonymous,
            notes=AdminNotes(chat_settings, {}),
        )
        backends = {"test": SimulatedModel(rng)}
        sources = PromptSources(
            self.conversations,
            resolver,
            personas,
            no_stories,
            Summarizer(SqlSummaries(database), backends),
            ChannelReader(_read_nothing),
            AttachmentReader(_download_nothing),
            backends,
        )
        arrivals = ArrivalSignals(signals)
        notes = SqlMessageNotes(database, clock)
        stages = TurnStages(
            self.conversations,
            (),
            clock,
            resolver,
            commands,
            AnswerPipeline(sources, backends, replies, clock, rng.random),
            replies,
            self._stops,
            AnswerButtons(self.conversations, inbox, admins, router.route_press),
            Forgetting(personal_data, personas, index, self._receive),
            arrivals,
            VoiceMessages(_download_nothing, backends),
            DecisionLog(notes, clock),
            notes,
            rng.random,
        )
        self.worker = ConversationWorker(stages, name, leases)
        self.conversation_pool = KeyedWorkerPool[ClaimedMessage](
            CONVERSATIONS,
            signals=signals,
            ready_keys=lambda limit: self.conversations.ready(limit, platforms.keys()),
            claim=self._claim,
            process=self.worker.work,
            max_concurrent=_MAX_KEYS,
            clock=clock,
            wakes_keys=True,
        )
        self._missed = MissedSignals(inbox, self._stops, arrivals, clock)

    async def run(self) -> None:
        """Work until cancelled."""
        async with asyncio.TaskGroup() as jobs:
            for platform in self._platforms.values():
                jobs.create_task(self._receive_from(platform))
            jobs.create_task(self.conversation_pool.run())
            jobs.create_task(self.lane_pool.run())
            jobs.create_task(self._sender.late_duplicates.run(self.lane_pool.wake))
            jobs.create_task(self.worker.keep_leases())
            jobs.create_task(self._stops.run())
            jobs.create_task(self._missed.run())
            janitor = ExclusiveRole("delete expired rows", self._leases, self.clock)
            jobs.create_task(janitor.run(self._delete_expired))

    async def _receive_from(self, platform: SimulatedPlatform) -> None:
        role = ExclusiveRole(f"receive {platform.name}", self._leases, self.clock)

        async def receive() -> None:
            while True:
                try:
                    await platform.receive(self.intake)
                except StoreError:  # nothing was acknowledged
                    await self.clock.sleep(1)

        await role.run(receive)

    async def _delete_expired(self) -> None:
        while True:
            with contextlib.suppress(StoreError):
                await delete_expired(self._database, self.clock, _RECEIPT_DAYS)
            await self.clock.sleep(_JANITOR_SECONDS)

    async def _claim(self, keys: Sequence[str]) -> Mapping[str, ClaimedMessage]:
        return await self.worker.claim([key for key in keys if source_of(key) in self._platforms])

    async def _receive(self, events: Sequence[Incoming]) -> None:
        await self.intake.receive(events, {})


async def _is_admin(_asked: Request) -> bool:
    return False


async def _write_receipt(_number: int, _receipt: Receipt) -> str:
    return ""


async def _read_nothing(_said: Said, _limit: int) -> Sequence[Said]:
    return ()


async def _download_nothing(_address: Address, _item: MediaItem, _max_bytes: int) -> bytes:
    raise Unreachable("there are no files here")

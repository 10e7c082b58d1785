"""A worker on a real database, with fakes for the model and the platform."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sqlalchemy import select, update
from typing_extensions import override

from bot.chat.command import ButtonAction, encode_button
from bot.chat.incoming import (
    Address,
    ButtonPress,
    Incoming,
    IncomingMessage,
    MediaItem,
    Person,
    Quote,
    Request,
)
from bot.chat.outgoing import Limits, OutboxRow
from bot.chat.session import Claim, InboxMessage, RemainingWork, Session, TurnResult
from bot.console.prompt_preview import PromptPreview
from bot.delivery.pacing import DeliverySettings
from bot.errors import PlatformError, StoreError
from bot.intake import InboxIntake
from bot.memory.stories import RetrieveStories
from bot.platforms.spec import PlatformSpec
from bot.ports import Backend, ConversationMemory, Delivery, Embedder, ToolServer
from bot.prompting.presets.preset import Preset
from bot.routing.presets import PresetResolver
from bot.runtime.in_process import InProcessSignals
from bot.runtime.tasks import cancel_and_wait
from bot.service.container import Container
from bot.service.options import RunOptions
from bot.service.resources import ModelResources, Resources
from bot.settings import Settings
from bot.storage.chat_settings import SqlChatSettings
from bot.storage.conversations import Conversations
from bot.storage.database import Database
from bot.storage.forgetting import Tombstone
from bot.storage.outbox import SenderIdentity
from bot.storage.tables import conversation, inbox
from bot.templates.renderer import Renderer
from bot.turn.limits.rate_limits import LimitSettings
from bot.turn.signals import CONVERSATIONS_TOPIC
from tests.fakes import LIMITS, FakeBackend, FakeClock, FakePlatform, FakeSurface, ScriptStep
from tests.media.file_samples import picture
from tests.samples import ALICE, BOB, format_receipt, make_incoming, mask_secret, read_session
from tests.waiting import PATIENCE_SECONDS, advance_in_steps, wait_until

CHAT = "telegram:5"


def failure(problem: str, key: str = "5:1") -> str:
    """Return the notice that people get when the answer to a message fails."""
    message = InboxMessage(0, make_incoming(key=key), 0)
    return f"⚠ {problem} (error {message.error_id})"


WITHOUT_NONCES = replace(LIMITS, deduplicates_sends=False)
NORA = {"name": "nora", "provider": "p", "model": "m"}


FILES = {"cat": picture(), "notes": b"milk\neggs"}


class SeeingFakeBackend(FakeBackend):
    @override
    def sees_images(self, model: str) -> bool:
        return model == "m"


async def download(_address: Address, item: MediaItem, max_bytes: int) -> bytes:
    return FILES[item.source][:max_bytes]


class FullDiskConversations(Conversations):
    """Conversations that cannot store the end of a message while the disk is `full`."""

    full = False

    @override
    async def finish(
        self, claim: Claim, message: InboxMessage, result: TurnResult, *, begins_next: bool = True
    ) -> RemainingWork:
        if self.full:
            raise StoreError("the database failed: database or disk is full")
        return await super().finish(claim, message, result, begins_next=begins_next)


class FakePrompts:
    """A prompt writer that describes an exact prompt in one short line."""

    format, mask = staticmethod(format_receipt), staticmethod(mask_secret)


class FolderlessContainer(Container):
    @override
    def _record_tombstone(self, tombstone: Tombstone) -> None:
        """Ignore tombstones."""


class FakeMemory(ConversationMemory):
    """A memory that records calls to end a session or forget a conversation."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    @override
    async def end_session(self, conversation: str) -> None:
        self.calls.append(f"end_session {conversation}")

    @override
    async def forget(self, conversation: str) -> None:
        self.calls.append(f"forget {conversation}")


class Setup(Delivery):
    """The container with fakes; answers are delivered immediately to a fake channel.

    The model answers with `scripts`. `parts` replace parts of the container by name.
    """

    def __init__(
        self,
        database: Database,
        *scripts: Sequence[ScriptStep],
        backend: FakeBackend | None = None,
        limits: Limits = LIMITS,
        preset: Mapping[str, object] | None = None,
        owner: str = "me",
        surface: FakeSurface | None = None,
        clock: FakeClock | None = None,
        others: Sequence[dict[str, object]] = (),
        dice: Callable[[], float] = lambda: 0.99,
        retrieve_stories: RetrieveStories | None = None,
        embedder: Embedder | None = None,
        fallback: FakeBackend | None = None,
        tool_servers: Mapping[str, ToolServer] | None = None,
        settings: Mapping[str, Any] | None = None,
        **parts: Any,
    ) -> None:
        self.database = database
        self.backend = backend = backend or FakeBackend(*scripts)
        self.platform_error: PlatformError | None = None
        """The error that the platform raises if it is asked who is an admin."""
        self.surface = surface or FakeSurface(limits)
        self.clock = clock or FakeClock()
        self.memory = FakeMemory()
        self._sending: dict[str, asyncio.Task[None]] = {}
        self.urgent_deliveries: list[bool] = []
        presets = [Preset.model_validate({**NORA, **each}) for each in [preset or {}, *others]]
        default = presets[0].name
        chat_settings = SqlChatSettings(database, self.clock)
        self.resolver = PresetResolver(
            {each.name: each for each in presets}, default, chat_settings, {default: 3}
        )
        self.signals = InProcessSignals()
        backends: dict[str, Backend] = {"p": backend, "q": fallback or backend}
        models = ModelResources(
            Renderer(), backends, retrieve_stories, embedder, tool_servers or {}
        )
        limits_of_people = LimitSettings(answers_per_person=0, waiting_in_conversation=0)
        chosen = Settings(
            data_dir=Path("nowhere"),
            delivery=DeliverySettings(settle_seconds=0),
            **{"limits": limits_of_people, **(settings or {})},
        )
        resources = Resources(database, {}, self.signals, chat_settings, self.resolver, models)
        specs = [PlatformSpec(kind=kind, factory="") for kind in ("telegram", "discord")]
        container = FolderlessContainer(
            chosen, resources, specs, print, RunOptions(), self.clock, owner
        )
        platforms = {one.kind: FakePlatform(one.kind, self.surface) for one in specs}
        replaced = {
            "platforms": platforms,
            "rate_limited_surfaces": lambda **_: dict.fromkeys(platforms, self.surface),
            "is_platform_admin": self._is_platform_admin,
            "answer_limits": None,
            "prompt_writer": FakePrompts(),
            "_delivery": self,
            "_tell_workers_of_sent_row": lambda *_: None,
        }
        vars(container).update(replaced | parts)
        self.conversations = container.conversations = FullDiskConversations(
            database, self.clock, SenderIdentity(owner, 0)
        )
        pipeline = container.pipeline
        tools = replace(pipeline.model_requests.tools, draw_random=dice)
        requests = replace(pipeline.model_requests, tools=tools)
        container.pipeline = replace(pipeline, dice=dice, model_requests=requests)
        container.turn_services = replace(
            container.turn_services, dice=dice, memories=[self.memory]
        )
        self.container = container
        self.worker = container.worker
        self.inbox = container.inbox
        self.intake = InboxIntake(
            container.inbox,
            lambda keys: self.signals.publish(CONVERSATIONS_TOPIC, keys),
            container.stop_requests.announce,
            container.history_router,
            find_opted_out=container.history_scopes.find_opted_out,
        )
        self.sender = container._sender
        self.sender.wake = self._deliver_lanes
        self.router = container.history_router
        self.buttons = container.answer_buttons
        self.audit = container.audit_log
        self.history_scopes = container.history_scopes
        self.summarizer = container.summarizer
        self.pauses = container.answering_pauses
        self.stops = container.stop_requests
        self.arrivals = container.arrivals
        self.notes = container.message_notes
        self.decisions = container.decision_log
        self.preview = PromptPreview(
            container.prompt_sources,
            self.resolver,
            self.conversations,
            container.spending,
            self.clock,
            self.router.preview_route,
            dice,
        )

    @property
    def texts(self) -> list[str]:
        """The texts of the bot's messages in the channel."""
        return list(self.surface.messages.values())

    async def _is_platform_admin(self, asked: Request) -> bool:
        if self.platform_error is not None:
            raise self.platform_error
        return asked.author != BOB

    @override
    def deliver(self, lane: str, row: OutboxRow | None, *, is_urgent: bool = False) -> None:
        """Send a row, or the due rows of a lane, in the background; each lane keeps its order."""
        self.urgent_deliveries.append(is_urgent)
        before = self._sending.get(lane)
        self._sending[lane] = asyncio.create_task(self._send(lane, row, before))

    def _deliver_lanes(self, lanes: Sequence[str]) -> None:
        for lane in lanes:
            self.deliver(lane, None)

    async def _send(
        self, lane: str, row: OutboxRow | None, before: asyncio.Task[None] | None
    ) -> None:
        if before is not None:
            await asyncio.wait([before])
        rows = [row] if row else (await self.sender.claim([lane])).values()
        for one in rows:
            await self.sender.deliver_lane(one)

    @override
    async def wait_until_sent(self, row_id: int) -> str:
        return await self.sender.sent_row_tracker.wait_until_sent(row_id)

    async def work(self, key: str = CHAT) -> None:
        """Process and deliver everything in a conversation, as the pools do."""
        while not self.worker._finisher.is_stopping and (claimed := await self.worker.claim([key])):
            await self.worker.process_messages(claimed[key])
        await self.finish_sending()

    async def finish_sending(self) -> None:
        """Wait until all queued messages are sent."""
        while sending := [task for task in self._sending.values() if not task.done()]:
            await asyncio.wait(sending)
        for task in self._sending.values():
            task.result()

    async def receive(self, *said: str | Incoming) -> None:
        for one in said:
            if isinstance(one, str):
                number = await self._count_received() + 1
                one = make_incoming(one, key=f"5:{number}")
            await self.intake.receive([one], {})

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
    """Process the conversation in the background, including /stop commands, during the block."""
    task = asyncio.create_task(setup.work())
    beside = [asyncio.create_task(one) for one in (setup.worker.leases.run(), setup.stops.run())]
    try:
        yield task
    finally:
        await cancel_and_wait([task, *beside])


@asynccontextmanager
async def working(setup: Setup, *said: str | Incoming) -> AsyncIterator[asyncio.Task[None]]:
    """Receive messages, and process them in the background during the block."""
    await setup.receive(*said)
    async with running_worker(setup) as worker:
        yield worker


@asynccontextmanager
async def answering(setup: Setup, *said: str | Incoming) -> AsyncIterator[asyncio.Task[None]]:
    """Process messages in the background; enter the block once the model has got a request."""
    before = len(setup.backend.prompts)
    async with working(setup, *said) as worker:
        await wait_until(lambda: len(setup.backend.prompts) > before)
        yield worker


async def pass_time_until(setup: Setup, condition: Callable[[], object]) -> None:
    """Advance the clock until the condition is true."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not condition():
            await advance_in_steps(setup.clock, 1)


async def stop_while_answering(
    setup: Setup, message: str | IncomingMessage, *stops: Incoming
) -> None:
    """Ask a question, and send commands or presses after its answer has started."""
    async with answering(setup, message) as worker:
        await advance_in_steps(setup.clock, 2)
        await setup.receive(*stops)
        await worker


async def texts_before(
    setup: Setup,
    go_on: asyncio.Event,
    said: str | Incoming = "hello",
    *,
    is_streamed: bool = True,
) -> list[str]:
    """Process a message; return what the channel shows before `go_on` lets the model finish."""
    async with answering(setup, said) as worker:
        await advance_in_steps(setup.clock, 3)
        if is_streamed:
            await pass_time_until(setup, lambda: set(setup.texts) - {"…"})
        before = setup.texts
        go_on.set()
        await worker
    return before


FIRST = "telegram:5:1/0"
"""The name of the first part of the answer to the first message."""


def pressed(
    action: ButtonAction, part: str = FIRST, *, by: Person = ALICE, number: int = 0, key: str = "1"
) -> ButtonPress:
    address = Address("telegram", "5")
    return ButtonPress(
        address=address,
        external_key=f"cb{key}",
        message_id="900",
        author=by,
        data=encode_button(action, part, number),
        at=datetime(2026, 11, 21, 12, 5, tzinfo=UTC),
        scopes=(address.lane,),
        interaction="77",
    )


def on(message_id: str, text: str, *, key: str, by: Person = ALICE) -> IncomingMessage:
    """Return a command that replies to a message."""
    said = make_incoming(text, key=key, author=by)
    return replace(said, quote=Quote(None, message_id, ""))

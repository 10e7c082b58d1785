"""The composition root: plug everything in, run it, and close it in reverse order."""

import asyncio
import contextlib
import os
import secrets
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

import structlog

from bot.backends.exact_prompt import ExactPromptWriter
from bot.chat.incoming import Incoming
from bot.commands.admins import AdminCheck
from bot.commands.context import ContextView
from bot.commands.handlers import CommandHandlers
from bot.commands.personas import UserPersonas
from bot.console.health import serving
from bot.delivery.rate_limits import RateLimitedSurface, RateLimiter
from bot.delivery.sender import Sender
from bot.errors import StoreError
from bot.importers.character_files import load_presets_with_stories
from bot.intake.intake import InboxIntake
from bot.platforms.registry import make_platform, terminal_platforms
from bot.platforms.spec import PlatformContext, PlatformSpec
from bot.ports import Backend, ConversationMemory, Coordinator, Platform
from bot.prompting.presets.files import preset_version
from bot.replying.live_replies import LiveReplies
from bot.routing.command_specs import COMMANDS
from bot.routing.preset_resolver import PresetResolver
from bot.runtime.clock import SystemClock
from bot.runtime.keyed_worker_pool import KeyedWorkerPool
from bot.runtime.shipped_files import presets_folder
from bot.runtime.tasks import cancel_and_wait
from bot.service.platform_supervisor import PlatformSupervisor
from bot.service.wiring import (
    make_backends,
    open_story_retriever,
    provide_model,
    warm,
)
from bot.settings import Settings, secrets_of
from bot.storage.coordination.embedded_valkey import run_embedded_valkey
from bot.storage.coordination.redis import open_coordinator
from bot.storage.data_dir import lock_data_dir
from bot.storage.sql.chat_settings import SqlChatSettings
from bot.storage.sql.conversations import SqlConversations
from bot.storage.sql.database import Database, open_database
from bot.storage.sql.inbox import SqlInbox
from bot.storage.sql.outbox import SqlOutbox
from bot.storage.sql.preset_versions import SqlPresetVersions
from bot.storage.sql.receipts import SqlReceipts
from bot.storage.sql.retention import delete_expired
from bot.storage.sql.summaries import SqlSummaries
from bot.stories.retrieve import RetrieveStories
from bot.summaries.summarizer import Summarizer
from bot.telemetry.logs import SecretMasker
from bot.templates.renderer import Renderer
from bot.turn.answer import AnswerPipeline
from bot.turn.prompt_sources import PromptSources
from bot.turn.worker import ConversationWorker, TurnStages

_log = structlog.get_logger(__name__)
_DRAIN_SECONDS = 10.0
_MOST_WALKS = 4000
_MOST_LANES = 4000
_FORGET_EVERY_SECONDS = 3600.0
_SENDING_SECONDS = 30.0  # a request ends within 10 s, so this row's sender is gone


class App:
    """Everything plugged together; `running` makes one."""

    def __init__(
        self,
        settings: Settings,
        database: Database,
        coordinator: Coordinator,
        resolver: PresetResolver,
        backends: Mapping[str, Backend],
        retrieve_stories: RetrieveStories,
        exact_prompts: ExactPromptWriter,
        progress: Callable[[str], None],
        platforms: Sequence[PlatformSpec],
    ) -> None:
        self.settings = settings
        self._exact_prompts = exact_prompts
        self._retrieve_stories = retrieve_stories
        self._progress = progress
        self.clock = SystemClock()
        self.owner = _owner(settings)
        self.inbox = SqlInbox(database, self.clock)
        self.conversations = SqlConversations(database, self.clock)
        self.outbox = SqlOutbox(database, self.clock)
        self.resolver = resolver
        self.personas = UserPersonas(SqlChatSettings(database, self.clock))
        self.coordinator = coordinator
        self.backends = backends
        self.database = database
        context = PlatformContext(
            commands=COMMANDS,
            complete_preset=self.resolver.complete,
            wait_until_idle=self.idle,
            clock=self.clock,
        )
        self.platforms = {
            spec.kind: make_platform(spec, settings.platform(spec), context) for spec in platforms
        }
        self._is_quiet = any(spec.uses_terminal for spec in platforms)
        self._plug_stages()

    def _plug_stages(self) -> None:
        limiter = RateLimiter()
        surfaces = {name: one.surface for name, one in self.platforms.items()}
        self.sender = Sender(
            self.outbox,
            {name: RateLimitedSurface(one, limiter, self.clock) for name, one in surfaces.items()},
            self.clock,
            settle_seconds=self.settings.delivery.settle_seconds,
        )
        self.due_lanes = self._worker_pool(
            "lanes", self.outbox.due_lanes, self.sender.work, _MOST_LANES
        )
        self.summarizer = Summarizer(SqlSummaries(self.database), self.backends)
        replies = LiveReplies(
            self.conversations,
            {
                name: RateLimitedSurface(one, limiter, self.clock, best_effort=True)
                for name, one in surfaces.items()
            },
            self.sender.wait_until_sent,
            self.due_lanes.wake,
            self.clock,
        )
        self.worker = ConversationWorker(
            self.conversations,
            [each for each in self.backends.values() if isinstance(each, ConversationMemory)],
            TurnStages(self.resolver, self._command_handlers(), self._pipeline(replies), replies),
            self.owner,
            self.clock,
        )
        self.conversation_workers = self._worker_pool(
            "walks", self._waiting, self.worker.work, _MOST_WALKS
        )
        intake = InboxIntake(self.inbox, self.conversation_workers.wake)
        self.supervisor = PlatformSupervisor(
            self.platforms.values(), intake, self.clock, self._announce
        )

    def _command_handlers(self) -> CommandHandlers:
        return CommandHandlers(
            self.resolver,
            AdminCheck(self.settings.admins, self._is_platform_admin),
            ContextView(
                SqlReceipts(self.database), self._exact_prompts.write, self._exact_prompts.mask
            ),
            self.personas,
        )

    def _pipeline(self, replies: LiveReplies) -> AnswerPipeline:
        sources = PromptSources(
            self.conversations,
            self.resolver,
            self.personas,
            self._retrieve_stories,
            self.summarizer,
        )
        return AnswerPipeline(sources, self.backends, replies, self.clock)

    def _worker_pool(
        self,
        queue: str,
        pending_keys: Callable[[int], Awaitable[Sequence[str]]],
        process: Callable[[str], Awaitable[None]],
        max_concurrent: int,
    ) -> KeyedWorkerPool:
        return KeyedWorkerPool(
            queue,
            coordinator=self.coordinator,
            pending_keys=pending_keys,
            process=process,
            owner=self.owner,
            max_concurrent=max_concurrent,
            clock=self.clock,
        )

    # --- running ----------------------------------------------------------------------------

    async def serve(self) -> None:
        """Work until a signal or the end of input; then drain.

        Raises:
            PlatformFatal: a platform refused us for good and none is left.
            SettingsError: the port is taken.
        """
        alone = self.database.is_sqlite  # and we hold its lock: nobody else can be sending
        await self.conversations.release_all(self.owner)
        await self.outbox.expire_sending(
            older_than_seconds=0 if alone else _SENDING_SECONDS,
            settle_seconds=self.settings.delivery.settle_seconds,
        )
        async with serving(self.settings.console, self._probes()) as address:
            self._announce(f"health at {address}/readyz")
            jobs = [
                asyncio.create_task(job)
                for job in (
                    self.supervisor.until_stopped(),
                    self.conversation_workers.run(),
                    self.due_lanes.run(),
                    self.summarizer.run(),
                    self._give_up_stale(),
                    self._forget_old(),
                )
            ]
            try:
                ended, _ = await asyncio.wait(jobs, return_when=asyncio.FIRST_COMPLETED)
                for job in ended:
                    await job  # a worker pool never ends: it raises what broke it
            finally:
                await self._drain()
                await self.supervisor.close()
                await cancel_and_wait(jobs)

    async def idle(self) -> None:
        """Wait until everything heard was answered and sent."""
        while (
            await self._waiting(1)
            or self.conversation_workers.busy_count
            or await self.outbox.due_lanes(1)
            or self.due_lanes.busy_count
        ):
            await self.clock.sleep(0.02)

    async def _drain(self) -> None:
        """Finish what was begun: first the answers, then what is queued to be sent."""
        self.worker.stopping = True
        await self.conversation_workers.drain(_DRAIN_SECONDS)
        with contextlib.suppress(TimeoutError, StoreError):
            async with asyncio.timeout(_DRAIN_SECONDS):
                while await self.outbox.due_lanes(1) or self.due_lanes.busy_count:
                    await self.clock.sleep(0.05)
        await self.due_lanes.drain(0)

    async def _give_up_stale(self) -> None:
        """Settle what a sender on another machine left behind when it died."""
        while True:
            await self.clock.sleep(_SENDING_SECONDS / 3)
            try:
                await self.outbox.expire_sending(
                    older_than_seconds=_SENDING_SECONDS,
                    settle_seconds=self.settings.delivery.settle_seconds,
                )
            except StoreError as error:
                _log.warning("store_failed", reason=str(error))

    async def _forget_old(self) -> None:
        """Keep the database from growing with what nobody needs any more."""
        while True:
            await self.clock.sleep(_FORGET_EVERY_SECONDS)
            try:
                forgotten = await delete_expired(
                    self.database, self.clock, self.settings.receipt_days
                )
            except StoreError as error:
                _log.warning("store_failed", reason=str(error))
            else:
                _log.info("forgotten", rows=forgotten)

    # --- what the parts ask -----------------------------------------------------------------

    async def _waiting(self, limit: int) -> Sequence[str]:
        """Conversations to walk, of those platforms only that an answer can be sent to."""
        return await self.inbox.pending_conversations(limit, list(self.platforms))

    async def _is_platform_admin(self, incoming: Incoming) -> bool:
        return await self.platforms[incoming.address.platform].is_admin(incoming)

    def _probes(self) -> dict[str, Callable[[], Awaitable[str | None]]]:
        probes: dict[str, Callable[[], Awaitable[str | None]]] = {
            "database": self._database_trouble
        }
        for name, platform in self.platforms.items():
            probes[name] = self._platform_probe(platform)
        return probes

    def _platform_probe(self, platform: Platform) -> Callable[[], Awaitable[str | None]]:
        async def probe() -> str | None:
            return self.supervisor.trouble(platform)

        return probe

    async def _database_trouble(self) -> str | None:
        try:
            await self._waiting(1)
        except StoreError as error:
            return str(error)
        return None

    def _announce(self, text: str) -> None:
        if not self._is_quiet:  # the terminal belongs to the chat
            self._progress(text)


@contextlib.asynccontextmanager
async def running(
    settings: Settings,
    progress: Callable[[str], None],
    platforms: Sequence[PlatformSpec] | None = None,
) -> AsyncIterator[App]:
    """Open everything that `settings` name, in order, and close it in reverse.

    Without `platforms` the configured ones run, else the terminal.

    Raises:
        SettingsError: with one line for what the operator must mend.
        StoreError: the database cannot be opened.
    """
    roles = load_presets_with_stories(presets_folder(settings.presets_dir))
    presets = {name: role.preset for name, role in roles.items()}
    async with contextlib.AsyncExitStack() as stack:
        stack.enter_context(lock_data_dir(settings.data_dir))
        database = await stack.enter_async_context(open_database(settings.sqlalchemy_url))
        choices = SqlChatSettings(database, SystemClock())
        versions = SqlPresetVersions(database, SystemClock())
        numbers = await versions.save([preset_version(preset) for preset in presets.values()])
        resolver = PresetResolver(presets, settings.default_preset, choices, numbers)
        await provide_model(settings, resolver.default, progress)
        renderer = await stack.enter_async_context(Renderer())
        backends = make_backends(settings, presets, renderer)
        for backend in backends.values():
            stack.push_async_callback(backend.close)
        warming = asyncio.create_task(warm(backends, resolver.default))
        stack.push_async_callback(cancel_and_wait, [warming])
        if settings.redis_url is None:
            url = await stack.enter_async_context(run_embedded_valkey(settings.data_dir))
        else:
            url = settings.redis_url.get_secret_value()
        coordinator = await stack.enter_async_context(open_coordinator(url))
        retrieve_stories = await stack.enter_async_context(
            open_story_retriever(settings, roles, database)
        )
        mask = SecretMasker(secrets_of(settings)).mask
        exact = ExactPromptWriter(settings.providers, settings.data_dir, renderer, mask)
        app = App(
            settings,
            database,
            coordinator,
            resolver,
            backends,
            retrieve_stories,
            exact,
            progress,
            platforms or settings.configured_platforms or terminal_platforms(),
        )
        for platform in app.platforms.values():
            stack.push_async_callback(platform.close)
        yield app


def _owner(settings: Settings) -> str:
    """The name that leases are held under: on SQLite the same after a restart."""
    if settings.sqlalchemy_url.startswith("sqlite"):
        return "embedded"
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"

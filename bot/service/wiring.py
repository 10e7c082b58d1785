"""Build the service from its settings and its open resources: the one composition root.

Nothing here does I/O: resources.py opens what these parts use, service.py runs them.
"""

import contextlib
import os
import random
import secrets
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from importlib import import_module  # noqa: TID251 # for what few installations need
from pathlib import Path

from bot import __version__
from bot.backends.exact_prompt import ExactPromptWriter
from bot.chat.button import FORM_ACTIONS, ButtonAction, read_button
from bot.chat.incoming import (
    Address,
    Incoming,
    MediaItem,
    Pressed,
    Request,
    Said,
    source_name,
    source_of,
)
from bot.chat.outgoing import OutboxRow
from bot.chat.session import ClaimedMessage, InboxMessage
from bot.commands.admins import AdminCheck
from bot.commands.anonymous_admins import AnonymousAdmins
from bot.commands.answer_buttons import AnswerButtons
from bot.commands.context import ContextView
from bot.commands.forgetting import ChannelForgetting, PersonForgetting, SharedMemories
from bot.commands.handlers import CommandHandlers
from bot.commands.menus import FORM_TEXTS
from bot.commands.notes.admin_notes import AdminNotes
from bot.commands.personas import UserPersonas
from bot.commands.usage_view import UsageView
from bot.console.answers.answer_pages import AnswerPages
from bot.console.answers.replay_pages import ReplayPages
from bot.console.app import Console
from bot.console.health import Probe
from bot.console.login import make_login_link
from bot.console.playground.actions import PlaygroundActions
from bot.console.presets.editing import PresetEditing
from bot.console.server import AddRoutes
from bot.console.service.channels_page import ChannelsPage
from bot.console.service.operation_report import Installation, OperationReports
from bot.console.service.usage_page import UsagePage
from bot.console.webhooks import webhook_routes
from bot.delivery.lane_delivery import LaneDelivery, RemoteDelivery
from bot.delivery.rate_limits import RateLimitedSurface
from bot.delivery.sender import Sender
from bot.delivery.sent_rows import SentRows, SentRowSignals
from bot.errors import PlatformError, Refused, StoreError, UserError
from bot.intake.histories import HistoryRouter
from bot.intake.intake import InboxIntake
from bot.media.attachment_reader import AttachmentReader
from bot.media.fetching import PublicFetcher
from bot.media.voice_messages import VoiceMessages
from bot.platforms.registry import channel_limits, make_platform
from bot.platforms.spec import EditableText, PlatformContext, PlatformSpec
from bot.ports import (
    Clock,
    ConversationMemory,
    Delivery,
    FileSource,
    HistoryReader,
    Platform,
    RateLimits,
    ShardedPlatform,
    SilenceExplainer,
    Surface,
    WebhookReceiver,
)
from bot.prompting.presets.files import parse_preset
from bot.prompting.presets.folder import open_presets_folder
from bot.prompting.presets.preset import Preset
from bot.replying.live_replies import LiveReplies
from bot.routing.command_specs import COMMANDS, MESSAGE_COMMANDS
from bot.routing.history_scopes import HistoryScopes
from bot.runtime.clock import SystemClock
from bot.runtime.keyed_worker_pool import KeyedWorkerPool
from bot.runtime.rate_limits import InProcessRateLimits
from bot.runtime.terminal_locale import terminal_locale
from bot.service.backends import add_backends, preset_problems
from bot.service.budgets import budget_rules
from bot.service.exclusive_role import ExclusiveRole
from bot.service.models import Models
from bot.service.operation.heartbeat import Heartbeat
from bot.service.platform_supervisor import PlatformSupervisor
from bot.service.queue_metrics import QueueMetrics
from bot.service.receiving.exclusive_platform import ExclusivePlatform
from bot.service.receiving.shared_shards import SharedShards
from bot.service.resources import Resources, data_dir_use
from bot.service.retention import RetentionJobs
from bot.service.role_parts import DRAIN_SECONDS, RolePart, drain_lanes
from bot.service.roles import Role
from bot.service.run_options import RunOptions, replace_model
from bot.settings import Settings, collect_secrets
from bot.setup.steps import SetupSteps
from bot.storage.cache.cached_chat_settings import CachedChatSettings
from bot.storage.cache.shared_windows import SharedWindows
from bot.storage.console.answers import SqlAnswerLog
from bot.storage.console.audit import SqlAuditLog
from bot.storage.console.preset_drafts import SqlPresetDrafts
from bot.storage.console.service_state import SqlServiceState
from bot.storage.console.tokens import SqlConsoleTokens
from bot.storage.coordination.role_leases import SqlRoleLeases
from bot.storage.data_dir import DataDirUse
from bot.storage.history_index import SqlHistoryIndex
from bot.storage.operation.dead_letters import SqlDeadLetters
from bot.storage.operation.nodes import SqlNodeRegistry
from bot.storage.operation.pauses import SqlPauses
from bot.storage.personal_data import SqlForgottenConversations, SqlPersonalData
from bot.storage.queue_ages import SqlQueueAges
from bot.storage.restoring.restores import SqlRestores
from bot.storage.restoring.tombstones import FILE_NAME, TombstoneFile
from bot.storage.sql.conversations import SqlConversations
from bot.storage.sql.inbox import SqlInbox
from bot.storage.sql.outbox import SqlOutbox
from bot.storage.sql.preset_versions import SqlPresetVersions
from bot.storage.sql.receipts import SqlReceipts
from bot.storage.sql.retention import FORGOTTEN_SECONDS
from bot.storage.sql.summaries import SqlSummaries
from bot.storage.units.lanes import SenderIdentity
from bot.storage.usage.budgets import SqlBudgets
from bot.storage.usage.log import SqlUsageLog
from bot.storage.usage.totals import SqlUsageTotals
from bot.storage.web.channels import SqlWebChannels
from bot.storage.web.copied_history import SqlHistoryCopies
from bot.storage.web.forgotten_messages import ForgottenWebMessages
from bot.summaries.summarizer import Summarizer
from bot.telemetry.recent_events import RECENT_EVENTS
from bot.telemetry.secret_masker import SecretMasker
from bot.texts.text import Text, language_of, translatable, translate
from bot.turn.answer import AnswerPipeline
from bot.turn.arrivals import CONVERSATIONS, ArrivalSignals
from bot.turn.channel_reader import ChannelReader
from bot.turn.gathering import MessageGatherer
from bot.turn.limits.answer_limits import AnswerLimits
from bot.turn.limits.embedding_spending import EmbeddingSpending
from bot.turn.limits.pauses import AnsweringPauses
from bot.turn.limits.provider_slots import ProviderSlots
from bot.turn.limits.rare_notices import RareNotices
from bot.turn.limits.restored_messages import RestoredMessages
from bot.turn.limits.spending import Spending
from bot.turn.limits.summary_spending import BudgetedSummaries
from bot.turn.missed_signals import MissedSignals
from bot.turn.preview.draft_preview import DraftPreview
from bot.turn.preview.operator_requests import OperatorRequests
from bot.turn.preview.prompt_preview import PromptPreview
from bot.turn.preview.provider_trial import ProviderTrial
from bot.turn.preview.replay import PromptReplay
from bot.turn.prompt_sources import PromptSources
from bot.turn.stops import StopRequests
from bot.turn.tools.answer_tools import AnswerTools
from bot.turn.worker import ConversationWorker, TurnStages

_EDIT_TITLE = translatable("Edit a message")
_EDIT_LABEL = translatable("What it is to say")
_TOO_LONG_TO_EDIT = translatable("That text is too long to be changed in a form.")
_BUSY = translatable("That cannot be done at the moment. Please try again.")
_MAX_CONVERSATIONS = 4000  # at once in one process
_MAX_LANES = 4000
_LANES = "lanes"
_PUBLISHED_PRESETS = "presets"
_IDLE_POLL_SECONDS = 0.02
_MAX_SCOPE_AGE_SECONDS = 3.0  # processes hear of each other's changes over Redis only
_SLOT_MARGIN_SECONDS = 60.0  # retries and a pause of the process are beyond an answer's own limit


class Wiring:
    """Every part of a process; each is built once, when another part first needs it."""

    def __init__(
        self,
        settings: Settings,
        resources: Resources,
        specs: Sequence[PlatformSpec],
        progress: Callable[[str], None],
        options: RunOptions,
    ) -> None:
        """Take what everything is built from.

        Args:
            settings: the settings of the service.
            resources: what was opened for it.
            specs: the platforms to run.
            progress: tells the operator something.
            options: what this run does differently.
        """
        self.settings = settings
        self.options = options
        self._resources = resources
        self._specs = specs
        self.progress = progress
        self.clock: Clock = SystemClock()
        self.owner = _lease_owner(settings, data_dir_use(specs))
        resources.resolver.follow(self._load_published)
        resources.signals.subscribe(_PUBLISHED_PRESETS, resources.resolver.mark_stale)
        self.console_address: str | None = None
        """Where browsers open the console; None while it is not served."""

    # --- what is stored ---------------------------------------------------------------------

    @cached_property
    def inbox(self) -> SqlInbox:
        return SqlInbox(self._resources.database, self.clock)

    @cached_property
    def conversations(self) -> SqlConversations:
        resources = self._resources
        values, codec = resources.shared_values, resources.database.codec
        shared = SharedWindows(values, codec) if values else None
        sender = self._lane_sender if Role.SENDER in self.options.roles else None
        return SqlConversations(
            resources.database, self.clock, sender, shared, self._tombstones.record
        )

    @cached_property
    def _tombstones(self) -> TombstoneFile:
        return TombstoneFile(self.settings.data_dir / FILE_NAME)

    @cached_property
    def outbox(self) -> SqlOutbox:
        return SqlOutbox(self._resources.database, self.clock, self._lane_sender)

    @cached_property
    def retention(self) -> RetentionJobs:
        return RetentionJobs(self._resources.database, self.settings, self.clock)

    @cached_property
    def _lane_sender(self) -> SenderIdentity:
        return SenderIdentity(self.owner, self.settings.delivery.settle_seconds)

    @cached_property
    def web_channels(self) -> SqlWebChannels:
        return SqlWebChannels(self._resources.database, self._resources.signals)

    async def database_problem(self) -> str | None:
        """Return why the database does not answer; whatever waits in it is not looked at."""
        try:
            await self._resources.database.ping()
        except StoreError as error:
            return str(error)
        return None

    def signals_problem(self) -> str | None:
        """Return why signals will not reach other processes; None while they may."""
        return self._resources.signals.refusal

    # --- platforms and delivery -------------------------------------------------------------

    @cached_property
    def platforms(self) -> Mapping[str, Platform]:
        """By `Address.source`, which names the bot as well where it is not the first one."""
        context = PlatformContext(
            commands=COMMANDS,
            message_commands=MESSAGE_COMMANDS,
            text_to_edit=self._text_to_edit,
            press_form=self._press_form,
            complete_preset=self._resources.resolver.complete,
            wait_until_idle=self.wait_until_idle,
            clock=self.clock,
            data_dir=self.settings.data_dir,
            answerable_seconds=self.settings.delivery.answerable_minutes * 60,
            press_refusal=self._press_refusal,
            limits_of=channel_limits,
            web_channels=self.web_channels,
            chat=self._resources.resolver.default.id if self.options.preset else "",
            locale=terminal_locale(),
            leases=None if self._is_alone else self._role_leases,
        )
        platforms = {}
        for spec in self._specs:
            bot_id = self._resources.bot_ids.get(spec.kind, "")
            its_context = replace(context, bot_id=bot_id)
            platform = make_platform(spec, self.settings.platform(spec), its_context)
            platforms[source_name(spec.kind, bot_id)] = platform
        return platforms

    @cached_property
    def receivers(self) -> Mapping[str, Platform]:
        """The platforms as messages are received from them: one process at a time."""
        if Role.GATEWAY not in self.options.roles:
            return {}
        if self._is_alone or self.is_in_terminal:
            return self.platforms
        return {
            source: self._shared_receiver(source, platform)
            for source, platform in self.platforms.items()
        }

    def _shared_receiver(self, source: str, platform: Platform) -> Platform:
        if isinstance(platform, ShardedPlatform):
            return SharedShards(platform, source, self.owner, self._role_leases, self.clock)
        return ExclusivePlatform(platform, self._exclusive_role(f"receive {source}"))

    @property
    def _is_alone(self) -> bool:
        """Whether no other process does the same: the data directory of SQLite is locked."""
        return self._resources.database.is_sqlite

    @property
    def may_take_any_port(self) -> bool:
        """Whether this process starts although its port is in use, as others may share its machine.

        One that was started to serve people's pages has to be where they look for them.
        """
        serves_pages = self.options.shares_work and Role.CONSOLE in self.options.roles
        return not (self._is_alone or serves_pages)

    @property
    def has_console(self) -> bool:
        """Whether this process serves the pages of the console."""
        return self.settings.console.pages and Role.CONSOLE in self.options.roles

    def _exclusive_role(self, name: str) -> ExclusiveRole:
        return ExclusiveRole(name, self._role_leases, self.clock)

    @cached_property
    def _role_leases(self) -> SqlRoleLeases:
        return SqlRoleLeases(self._resources.database, self.owner, self.clock)

    async def delete_expired_rows(self) -> None:
        """Keep the database from growing; of several processes, one does it at a time."""
        if self._is_alone:
            await self.retention.delete_expired_rows()
        else:
            role = self._exclusive_role("delete expired rows")
            await role.run(self.retention.delete_expired_rows)

    @cached_property
    def supervisor(self) -> PlatformSupervisor:
        companions = [spec.kind for spec in self._specs if spec.is_companion]
        return PlatformSupervisor(
            self.receivers.values(), self._intake, self.clock, self.announce, companions
        )

    @cached_property
    def _intake(self) -> InboxIntake:
        return InboxIntake(
            *(self.inbox, self._wake_conversations, self.stops.announce, self._history_router),
            self.restored.keep,
        )

    @property
    def webhook_routes(self) -> AddRoutes:
        """What platforms call; every process that receives takes calls, also one on standby."""
        called = [self.platforms[source] for source in self.receivers]
        return webhook_routes(
            [one for one in called if isinstance(one, WebhookReceiver)], self._intake
        )

    @cached_property
    def _sender(self) -> Sender:
        return Sender(
            self.outbox,
            self._rate_limited_surfaces(best_effort=False),
            self.clock,
            settle_seconds=self.settings.delivery.settle_seconds,
            announce=self._announce_sent,
        )

    @cached_property
    def _sent_row_signals(self) -> SentRowSignals:
        return SentRowSignals(self._resources.signals)

    def _announce_sent(self, row_id: int, external_id: str | None) -> None:
        """Tell the workers elsewhere, where this process has none of its own."""
        if Role.WORKER not in self.options.roles:
            self._sent_row_signals.publish(row_id, external_id)

    @cached_property
    def _delivery(self) -> Delivery:
        if Role.SENDER in self.options.roles:
            return LaneDelivery(self._sender, self.lane_pool)
        sent_rows = SentRows(self.outbox)
        self._sent_row_signals.subscribe(sent_rows)
        return RemoteDelivery(self._wake_lanes, sent_rows)

    @cached_property
    def _replies(self) -> LiveReplies:
        return LiveReplies(
            self.conversations,
            self._rate_limited_surfaces(best_effort=True),
            self._delivery,
            self.clock,
        )

    def _rate_limited_surfaces(self, *, best_effort: bool) -> dict[str, Surface]:
        return {
            name: RateLimitedSurface(
                platform.surface,
                self._rate_limits,
                self.clock,
                best_effort=best_effort,
                learns_rates=self.settings.delivery.pacing == "learned",
            )
            for name, platform in self.platforms.items()
        }

    # --- the stages of a turn ---------------------------------------------------------------

    @cached_property
    def worker(self) -> ConversationWorker:
        resources = self._resources
        settings = resources.chat_settings  # tells the other processes itself
        kept = [settings] if isinstance(settings, ConversationMemory) else []
        web = ForgottenWebMessages(
            self.web_channels, self.conversations, self._history_index, self.inbox
        )
        memories = [*kept, web, self._shared_memories]
        stages = TurnStages(
            self._resources.resolver,
            self._commands,
            self._pipeline,
            self._replies,
            self.stops,
            self._answer_buttons,
            PersonForgetting(self._personal_data, self._personas, self._receive),
            ChannelForgetting(self._history_index, self._receive),
            MessageGatherer(self.conversations, self._arrivals, self.clock),
            self._arrivals,
            VoiceMessages(self._download, self._models.backends),
            explain_silence=self._explain_silence,
            is_paused=self.pauses.covers,
            is_void=self.restored.is_void,
            is_context=self._is_context,
        )
        return ConversationWorker(self.conversations, memories, stages, self.owner, self.clock)

    @cached_property
    def _shared_memories(self) -> SharedMemories:
        backends = self._models.backends.values()
        return SharedMemories(
            [each for each in backends if isinstance(each, ConversationMemory)],
            self._resources.signals,
            SqlForgottenConversations(self._resources.database),
            self.clock,
            FORGOTTEN_SECONDS,
        )

    @cached_property
    def summarizer(self) -> Summarizer:
        database = self._resources.database
        spending = BudgetedSummaries(self._spending, SqlUsageLog(database, self.clock))
        return Summarizer(SqlSummaries(database), self._models.backends, spending)

    @cached_property
    def _preview(self) -> PromptPreview:
        return PromptPreview(
            self._prompt_sources,
            self._resources.resolver,
            self.conversations,
            self._spending,
            self.clock,
            self._history_router.foresee,
        )

    @cached_property
    def _replay(self) -> PromptReplay:
        return PromptReplay(self._operator_requests, self._resources.resolver.presets)

    @cached_property
    def _operator_requests(self) -> OperatorRequests:
        return OperatorRequests(
            self._models.backends,
            self._spending,
            self._provider_slots,
            SqlUsageLog(self._resources.database, self.clock),
            self.clock,
        )

    @cached_property
    def _prompt_sources(self) -> PromptSources:
        return PromptSources(
            self.conversations,
            self._resources.resolver,
            self._personas,
            self._models.retrieve_stories,
            self.summarizer,
            ChannelReader(self._read_before),
            AttachmentReader(
                self._download, PublicFetcher().fetch if self.settings.fetch_links else None
            ),
            self._models.backends,
            partial(EmbeddingSpending, self._spending),
        )

    @cached_property
    def _pipeline(self) -> AnswerPipeline:
        return AnswerPipeline(
            self._prompt_sources,
            self._models.backends,
            self._replies,
            self.clock,
            limits=None if self.is_in_terminal else self._answer_limits,
            slots=self._provider_slots,
            spending=self._spending,
            notices=RareNotices(self._rate_limits),
            tools=AnswerTools(
                self.conversations,
                self._models.retrieve_stories,
                self.clock,
                random.random,
                self._models.tool_servers,
                partial(EmbeddingSpending, self._spending),
            ),
            admin_notes=self._admin_notes,
        )

    @cached_property
    def _spending(self) -> Spending:
        return Spending(
            self.settings.providers,
            self.clock,
            self._budgets,
            self._rate_limits,
            budget_rules(self.settings.budgets, self._resources.resolver),
        )

    @cached_property
    def _budgets(self) -> SqlBudgets:
        return SqlBudgets(self._resources.database)

    @cached_property
    def _answer_limits(self) -> AnswerLimits:
        limits = self.settings.limits
        return AnswerLimits(
            self._rate_limits,
            self.clock,
            per_person=limits.answers_per_person,
            per_channel=limits.answers_per_channel,
            seconds=limits.seconds,
        )

    @cached_property
    def _provider_slots(self) -> ProviderSlots:
        providers = self.settings.providers
        limits = {name: one.max_in_flight for name, one in providers.items()}
        longest = max((one.total_seconds for one in providers.values()), default=0.0)
        return ProviderSlots(
            self._rate_limits,
            self.clock,
            {name: limit for name, limit in limits.items() if limit is not None},
            lease_seconds=longest + _SLOT_MARGIN_SECONDS,
        )

    @cached_property
    def _rate_limits(self) -> RateLimits:
        return self._resources.rate_limits or InProcessRateLimits(self.clock)

    @property
    def _models(self) -> Models:
        models = self._resources.models
        assert models is not None  # noqa: S101 -- only who needs them asks
        return models

    @property
    def is_in_terminal(self) -> bool:
        """Whether the only person here is the operator."""
        return data_dir_use(self._specs) is DataDirUse.TERMINAL

    @cached_property
    def _commands(self) -> CommandHandlers:
        prompts = self._exact_prompts
        receipts = SqlReceipts(self._resources.database)
        return CommandHandlers(
            self._resources.resolver,
            self._admins,
            ContextView(receipts, prompts.write, prompts.mask, self._answer_address),
            self._personas,
            self._personal_data,
            self._history_scopes,
            self._anonymous_admins,
            {spec.kind: spec.commands for spec in self._specs},
            usage=UsageView(
                SqlUsageTotals(self._resources.database), self._budgets, self._spending.caps
            ),
            notes=self._admin_notes,
        )

    @cached_property
    def _admin_notes(self) -> AdminNotes:
        surfaces = self._rate_limited_surfaces(best_effort=True)
        return AdminNotes(self._resources.chat_settings, surfaces)

    @cached_property
    def _exact_prompts(self) -> ExactPromptWriter:
        return ExactPromptWriter(
            self.settings.providers,
            self.settings.data_dir,
            self._models.renderer,
            SecretMasker(collect_secrets(self.settings)).mask,
        )

    # --- the console --------------------------------------------------------------------------

    def make_console(self, probes: Mapping[str, Probe]) -> Console:
        """Return the console; `probes` are what /readyz asks."""
        database, resolver = self._resources.database, self._resources.resolver
        state = SqlServiceState(database, self.clock)
        # With what renders pages: a process without a console needs none of it.
        console_parts = import_module("bot.service.console")
        providers = console_parts.provider_rows(self.settings.providers, resolver.presets)
        pages = [
            console_parts.make_playground(
                self._playground_actions,
                self._preview.preview,
                SqlReceipts(database),
            ),
            AnswerPages(
                SqlAnswerLog(database),
                self._exact_prompts,
                self._models.backends,
                SqlPresetVersions(database, self.clock),
                self.settings.providers,
                sorted(resolver.presets),
            ).part,
            ReplayPages(SqlAnswerLog(database), self._replay.replay, self._exact_prompts.mask).part,
            *console_parts.make_preset_parts(
                self._preset_editing,
                DraftPreview(self._prompt_sources, resolver, self.conversations),
                SqlAnswerLog(database),
                self.settings.providers,
                self._operator_requests.ask,
            ),
            ChannelsPage(state, resolver.default.name).part,
            console_parts.make_operation_page(
                OperationReports(
                    probes,
                    state,
                    providers,
                    self._models.backends,
                    self._provider_slots.waiting,
                    self._rate_limits,
                    RECENT_EVENTS,
                    self._installation,
                    self.clock,
                ),
                ProviderTrial(self._operator_requests, resolver.presets).try_provider,
                self._exact_prompts.mask,
            ),
            UsagePage(SqlUsageTotals(database), self.clock).part,
            console_parts.make_setup_page(
                self.setup_steps, database, self._exact_prompts.mask, self.clock
            ),
        ]
        console: Console = console_parts.make_console(
            self.settings.console,
            database,
            self._console_tokens,
            self._rate_limits,
            self.clock,
            pages,
            console_parts.first_page(self.settings),
        )
        return console

    @cached_property
    def setup_steps(self) -> SetupSteps:
        return SetupSteps(self.settings, Path(".env"))

    @cached_property
    def _installation(self) -> Installation:
        database = self._resources.database
        return Installation(
            SqlNodeRegistry(database, self.clock),
            SqlPauses(database, self.clock),
            SqlDeadLetters(database, self.clock),
        )

    @cached_property
    def _playground_actions(self) -> PlaygroundActions:
        return PlaygroundActions(
            self.web_channels,
            SqlHistoryCopies(self._resources.database, self.conversations),
            self._resources.resolver,
            self.clock,
        )

    @cached_property
    def _preset_editing(self) -> PresetEditing:
        database = self._resources.database
        return PresetEditing(
            self._resources.resolver,
            SqlPresetVersions(database, self.clock),
            SqlPresetDrafts(database),
            SqlAuditLog(database),
            self.clock,
            partial(preset_problems, settings=self.settings),
            partial(open_presets_folder, self.settings.presets_dir),
            self._prepare_preset,
            partial(self._resources.signals.publish, _PUBLISHED_PRESETS),
        )

    async def _load_published(self, name: str) -> tuple[Preset, int] | None:
        """Return the newest version of a preset that another process has published."""
        newest = await SqlPresetVersions(self._resources.database, self.clock).newest(name)
        if newest is None:
            return None
        preset = parse_preset(newest.content, f"preset {name!r}")
        is_answering = self._resources.models is not None
        return self._prepare_preset(preset) if is_answering else preset, newest.version

    def _prepare_preset(self, preset: Preset) -> Preset:
        """Make the backends of a preset ready; return it as this run uses it."""
        presets = replace_model({preset.name: preset}, self.options.model, self.settings)
        models = self._models
        add_backends(
            models.backends,
            self.settings,
            presets.values(),
            models.renderer,
            models.session_key,
        )
        return presets[preset.name]

    async def make_login_link(self) -> str:
        """Return a link that logs in to the console once."""
        return await make_login_link(self._console_tokens, self.clock, self.console_address or "")

    def _answer_address(self, number: int) -> str | None:
        address = self.console_address
        return address and f"{address.rstrip('/')}/answers/{number}"

    @cached_property
    def _console_tokens(self) -> SqlConsoleTokens:
        return SqlConsoleTokens(self._resources.database, self.clock)

    # --- commands -----------------------------------------------------------------------------

    @cached_property
    def stops(self) -> StopRequests:
        return StopRequests(self._resources.signals, self._admins.is_known_admin)

    @cached_property
    def _arrivals(self) -> ArrivalSignals:
        return ArrivalSignals(self._resources.signals)

    @cached_property
    def _anonymous_admins(self) -> AnonymousAdmins:
        return AnonymousAdmins(self._resources.chat_settings)

    @cached_property
    def _admins(self) -> AdminCheck:
        return AdminCheck(
            self.settings.admins,
            self._is_platform_admin,
            self.clock,
            self._anonymous_admins,
            shows_prompts_in_private=self.settings.private_prompts,
        )

    @cached_property
    def _personal_data(self) -> SqlPersonalData:
        return SqlPersonalData(self._resources.database, self.clock, self._tombstones.record)

    async def _receive(self, events: Sequence[Incoming]) -> None:
        intake = InboxIntake(self.inbox, self._wake_conversations, router=self._history_router)
        await intake.receive(events, {})

    @cached_property
    def _history_index(self) -> SqlHistoryIndex:
        return SqlHistoryIndex(self._resources.database)

    @cached_property
    def _history_scopes(self) -> HistoryScopes:
        resources = self._resources
        chat_settings = resources.chat_settings
        if not isinstance(chat_settings, CachedChatSettings):  # asked for each received event
            chat_settings = CachedChatSettings(
                chat_settings, resources.signals, self.clock, _MAX_SCOPE_AGE_SECONDS
            )
        return HistoryScopes(chat_settings, resources.resolver)

    @cached_property
    def _history_router(self) -> HistoryRouter:
        return HistoryRouter(self._history_scopes.find, self._history_index)

    @cached_property
    def _answer_buttons(self) -> AnswerButtons:
        return AnswerButtons(
            self.conversations, self.inbox, self._admins, self._history_router.route_press
        )

    @cached_property
    def _personas(self) -> UserPersonas:
        return UserPersonas(self._resources.chat_settings)

    async def _press_refusal(self, pressed: Pressed) -> str | None:
        return await self._answer_buttons.refusal(pressed)

    async def _text_to_edit(self, said: Said) -> EditableText:
        language = language_of(said.locale)
        try:
            text = await self._answer_buttons.text_to_edit(
                await self._history_router.route_command(said)
            )
        except (UserError, StoreError) as error:
            problem = error.text if isinstance(error, UserError) else _BUSY
            return EditableText(refusal=translate(problem, language))
        title, label = translate(_EDIT_TITLE, language), translate(_EDIT_LABEL, language)
        too_long = translate(_TOO_LONG_TO_EDIT, language)
        return EditableText(title, label, text, too_long=too_long)

    async def _press_form(self, pressed: Pressed) -> EditableText | None:
        data, language = read_button(pressed), language_of(pressed.locale)
        if data is None or data.action not in FORM_ACTIONS:
            return None
        refusal = await self._answer_buttons.refusal(replace(pressed, values=("",)))
        if refusal is not None:
            return EditableText(refusal=refusal)
        text = ""
        if data.action is ButtonAction.ABOUT:
            with contextlib.suppress(StoreError):  # the form is empty then
                found = await self._personas.find(pressed.author.id, pressed.scopes)
                text = found[0] if found is not None else ""
        title, label = (translate(one, language) for one in FORM_TEXTS[data.action])
        too_long = translate(_TOO_LONG_TO_EDIT, language)
        return EditableText(title, label, text, too_long=too_long)

    async def _explain_silence(self, said: Said, explanation: Text) -> None:
        platform = self.platforms[said.address.source]
        if isinstance(platform, SilenceExplainer):
            shown = translate(explanation, language_of(said.locale))
            with contextlib.suppress(PlatformError):  # the channel was deleted
                await platform.explain_silence(said, shown)

    async def _is_platform_admin(self, incoming: Request) -> bool:
        return await self.platforms[incoming.address.source].is_admin(incoming)

    async def _download(self, address: Address, item: MediaItem, max_bytes: int) -> bytes:
        platform = self.platforms[address.source]
        if not isinstance(platform, FileSource):
            raise Refused(f"{platform.name} keeps no files")
        return await platform.download(item, max_bytes)

    async def _read_before(self, said: Said, limit: int) -> Sequence[Said]:
        platform = self.platforms[said.address.source]
        observes = await self._resources.resolver.observes(said.scopes)
        if not (isinstance(platform, HistoryReader) and observes):
            return ()
        return await platform.read_before(said, limit)

    # --- roles ------------------------------------------------------------------------------

    @cached_property
    def role_parts(self) -> Sequence[RolePart]:
        """What this process runs beside the platforms, in the order of a message's path."""
        parts = {Role.WORKER: self._worker_part, Role.SENDER: self._sender_part}
        made = [make_part() for role, make_part in parts.items() if role in self.options.roles]
        return [RolePart(self.restored.load, (), _nothing), *made, self._heartbeat.part]

    @cached_property
    def _heartbeat(self) -> Heartbeat:
        nodes = SqlNodeRegistry(self._resources.database, self.clock)
        roles = ",".join(role for role in Role if role in self.options.roles)
        return Heartbeat(nodes, self.owner, roles, __version__, self.clock)

    @cached_property
    def pauses(self) -> AnsweringPauses:
        stored = SqlPauses(self._resources.database, self.clock)
        return AnsweringPauses(stored, self._resources.signals, self._wake_ready)

    @cached_property
    def restored(self) -> RestoredMessages:
        return RestoredMessages(SqlRestores(self._resources.database, self.clock))

    def _is_context(self, message: InboxMessage) -> bool:
        return self.pauses.is_context(message) or self.restored.is_context(message)

    async def _wake_ready(self) -> None:
        self._wake_conversations(await self._ready_conversations(_MAX_CONVERSATIONS))

    def _worker_part(self) -> RolePart:
        pool, worker = self.conversation_pool, self.worker

        async def release() -> None:
            await self.conversations.release_all(self.owner)
            await self.pauses.refresh()

        async def drain() -> None:
            worker.stop_after_current()
            await pool.drain(DRAIN_SECONDS)

        jobs = [pool.run, worker.keep_leases, self.stops.run, self.summarizer.run, self.pauses.run]
        jobs.append(self._queue_metrics.run)
        if not self._is_alone:
            missed = MissedSignals(self.inbox, self.stops, self._arrivals, self.clock)
            jobs += [missed.run, self._shared_memories.run]
        return RolePart(release, jobs, drain)

    def _sender_part(self) -> RolePart:
        async def drain() -> None:
            await drain_lanes(self.lane_pool, self.clock, is_alone=self._is_alone)

        jobs = [self.lane_pool.run, self.delete_expired_rows]
        if Role.WORKER not in self.options.roles:  # it measures both
            jobs.append(self._queue_metrics.run)
        return RolePart(self.outbox.release_all, jobs, drain)

    @cached_property
    def _queue_metrics(self) -> QueueMetrics:
        ages = SqlQueueAges(self._resources.database, self.clock)
        return QueueMetrics(ages, self.options.roles, self.clock)

    # --- worker pools -----------------------------------------------------------------------

    @cached_property
    def conversation_pool(self) -> KeyedWorkerPool[ClaimedMessage]:
        """Processes the inboxes of conversations."""
        return KeyedWorkerPool(
            CONVERSATIONS,
            signals=self._resources.signals,
            ready_keys=self._ready_conversations,
            claim=self._claim_conversations,
            process=self.worker.work,
            max_concurrent=_MAX_CONVERSATIONS,
            clock=self.clock,
        )

    @cached_property
    def lane_pool(self) -> KeyedWorkerPool[OutboxRow]:
        """Delivers the lanes of the outbox."""
        return KeyedWorkerPool(
            _LANES,
            signals=self._resources.signals,
            ready_keys=self._due_lanes,
            claim=self._sender.take,
            process=self._sender.work,
            max_concurrent=_MAX_LANES,
            clock=self.clock,
        )

    async def _ready_conversations(self, limit: int) -> Sequence[str]:
        """Return conversations with unanswered messages that this process can answer."""
        most = limit
        while True:
            keys = await self.conversations.ready(most, self.platforms.keys())
            ready = [key for key in keys if not self.pauses.covers(key)]
            if len(ready) >= limit or len(keys) < most:
                return ready[:limit]
            most *= 4  # those that are paused have waited longest

    def _wake_conversations(self, keys: Sequence[str]) -> None:
        self._resources.signals.publish(CONVERSATIONS, keys)

    def _wake_lanes(self, keys: Sequence[str]) -> None:
        self._resources.signals.publish(_LANES, keys)

    async def _claim_conversations(self, keys: Sequence[str]) -> Mapping[str, ClaimedMessage]:
        # The signals of all processes arrive here, also those for bots that only others serve.
        served = [
            key for key in keys if source_of(key) in self.platforms and not self.pauses.covers(key)
        ]
        return await self.worker.claim(served) if served else {}

    async def _due_lanes(self, limit: int) -> Sequence[str]:
        return await self.outbox.due_lanes(limit, self.platforms.keys())

    async def wait_until_idle(self) -> None:
        """Wait until every received message was answered and every answer was sent."""
        # In the order of the path: what leaves the first pool is in the second by then.
        while not (await self.conversation_pool.is_idle() and await self.lane_pool.is_idle()):
            await self.clock.sleep(_IDLE_POLL_SECONDS)

    def announce(self, text: str) -> None:
        """Tell the operator something, unless the terminal belongs to a chat."""
        if not any(spec.uses_terminal for spec in self._specs):
            self.progress(text)


async def _nothing() -> None:
    return


def _lease_owner(settings: Settings, use: DataDirUse) -> str:
    """Name this process; on SQLite the name is the same after a restart."""
    if settings.sqlalchemy_url.startswith("sqlite"):
        return "embedded" if use is DataDirUse.SERVICE else "terminal"
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"

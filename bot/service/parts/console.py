"""What the console shows and does."""

from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from importlib import import_module  # noqa: TID251 # for what few installations need
from pathlib import Path
from types import ModuleType

from bot.chat.console.operation import ProcessReport
from bot.console.answers.answer_pages import AnswerPages
from bot.console.answers.replay_pages import ReplayPages
from bot.console.app import Console
from bot.console.health import Probe
from bot.console.playground.actions import PlaygroundActions
from bot.console.presets.editing import PresetEditing
from bot.console.presets.trial.preview import DraftPreviews
from bot.console.routes import (
    RouteGroup,
)
from bot.console.service.channel_report import ChannelReports
from bot.console.service.operation_report import Installation, OperationReports
from bot.console.service.usage_page import UsagePage
from bot.prompting.presets.folder import open_presets_folder
from bot.service.backends import preset_problems
from bot.service.parts.answering import AnsweringParts
from bot.service.parts.commands import CommandParts
from bot.service.parts.limits import LimitParts
from bot.service.parts.published_presets import PublishedPresets
from bot.service.parts.queue import QueueParts
from bot.service.parts.requests import RequestParts
from bot.service.parts.run_context import RunContext
from bot.service.parts.stored import StoredParts
from bot.setup.steps import SetupSteps
from bot.storage.console.audit import SqlAuditLog
from bot.storage.console.channel_histories import SqlChannelHistories
from bot.storage.console.preset_drafts import SqlPresetDrafts
from bot.storage.console.service_state import SqlServiceState
from bot.storage.usage.totals import SqlUsageTotals
from bot.storage.web.copied_history import SqlHistoryCopies
from bot.telemetry.recent_events import RECENT_EVENTS
from bot.turn.preview.draft_preview import DraftPreview
from bot.turn.preview.operator_requests import OperatorRequests
from bot.turn.preview.prompt_preview import PromptPreview
from bot.turn.preview.provider_trial import ProviderTrial
from bot.turn.preview.replay import PromptReplay


class ConsoleParts:
    """The pages of the console, and what they call."""

    def __init__(
        self,
        context: RunContext,
        stored: StoredParts,
        limits: LimitParts,
        requests: RequestParts,
        queue: QueueParts,
        commands: CommandParts,
        answering: AnsweringParts,
        published: PublishedPresets,
    ) -> None:
        self._context = context
        self._stored = stored
        self._limits = limits
        self._requests = requests
        self._commands = commands
        self._queue = queue
        self._answering = answering
        self._published = published

    def make_console(self, probes: Mapping[str, Probe]) -> Console:
        """Return the console; `probes` are what /readyz asks."""
        context, database = self._context, self._context.resources.database
        # With what renders pages: a process without a console needs none of it.
        console_parts = import_module("bot.service.console")
        state = SqlServiceState(database, context.clock)
        pages = [
            *self._answer_pages(console_parts),
            *console_parts.make_preset_parts(
                self._preset_editing,
                self._draft_composer,
                self._stored.answer_log,
                context.settings.providers,
                self._operator_requests.ask,
            ),
            *console_parts.make_channel_pages(self._channel_reports(state)),
            self._operation_page(console_parts, probes, state),
            UsagePage(SqlUsageTotals(database), context.clock),
            console_parts.make_setup_page(
                self.setup_steps, database, self._commands.exact_prompts.mask, context.clock
            ),
        ]
        console: Console = console_parts.make_console(
            context.settings.console,
            database,
            self._stored.console_tokens,
            self._limits.rate_limits,
            context.clock,
            pages,
            console_parts.first_page(context.settings),
        )
        return console

    def _answer_pages(self, console_parts: ModuleType) -> Sequence[RouteGroup]:
        """Return the playground and the pages of answers."""
        stored, prompts = self._stored, self._commands.exact_prompts
        settings, resources = self._context.settings, self._context.resources
        return [
            console_parts.make_playground(
                self._playground_actions, self._preview.preview, stored.receipts
            ),
            AnswerPages(
                stored.answer_log,
                prompts,
                self._context.models.backends,
                stored.preset_versions,
                settings.providers,
                resources.resolver.presets,
                SqlPresetDrafts(resources.database),
            ),
            ReplayPages(stored.answer_log, self.replay.replay, prompts.mask),
        ]

    @cached_property
    def replay(self) -> PromptReplay:
        """Asks again for a stored answer."""
        answers = self._stored.answer_log
        previews = DraftPreviews(self._preset_editing, self._draft_composer, answers)
        return PromptReplay(
            self._operator_requests,
            self._context.resources.resolver.presets,
            answers,
            previews.find_ready,
            self._draft_composer,
            self._published.prepare,
        )

    @cached_property
    def _draft_composer(self) -> DraftPreview:
        return DraftPreview(
            self._answering.prompt_sources,
            self._context.resources.resolver,
            self._stored.conversations,
        )

    def _channel_reports(self, state: SqlServiceState) -> ChannelReports:
        stored, database = self._stored, self._context.resources.database
        return ChannelReports(
            SqlChannelHistories(database),
            stored.answer_log,
            state,
            self._context.resources.resolver,
            self._requests.history_scopes,
            stored.budgets,
            self._limits.spending.caps_of_channel,
            stored.web_channels,
            self._queue.receive,
            SqlAuditLog(database),
            self._context.clock,
        )

    def _operation_page(
        self, console_parts: ModuleType, probes: Mapping[str, Probe], state: SqlServiceState
    ) -> RouteGroup:
        context, limits = self._context, self._limits
        presets = context.resources.resolver.presets
        page: RouteGroup = console_parts.make_operation_page(
            OperationReports(
                probes,
                state,
                console_parts.provider_rows(context.settings.providers, presets),
                context.models.backends,
                limits.provider_slots.waiting,
                limits.rate_limits,
                RECENT_EVENTS,
                self._installation,
                context.clock,
            ),
            ProviderTrial(self._operator_requests, presets).try_provider,
            self._commands.exact_prompts.mask,
        )
        return page

    @cached_property
    def setup_steps(self) -> SetupSteps:
        return SetupSteps(self._context.settings, Path(".env"))

    @cached_property
    def _installation(self) -> Installation:
        stored = self._stored
        return Installation(
            *(stored.nodes, stored.pauses, stored.dead_letters, stored.message_notes),
            self._reports_of_others,
        )

    async def _reports_of_others(self, owners: Sequence[str]) -> Mapping[str, ProcessReport]:
        shared = self._stored.shared_reports
        others = [one for one in owners if one != self._context.owner]
        return await shared.find(others) if shared is not None else {}

    @cached_property
    def _playground_actions(self) -> PlaygroundActions:
        return PlaygroundActions(
            self._stored.web_channels,
            SqlHistoryCopies(self._context.resources.database, self._stored.conversations),
            self._context.resources.resolver,
            self._context.clock,
        )

    @cached_property
    def _preset_editing(self) -> PresetEditing:
        database, settings = self._context.resources.database, self._context.settings
        return PresetEditing(
            self._context.resources.resolver,
            self._stored.preset_versions,
            SqlPresetDrafts(database),
            SqlAuditLog(database),
            self._context.clock,
            partial(preset_problems, settings=settings),
            partial(open_presets_folder, settings.presets_dir),
            self._published.prepare,
            self._published.announce,
        )

    @cached_property
    def _preview(self) -> PromptPreview:
        return PromptPreview(
            self._answering.prompt_sources,
            self._context.resources.resolver,
            self._stored.conversations,
            self._limits.spending,
            self._context.clock,
            self._requests.history_router.foresee,
        )

    @cached_property
    def _operator_requests(self) -> OperatorRequests:
        return OperatorRequests(
            self._context.models.backends,
            self._limits.spending,
            self._limits.provider_slots,
            self._stored.usage_log,
            self._context.clock,
        )

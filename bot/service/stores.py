"""The bottom layer of the component container: settings, resources, tables and limits."""

import os
import secrets
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial

from bot.chat.usage import MICROS_PER_DOLLAR, BudgetKind, Period
from bot.commands.personas import UserPersonas
from bot.console.login import ConsoleLinks
from bot.delivery.pacing import CallQueue
from bot.errors import PresetError, SettingsError, StoreError
from bot.platforms.spec import PlatformSpec
from bot.ports import Backend, Clock
from bot.prompting.presets.files import find_preset
from bot.routing.decide import DecisionLog
from bot.routing.presets import PresetResolver
from bot.runtime.clock import SystemClock
from bot.runtime.in_process import InProcessRateLimits
from bot.service import jobs
from bot.service.events import EventSender
from bot.service.exclusive_role import ExclusiveRole
from bot.service.options import Role, RunOptions
from bot.service.resources import ModelResources, Resources, find_data_dir_use
from bot.settings import BudgetSettings, Settings
from bot.storage.conversations import Conversations
from bot.storage.data_dir import DataDirUse
from bot.storage.dead_letters import DeadLetters
from bot.storage.events import EventLog
from bot.storage.forgetting import TOMBSTONE_FILE, PersonalData, Tombstone, record_tombstone
from bot.storage.history_index import SqlHistoryIndex
from bot.storage.inbox import SqlInbox
from bot.storage.leases import SqlRoleLeases
from bot.storage.memories import SqlMemories
from bot.storage.operation import AuditLog, NodeRegistry, PauseStore, SqlMessageNotes
from bot.storage.outbox import SenderIdentity, SqlOutbox
from bot.storage.presets import PresetDrafts, PresetVersions
from bot.storage.receipts import Receipts
from bot.storage.reports import AnswerLog
from bot.storage.restoring import read_last_restore
from bot.storage.tokens import ConsoleTokens
from bot.storage.usage import Budgets, UsageLog, UsageTotals
from bot.storage.web_channels import SqlWebChannels
from bot.turn.limits.rate_limits import AnswerLimits, CommandLimits, NoticeLimiter
from bot.turn.limits.refusals import CurrentPauses, PreRestoreFilter
from bot.turn.limits.slots import ProviderSlots
from bot.turn.limits.spending import BudgetRules, Spending
from bot.turn.signals import ArrivalSignals

_SLOT_MARGIN_SECONDS = 60.0  # added to an answer's time limit, for retries and pauses


@dataclass(eq=False, repr=False)
class StorageContainer:
    """Creates the components that access tables and those that enforce limits."""

    settings: Settings
    resources: Resources
    specs: Sequence[PlatformSpec]
    report: Callable[[str], None]
    options: RunOptions
    clock: Clock = field(default_factory=SystemClock)
    owner: str = ""
    """The name under which this process holds leases; the default depends on the database."""

    def __post_init__(self) -> None:
        """Create the simple components; others are created on first use."""
        settings, resources, clock = self.settings, self.resources, self.clock
        self.owner = self.owner or _choose_lease_owner(settings, find_data_dir_use(self.specs))
        self.database = database = resources.database
        self.signals = resources.signals
        self.resolver = resources.resolver
        self.chat_settings = resources.chat_settings
        self.personas = UserPersonas(self.chat_settings)
        self.rate_limits = resources.rate_limits or InProcessRateLimits(clock)
        self.notice_limiter = NoticeLimiter(self.rate_limits)
        self.arrivals = ArrivalSignals(self.signals)
        self.restore_filter = PreRestoreFilter(lambda: read_last_restore(database, clock.now()))
        self._call_queue = CallQueue(clock)

        self.answer_log = AnswerLog(database)
        self.audit_log = AuditLog(database, clock)
        self.budgets = Budgets(database)
        self.console_tokens = ConsoleTokens(database, clock)
        self.console_links = ConsoleLinks(self.console_tokens, clock)
        self.dead_letters = DeadLetters(database, clock)
        self.history_index = SqlHistoryIndex(database)
        self.inbox = SqlInbox(database, clock)
        self.memories = SqlMemories(database, clock, self._record_tombstone)
        self.message_notes = SqlMessageNotes(database, clock)
        self.decision_log = DecisionLog(self.message_notes, clock)
        self.nodes = NodeRegistry(database, clock)
        self._lane_sender = SenderIdentity(self.owner, settings.delivery.settle_seconds)
        self.outbox = SqlOutbox(database, clock, self._lane_sender)
        self.pauses = PauseStore(database, clock)
        self.answering_pauses = CurrentPauses(self.pauses)
        self.personal_data = PersonalData(database, clock, self._record_tombstone)
        self.preset_drafts = PresetDrafts(database)
        self.preset_versions = PresetVersions(database, clock)
        self.resolver.characters.read_newest_version = self.preset_versions.newest
        self.receipts = Receipts(database)
        self.role_leases = SqlRoleLeases(database, self.owner, clock)
        self.usage_log = UsageLog(database, clock)
        self.usage_totals = UsageTotals(database)
        self.web_channels = SqlWebChannels(database, self.signals)

    @property
    def models(self) -> ModelResources:
        models = self.resources.models
        assert models is not None  # noqa: S101 -- only processes with models ask
        return models

    @property
    def backends(self) -> Mapping[str, Backend]:
        """The backends by provider; empty if this process generates no answers."""
        models = self.resources.models
        return models.backends if models is not None else {}

    @property
    def runs_alone(self) -> bool:
        """Whether no other process uses this database, as with SQLite."""
        return self.database.is_sqlite

    @property
    def chats_in_terminal(self) -> bool:
        """Whether this process chats in a terminal, so that the operator is the only user."""
        return find_data_dir_use(self.specs) is DataDirUse.TERMINAL

    @property
    def may_take_any_port(self) -> bool:
        """Whether the HTTP server may use any free port; a console needs a known address."""
        serves_pages = self.options.shares_work and Role.CONSOLE in self.options.roles
        return not (self.runs_alone or serves_pages)

    @property
    def has_console(self) -> bool:
        """Whether this process serves the console's pages."""
        return self.settings.console.pages and Role.CONSOLE in self.options.roles

    def announce(self, text: str) -> None:
        """Show the operator a line of text, unless a chat uses the terminal."""
        if not any(spec.uses_terminal for spec in self.specs):
            self.report(text)

    # tables

    @cached_property
    def conversations(self) -> Conversations:
        sender = self._lane_sender if Role.SENDER in self.options.roles else None
        windows = self.resources.shared_turn_windows
        return Conversations(self.database, self.clock, sender, self._record_tombstone, windows)

    def _record_tombstone(self, tombstone: Tombstone) -> None:
        record_tombstone(self.settings.data_dir / TOMBSTONE_FILE, tombstone)

    def exclusive_role(self, name: str) -> ExclusiveRole:
        """Return a role that only one process of the installation holds at a time."""
        return ExclusiveRole(name, self.role_leases, self.clock)

    async def delete_expired_rows(self) -> None:
        """Delete expired rows every hour in one process, until cancelled."""
        job = partial(jobs.delete_expired_rows, self.database, self.settings, self.clock)
        await (job() if self.runs_alone else self.exclusive_role("delete expired rows").run(job))

    async def send_events(self) -> None:
        """Send webhook events in one process, until cancelled."""
        sender = EventSender(self.settings.events, EventLog(self.database, self.clock), self.clock)
        await (sender.run() if self.runs_alone else self.exclusive_role("events").run(sender.run))

    async def find_database_problem(self) -> str | None:
        """Return why the database does not respond, or None if it does."""
        try:
            await self.database.ping()
        except StoreError as error:
            return str(error)
        return None

    # limits

    @cached_property
    def answer_limits(self) -> AnswerLimits | None:
        """The rate limits of answers; None in the terminal, which has no limits."""
        if self.chats_in_terminal:
            return None
        return AnswerLimits(self.rate_limits, self.clock, self.settings.limits)

    @cached_property
    def command_limits(self) -> CommandLimits | None:
        """The rate limits of commands; None in the terminal, or if answers are unlimited."""
        limits = self.settings.limits
        if self.chats_in_terminal or not limits.answers_per_person:
            return None
        return CommandLimits.from_settings(self.rate_limits, limits)

    @cached_property
    def provider_slots(self) -> ProviderSlots:
        providers = self.settings.providers
        max_total_seconds = max((one.total_seconds for one in providers.values()), default=0.0)
        return ProviderSlots(
            self.rate_limits,
            self.clock,
            {name: one.max_in_flight for name, one in providers.items() if one.max_in_flight},
            lease_seconds=max_total_seconds + _SLOT_MARGIN_SECONDS,
            max_waiting_requests=self.settings.limits.waiting,
            signals=self.signals,
        )

    @cached_property
    def spending(self) -> Spending:
        rules = _make_budget_rules(self.settings.budgets, self.resolver)
        providers = self.settings.providers
        return Spending(providers, self.clock, self.budgets, self.notice_limiter, rules)


def _choose_lease_owner(settings: Settings, dir_use: DataDirUse) -> str:
    """Return this process's name in leases, which with SQLite stays the same after a restart."""
    if settings.sqlalchemy_url.startswith("sqlite"):
        return "embedded" if dir_use is DataDirUse.SERVICE else "terminal"
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"


def _make_budget_rules(budgets: BudgetSettings, resolver: PresetResolver) -> BudgetRules:
    """Return the rules for budgets from the settings; raises `SettingsError`."""
    limits = {
        (kind, period): round(limit_dollars * MICROS_PER_DOLLAR)
        for kind in BudgetKind
        for period in Period
        if (limit_dollars := getattr(budgets, f"{kind}_{period}")) is not None
    }
    try:
        preset = budgets.cheaper_preset and find_preset(resolver.presets, budgets.cheaper_preset)
    except PresetError as error:
        raise SettingsError(f"TROUPE_BUDGETS__CHEAPER_PRESET: {error}") from None
    return BudgetRules(limits, preset or None, budgets.max_output_tokens)

"""What is stored: the tables of the database, as the other parts read and write them."""

from functools import cached_property

from bot.errors import StoreError
from bot.service.exclusive_role import ExclusiveRole
from bot.service.options import Role
from bot.service.parts.run_context import RunContext
from bot.service.retention import RetentionJobs
from bot.storage.cache.shared_reports import SharedReports
from bot.storage.cache.shared_windows import SharedWindows
from bot.storage.console.answers import SqlAnswerLog
from bot.storage.console.tokens import SqlConsoleTokens
from bot.storage.coordination.role_leases import SqlRoleLeases
from bot.storage.history_index import SqlHistoryIndex
from bot.storage.operation.dead_letters import SqlDeadLetters
from bot.storage.operation.message_notes import SqlMessageNotes
from bot.storage.operation.nodes import SqlNodeRegistry
from bot.storage.operation.pauses import SqlPauses
from bot.storage.personal_data import SqlPersonalData
from bot.storage.restoring.tombstones import FILE_NAME, TombstoneFile
from bot.storage.sql.conversations import SqlConversations
from bot.storage.sql.inbox import SqlInbox
from bot.storage.sql.outbox import SqlOutbox
from bot.storage.sql.preset_versions import SqlPresetVersions
from bot.storage.sql.receipts import SqlReceipts
from bot.storage.units.lanes import SenderIdentity
from bot.storage.usage.budgets import SqlBudgets
from bot.storage.usage.log import SqlUsageLog
from bot.storage.usage.totals import SqlUsageTotals
from bot.storage.web.channels import SqlWebChannels


class StoredParts:
    """What is stored."""

    def __init__(self, context: RunContext) -> None:
        self._context = context
        self._database = context.resources.database
        self._clock = context.clock

    @cached_property
    def inbox(self) -> SqlInbox:
        return SqlInbox(self._database, self._clock)

    @cached_property
    def conversations(self) -> SqlConversations:
        values, codec = self._context.resources.shared_values, self._database.codec
        shared = SharedWindows(values, codec) if values else None
        sender = self._lane_sender if Role.SENDER in self._context.options.roles else None
        return SqlConversations(
            self._database, self._clock, sender, shared, self._tombstones.record
        )

    @cached_property
    def shared_reports(self) -> SharedReports | None:
        """What processes tell of themselves; None: nothing is shared."""
        values = self._context.resources.shared_values
        return SharedReports(values, self._database.codec) if values else None

    @cached_property
    def outbox(self) -> SqlOutbox:
        return SqlOutbox(self._database, self._clock, self._lane_sender)

    @cached_property
    def dead_letters(self) -> SqlDeadLetters:
        return SqlDeadLetters(self._database, self._clock)

    @cached_property
    def message_notes(self) -> SqlMessageNotes:
        return SqlMessageNotes(self._database, self._clock)

    @cached_property
    def _lane_sender(self) -> SenderIdentity:
        return SenderIdentity(self._context.owner, self._context.settings.delivery.settle_seconds)

    @cached_property
    def _tombstones(self) -> TombstoneFile:
        return TombstoneFile(self._context.settings.data_dir / FILE_NAME)

    @cached_property
    def history_index(self) -> SqlHistoryIndex:
        return SqlHistoryIndex(self._database)

    @cached_property
    def personal_data(self) -> SqlPersonalData:
        return SqlPersonalData(self._database, self._clock, self._tombstones.record)

    @cached_property
    def web_channels(self) -> SqlWebChannels:
        return SqlWebChannels(self._database, self._context.resources.signals)

    @cached_property
    def receipts(self) -> SqlReceipts:
        return SqlReceipts(self._database)

    @cached_property
    def answer_log(self) -> SqlAnswerLog:
        return SqlAnswerLog(self._database)

    @cached_property
    def console_tokens(self) -> SqlConsoleTokens:
        return SqlConsoleTokens(self._database, self._clock)

    @cached_property
    def preset_versions(self) -> SqlPresetVersions:
        return SqlPresetVersions(self._database, self._clock)

    @cached_property
    def budgets(self) -> SqlBudgets:
        return SqlBudgets(self._database)

    @cached_property
    def usage_log(self) -> SqlUsageLog:
        return SqlUsageLog(self._database, self._clock)

    @cached_property
    def usage_totals(self) -> SqlUsageTotals:
        return SqlUsageTotals(self._database)

    @cached_property
    def nodes(self) -> SqlNodeRegistry:
        return SqlNodeRegistry(self._database, self._clock)

    @cached_property
    def pauses(self) -> SqlPauses:
        return SqlPauses(self._database, self._clock)

    @cached_property
    def role_leases(self) -> SqlRoleLeases:
        signals = self._context.resources.signals
        return SqlRoleLeases(self._database, self._context.owner, self._clock, signals)

    def exclusive_role(self, name: str) -> ExclusiveRole:
        """Return what one process of the installation does at a time."""
        return ExclusiveRole(name, self.role_leases, self._clock)

    @cached_property
    def _retention(self) -> RetentionJobs:
        return RetentionJobs(self._database, self._context.settings, self._clock)

    async def delete_expired_rows(self) -> None:
        """Keep the database from growing; of several processes, one does it at a time."""
        if self._context.is_alone:
            await self._retention.delete_expired_rows()
        else:
            role = self.exclusive_role("delete expired rows")
            await role.run(self._retention.delete_expired_rows)

    async def database_problem(self) -> str | None:
        """Return why the database does not answer; whatever waits in it is not looked at."""
        try:
            await self._database.ping()
        except StoreError as error:
            return str(error)
        return None

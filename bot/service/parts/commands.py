"""What handles commands."""

from functools import cached_property

from bot.backends.exact_prompt import ExactPromptWriter
from bot.commands.context import ContextView
from bot.commands.export import PrivateCommands
from bot.commands.handlers import CommandHandlers
from bot.commands.notes.admin_notes import AdminNotes
from bot.commands.usage_view import UsageView
from bot.service.parts.console_links import ConsoleLinks
from bot.service.parts.limits import LimitParts
from bot.service.parts.queue import QueueParts
from bot.service.parts.requests import RequestParts
from bot.service.parts.run_context import RunContext
from bot.service.parts.sending import SendingParts
from bot.service.parts.stored import StoredParts
from bot.settings import collect_secrets
from bot.telemetry.secret_masker import SecretMasker


class CommandParts:
    """The command handlers, and what they show."""

    def __init__(
        self,
        context: RunContext,
        stored: StoredParts,
        limits: LimitParts,
        requests: RequestParts,
        queue: QueueParts,
        sending: SendingParts,
        links: ConsoleLinks,
    ) -> None:
        self._context = context
        self._stored = stored
        self._limits = limits
        self._requests = requests
        self._queue = queue
        self._sending = sending
        self._links = links

    @cached_property
    def handlers(self) -> CommandHandlers:
        prompts, stored, requests = self.exact_prompts, self._stored, self._requests
        return CommandHandlers(
            self._context.resources.resolver,
            requests.admins,
            ContextView(stored.receipts, prompts.write, prompts.mask, self._links.answer),
            requests.personas,
            stored.personal_data,
            requests.history_scopes,
            requests.anonymous_admins,
            {spec.kind: spec.commands for spec in self._context.specs},
            usage=UsageView(stored.usage_totals, stored.budgets, self._limits.spending.caps),
            notes=self.admin_notes,
            dead_letters=stored.dead_letters,
            private_commands=PrivateCommands(self._sending.private_chats, self._queue.receive),
        )

    @cached_property
    def admin_notes(self) -> AdminNotes:
        surfaces = self._sending.rate_limited_surfaces(best_effort=True)
        operators = sorted(self._context.settings.admins)
        return AdminNotes(
            self._context.resources.chat_settings,
            surfaces,
            self._sending.private_chats,
            operators,
            self._requests.admins.is_still_admin,
        )

    @cached_property
    def exact_prompts(self) -> ExactPromptWriter:
        settings = self._context.settings
        return ExactPromptWriter(
            settings.providers,
            settings.data_dir,
            self._context.models.renderer,
            SecretMasker(collect_secrets(settings)).mask,
        )

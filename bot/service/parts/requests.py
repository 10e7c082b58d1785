"""What judges a request: who is an admin, which history it belongs to, buttons and forms."""

from functools import cached_property

from bot.commands.admins import AdminCheck
from bot.commands.anonymous_admins import AnonymousAdmins
from bot.commands.answer_buttons import AnswerButtons
from bot.commands.personas import UserPersonas
from bot.intake.histories import HistoryRouter
from bot.routing.history_scopes import HistoryScopes
from bot.service.parts.limits import LimitParts
from bot.service.parts.platform_calls import PlatformCalls
from bot.service.parts.platform_forms import PlatformForms
from bot.service.parts.run_context import RunContext
from bot.service.parts.stored import StoredParts
from bot.storage.cache.cached_chat_settings import CachedChatSettings
from bot.storage.console.audit import SqlAuditLog

_MAX_SCOPE_AGE_SECONDS = 3.0  # processes hear of each other's changes over Redis only


class RequestParts:
    """What judges a request, before it is stored and when it is handled."""

    def __init__(
        self, context: RunContext, stored: StoredParts, limits: LimitParts, calls: PlatformCalls
    ) -> None:
        self._context = context
        self._stored = stored
        self._limits = limits
        self._calls = calls

    @cached_property
    def anonymous_admins(self) -> AnonymousAdmins:
        return AnonymousAdmins(self._context.resources.chat_settings)

    @cached_property
    def admins(self) -> AdminCheck:
        return AdminCheck(
            self._context.settings.admins,
            self._calls.is_admin,
            self._context.clock,
            self.anonymous_admins,
            shows_prompts_in_private=self._context.settings.private_prompts,
            shows_prompts_in_groups=self._context.settings.group_prompts
            or self._context.is_in_terminal,
            audit=SqlAuditLog(self._context.resources.database),
        )

    @cached_property
    def personas(self) -> UserPersonas:
        return UserPersonas(self._context.resources.chat_settings)

    @cached_property
    def history_scopes(self) -> HistoryScopes:
        resources = self._context.resources
        chat_settings = resources.chat_settings
        if not isinstance(chat_settings, CachedChatSettings):  # asked for each received event
            chat_settings = CachedChatSettings(
                chat_settings, resources.signals, self._context.clock, _MAX_SCOPE_AGE_SECONDS
            )
        return HistoryScopes(chat_settings, resources.resolver)

    @cached_property
    def history_router(self) -> HistoryRouter:
        return HistoryRouter(self.history_scopes.find, self._stored.history_index)

    @cached_property
    def answer_buttons(self) -> AnswerButtons:
        limits = self._limits.command_limits
        return AnswerButtons(
            self._stored.conversations,
            self._stored.inbox,
            self.admins,
            self.history_router.route_press,
            self._calls.asks_by_replies,
            limits.press_refusal if limits is not None else None,
        )

    @cached_property
    def forms(self) -> PlatformForms:
        return PlatformForms(self.answer_buttons, self.personas, self.history_router)

"""What limits answers: rates, requests at once to a provider, budgets."""

from functools import cached_property

from bot.ports import RateLimits
from bot.runtime.rate_limits import InProcessRateLimits
from bot.service.budgets import budget_rules
from bot.service.parts.run_context import RunContext
from bot.service.parts.stored import StoredParts
from bot.turn.limits.answer_limits import AnswerLimits
from bot.turn.limits.command_limits import CommandLimits
from bot.turn.limits.provider_slots import ProviderSlots
from bot.turn.limits.rare_notices import RareNotices
from bot.turn.limits.spending import Spending

_SLOT_MARGIN_SECONDS = 60.0  # retries and a pause of the process are beyond an answer's own limit


class LimitParts:
    """What limits how often, how much at once and for how much money is answered."""

    def __init__(self, context: RunContext, stored: StoredParts) -> None:
        self._context = context
        self._stored = stored

    @cached_property
    def rate_limits(self) -> RateLimits:
        return self._context.resources.rate_limits or InProcessRateLimits(self._context.clock)

    @cached_property
    def answer_limits(self) -> AnswerLimits | None:
        """None in the terminal: the operator may ask as often as they like."""
        if self._context.is_in_terminal:
            return None
        limits = self._context.settings.limits
        return AnswerLimits(
            self.rate_limits,
            self._context.clock,
            per_person=limits.answers_per_person,
            per_channel=limits.answers_per_channel,
            seconds=limits.seconds,
        )

    @cached_property
    def command_limits(self) -> CommandLimits | None:
        """None in the terminal, and where a person may have any number of answers."""
        limits = self._context.settings.limits
        if self._context.is_in_terminal or not limits.answers_per_person:
            return None
        return CommandLimits.beside_answers(
            self.rate_limits, answers=limits.answers_per_person, seconds=limits.seconds
        )

    @cached_property
    def provider_slots(self) -> ProviderSlots:
        providers = self._context.settings.providers
        limits = {name: one.max_in_flight for name, one in providers.items()}
        longest = max((one.total_seconds for one in providers.values()), default=0.0)
        return ProviderSlots(
            self.rate_limits,
            self._context.clock,
            {name: limit for name, limit in limits.items() if limit is not None},
            lease_seconds=longest + _SLOT_MARGIN_SECONDS,
            max_waiting=self._context.settings.limits.waiting,
            signals=self._context.resources.signals,
        )

    @cached_property
    def spending(self) -> Spending:
        settings = self._context.settings
        return Spending(
            settings.providers,
            self._context.clock,
            self._stored.budgets,
            self.rate_limits,
            budget_rules(settings.budgets, self._context.resources.resolver),
        )

    @cached_property
    def notices(self) -> RareNotices:
        return RareNotices(self.rate_limits)

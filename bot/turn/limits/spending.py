"""Prices and budgets of answers, embeddings and summaries."""

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

import structlog

from bot.backends.spec import ModelPrice, ProviderSettings
from bot.chat.incoming import IncomingMessage
from bot.chat.prompt import Prompt, Usage
from bot.chat.usage import (
    MICROS_PER_DOLLAR,
    AnswerCharge,
    BudgetCap,
    BudgetKind,
    Period,
    format_cost,
)
from bot.errors import BackendUnavailable, BudgetUsedUp, StoreError
from bot.memory.summaries import SummaryRequest
from bot.ports import Clock
from bot.prompting.fit import FittedPrompt
from bot.prompting.presets.preset import Preset
from bot.replying.generate import GeneratedAnswer
from bot.runtime.tasks import StopFlag
from bot.storage.usage import Budgets, UsageLog
from bot.texts.text import Text, translatable
from bot.turn.limits.rate_limits import NoticeLimiter
from bot.turn.limits.slots import ProviderSlots, Urgency
from bot.value_class import value_class

_log = structlog.get_logger(__name__)
_CHARS_PER_TOKEN = 3  # for estimates, rather too high
_MAX_REASONING_TOKENS = 32_000  # the most that a reasoning model adds to an answer
_MODEL_FIELDS = (
    *("provider", "model", "parameters", "max_input_tokens", "max_output_tokens"),
    *("token_counter", "template", "fallbacks"),
)
_SECONDS_BETWEEN_NOTICES = 6 * 3600.0
_BUDGET_NAMES = {
    BudgetKind.PERSON: translatable("Your budget"),
    BudgetKind.CHANNEL: translatable("This channel's budget"),
    BudgetKind.SERVER: translatable("This server's budget"),
    BudgetKind.PRESET: translatable("This preset's budget"),
}
_PERIOD_NAMES = {Period.DAY: translatable("today"), Period.MONTH: translatable("this month")}


@value_class
class BudgetRules:
    """The configured budgets; nothing is limited by default."""

    limits: Mapping[tuple[BudgetKind, Period], int]
    """Maximum spending in millionths of a US dollar."""
    cheaper_preset: Preset | None = None
    """The preset whose model answers when the budget for another model is used up."""
    max_output_tokens: int = 4096
    """The output limit where a budget applies, for presets without their own limit."""


_NO_BUDGET_RULES = BudgetRules({})


@dataclass(slots=True)
class Reservation:
    """An answer's maximum cost, and its actual cost once known."""

    prompt: Prompt
    """The prompt, with an output limit if a budget applies."""
    charge: AnswerCharge
    cost: int | None = None
    caps: Sequence[BudgetCap] = ()
    """The budgets that the answer counts against; empty if no budget applies."""
    request_cost: int = 0
    """The maximum cost of one request, in millionths of a US dollar."""
    reserved_cost: int = 0
    """The amount reserved for all requests so far, in millionths of a US dollar."""


@dataclass(eq=False)
class Spending:
    """Charges answers to the budgets of people, channels, servers and presets."""

    providers: Mapping[str, ProviderSettings]
    """Providers by name, with the prices of their models."""
    clock: Clock
    budgets: Budgets
    notice_limiter: NoticeLimiter
    rules: BudgetRules = _NO_BUDGET_RULES

    @contextlib.asynccontextmanager
    async def reserve_cost(
        self, preset: Preset, message: IncomingMessage, prompt: Prompt, prompt_tokens: int
    ) -> AsyncIterator[Reservation]:
        """Reserve an answer's maximum cost during the block; at its end, charge the actual cost.

        A request that failed before its first token costs nothing. After any other failure, the
        whole reservation is charged. Raises `BudgetUsedUp`, or `StoreError` if the budgets cannot
        be read.
        """
        caps = self.applicable_caps(message, preset)
        model = self._resolve_model(preset.provider, prompt.model)
        charge = AnswerCharge(message.charged_person_id, server_scope(message), model)
        if not caps:
            yield Reservation(prompt, charge)
            return
        prompt = self._with_output_limit(prompt)
        price = self._find_price(preset.provider, prompt.model)
        max_cost = 0 if price is None else _compute_maximum_cost(price, prompt, prompt_tokens)
        caps = await self._reserve_for_one_asker(caps, max_cost)
        reservation = Reservation(prompt, charge, max_cost, caps, max_cost, max_cost)
        try:
            yield reservation
        except BackendUnavailable:
            reservation.cost = 0
            raise
        finally:
            try:
                await self.budgets.settle(caps, reservation.reserved_cost, reservation.cost or 0)
            except StoreError as error:  # the reserved amount stays counted
                _log.warning("budget_not_settled", reason=str(error))

    async def reserve_continuation(self, reservation: Reservation) -> bool:
        """Reserve the cost of another request for the answer; return False if over budget."""
        if not reservation.caps:
            return True
        try:
            if await self.budgets.reserve(reservation.caps, reservation.request_cost) is not None:
                return False
        except StoreError as error:
            _log.warning("budget_not_read", reason=str(error))
            return False
        reservation.reserved_cost += reservation.request_cost
        reservation.cost = reservation.reserved_cost
        return True

    def prompt_with_output_limit(
        self, preset: Preset, message: IncomingMessage, fitted_prompt: FittedPrompt
    ) -> FittedPrompt:
        """Return the prompt with the output limit that `reserve_cost` would set."""
        if not self.applicable_caps(message, preset):
            return fitted_prompt
        return replace(fitted_prompt, prompt=self._with_output_limit(fitted_prompt.prompt))

    def record_actual_cost(
        self, reservation: Reservation, preset: Preset, usages: Iterable[Usage]
    ) -> AnswerCharge:
        """Compute an answer's cost from its usages, record it in the reservation, and return it."""
        price = self._find_price(preset.provider, reservation.prompt.model)
        if price is None:
            return reservation.charge
        reservation.cost = sum(map(price.cost, usages))
        return replace(reservation.charge, cost=reservation.cost)

    def applicable_caps(self, message: IncomingMessage, preset: Preset) -> list[BudgetCap]:
        """Return the budgets that an answer to a message counts against."""
        if not self._has_limits(preset):
            return []
        budget_owners = _budget_owners(message.scopes, server_scope(message))
        first_person_id, *other_person_ids = message.charged_person_ids
        caps = self._build_caps(preset, {BudgetKind.PERSON: first_person_id, **budget_owners})
        person_caps = [cap for cap in caps if cap.kind is BudgetKind.PERSON]
        return caps + [replace(cap, owner=one) for one in other_person_ids for cap in person_caps]

    def channel_caps(self, scopes: Sequence[str], preset: Preset) -> list[BudgetCap]:
        """Return the budgets that apply to every answer in a channel with these scopes."""
        server = scopes[-1] if len(scopes) > 1 else None
        return self._build_caps(preset, _budget_owners(scopes, server))

    def _has_limits(self, preset: Preset) -> bool:
        return bool(self.rules.limits) or preset.budget is not None

    def _build_caps(
        self, preset: Preset, owner_ids: Mapping[BudgetKind, str | None]
    ) -> list[BudgetCap]:
        if not self._has_limits(preset):
            return []
        limits = dict(self.rules.limits)
        if preset.budget is not None:
            preset_budgets = {Period.DAY: preset.budget.day, Period.MONTH: preset.budget.month}
            limits |= {
                (BudgetKind.PRESET, period): round(dollars * MICROS_PER_DOLLAR)
                for period, dollars in preset_budgets.items()
                if dollars is not None
            }
        owners = {**owner_ids, BudgetKind.PRESET: preset.behavior_preset_name or preset.name}
        today = self.clock.utc_now().date().isoformat()
        period_starts = {Period.DAY: today, Period.MONTH: today[: len("2026-11")]}
        return [
            BudgetCap(kind, period, owner, period_starts[period], limit)
            for (kind, period), limit in limits.items()
            if (owner := owners.get(kind)) is not None
        ]

    def with_cheaper_model(self, preset: Preset) -> Preset | None:
        """Return the preset with the configured cheaper model, or None if there is no other."""
        other = self.rules.cheaper_preset
        if other is None or (other.provider, other.model) == (preset.provider, preset.model):
            return None
        return preset.model_copy(update={name: getattr(other, name) for name in _MODEL_FIELDS})

    async def find_cheaper_model_notice(self, message: IncomingMessage) -> Text | None:
        """Return the notice that a cheaper model answers, or None if it was shown recently."""
        notice_name = f"budget:{message.address.conversation}"
        if not await self.notice_limiter.is_due(notice_name, _SECONDS_BETWEEN_NOTICES):
            return None
        return translatable("⚠ A budget is used up, so a cheaper model is answering for now.")

    def describe_used_up_budget(self, cap: BudgetCap) -> Text:
        """Return a text saying which budget is used up and when it is renewed."""
        now = self.clock.utc_now()
        midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
        reset_time = midnight + timedelta(days=1)
        if cap.period is Period.MONTH:
            reset_time = (midnight.replace(day=28) + timedelta(days=4)).replace(day=1)
        return translatable(
            "{whose} of {amount} for {when} is used up. It resets at {time} UTC.",
            whose=_BUDGET_NAMES[cap.kind],
            amount=format_cost(cap.limit),
            when=_PERIOD_NAMES[cap.period],
            time=f"{reset_time:%Y-%m-%d %H:%M}",
        )

    def _with_output_limit(self, prompt: Prompt) -> Prompt:
        if prompt.max_output_tokens is not None:
            return prompt
        return replace(prompt, max_output_tokens=self.rules.max_output_tokens)

    def _resolve_model(self, provider: str, model: str) -> str:
        settings = self.providers.get(provider)
        return settings.model or model if settings and model == "default" else model

    def _find_price(self, provider: str, model: str) -> ModelPrice | None:
        settings = self.providers.get(provider)
        model = self._resolve_model(provider, model)
        return None if settings is None else settings.find_price(model)

    async def _reserve_for_one_asker(
        self, caps: Sequence[BudgetCap], amount: int
    ) -> list[BudgetCap]:
        """Reserve an amount in the shared budgets and in one asker's, or raise `BudgetUsedUp`."""
        person_ids = dict.fromkeys(cap.owner for cap in caps if cap.kind is BudgetKind.PERSON)
        exceeded_cap, shared_caps = None, [cap for cap in caps if cap.kind is not BudgetKind.PERSON]
        for person_id in person_ids or [""]:
            reserved_caps = [*shared_caps, *(cap for cap in caps if cap.owner == person_id)]
            exceeded_cap = await self.budgets.reserve(reserved_caps, amount)
            if exceeded_cap is None:
                return reserved_caps
            if exceeded_cap in shared_caps:
                break
        assert exceeded_cap is not None  # noqa: S101 -- there is one person at least
        raise BudgetUsedUp(self.describe_used_up_budget(exceeded_cap))


def _budget_owners(scopes: Sequence[str], server: str | None) -> dict[BudgetKind, str | None]:
    """Return the channel and server to charge; for a thread, its parent channel."""
    return {BudgetKind.CHANNEL: scopes[max(0, len(scopes) - 2)], BudgetKind.SERVER: server}


def server_scope(message: IncomingMessage) -> str | None:
    """Return the key of a message's server or group, or None for a private chat."""
    return None if message.is_private else message.scopes[-1]


def list_usages(answer: GeneratedAnswer, prompt_tokens: int) -> Iterator[Usage]:
    """Yield the usage of each model request for an answer."""
    output_text = answer.text + answer.thoughts
    yield usage_or_estimate(answer.usage, prompt_tokens, output_text)
    if answer.interrupted_text:  # the first request, which was cut off
        yield usage_or_estimate(Usage(), prompt_tokens, answer.interrupted_text)


def usage_or_estimate(usage: Usage, prompt_tokens: int, answer_text: str) -> Usage:
    """Return the reported usage, or an estimate if the provider reports none."""
    if usage.prompt_tokens or usage.output_tokens:
        return usage
    return Usage(prompt_tokens, output_tokens=math.ceil(len(answer_text) / _CHARS_PER_TOKEN))


def _compute_maximum_cost(price: ModelPrice, prompt: Prompt, prompt_tokens: int) -> int:
    output_limit = prompt.max_output_tokens or 0
    if prompt.parameters.keys() & {"reasoning_effort", "thinking"}:
        output_limit += _MAX_REASONING_TOKENS
    max_usage = Usage(prompt_tokens, written_tokens=prompt_tokens, output_tokens=output_limit)
    return max(price.cost(max_usage), price.cost(replace(max_usage, written_tokens=0)))


@dataclass(eq=False)
class BudgetedSummaries:
    """Charges summaries to budgets, and logs their usage like that of answers."""

    spending: Spending
    usage_log: UsageLog
    slots: ProviderSlots
    urgency: Urgency = Urgency.BACKGROUND
    """With QUESTION, the request also counts against the quota of the chat."""

    @contextlib.asynccontextmanager
    async def pay_for_summary(
        self, preset: Preset, message: IncomingMessage, prompt: Prompt, prompt_tokens: int
    ) -> AsyncIterator[SummaryRequest]:
        """Reserve a summary's cost and a slot during the block, then charge the actual cost."""
        cost_reservation = self.spending.reserve_cost(preset, message, prompt, prompt_tokens)
        async with cost_reservation as reservation:
            request = SummaryRequest(reservation.prompt)
            urgency = self.urgency
            chat = message.address.lane if urgency is Urgency.QUESTION else ""
            cancellation: asyncio.CancelledError | None = None
            async with self.slots.hold(
                preset.provider, StopFlag(), _ignore_position, chat=chat, urgency=urgency
            ):
                try:
                    yield request
                except asyncio.CancelledError as error:  # the output until then is charged
                    cancellation = error
            usage = usage_or_estimate(request.usage, prompt_tokens, request.text)
            charge = self.spending.record_actual_cost(reservation, preset, [usage])
        conversation = message.address.conversation
        await self.usage_log.record(conversation, preset.name, preset.provider, charge, usage)
        if cancellation is not None:
            raise cancellation


def _ignore_position(_position: object) -> None:
    """Ignore the queue position of a summary, which is not shown."""

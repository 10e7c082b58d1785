"""Test that summaries count in usage and budgets, and are not made where a budget is used up."""

from datetime import UTC, datetime

import pytest

from bot.chat.prompt import Message, Prompt, Usage
from bot.chat.usage import BudgetKind, Period, UsageTotal
from bot.errors import BudgetUsedUp
from bot.prompting.presets.preset import Preset
from bot.runtime.in_process import InProcessRateLimits
from bot.storage.database import Database
from bot.storage.usage import Budgets, UsageLog, UsageTotals
from bot.turn.limits.slots import ProviderSlots
from bot.turn.limits.spending import BudgetedSummaries, BudgetRules, Spending
from tests.fakes import FakeClock
from tests.samples import make_incoming
from tests.turn.budgets import PROVIDERS

SAID = make_incoming("hello")
PRESET = Preset.model_validate({"name": "nora", "provider": "p", "model": "m"})
PROMPT = Prompt((Message("user", "Summarize this."),), "m", "channel:summary")
EPOCH = datetime.fromtimestamp(0, UTC)


def make_summaries(database: Database, limit: int) -> tuple[BudgetedSummaries, Spending]:
    clock = FakeClock()
    rules = BudgetRules({(BudgetKind.PERSON, Period.DAY): limit}, max_output_tokens=100)
    spending = Spending(PROVIDERS, clock, Budgets(database), rules=rules)
    slots = ProviderSlots(InProcessRateLimits(clock), clock, {}, 0)
    return BudgetedSummaries(spending, UsageLog(database, clock), slots), spending


async def spent(database: Database, spending: Spending) -> list[int]:
    return [*(await Budgets(database).spent(spending.caps(SAID, PRESET))).values()]


async def test_summary_counts_for_who_was_answered_but_is_no_answer(database: Database) -> None:
    summaries, spending = make_summaries(database, 10_000)
    async with summaries.paid(PRESET, SAID, PROMPT, 50) as request:
        assert request.prompt.max_output_tokens == 100
        request.usage = Usage(1000, 200, 100)  # costs 2,000 millionths
    assert await spent(database, spending) == [2000]
    total = await UsageTotals(database).of_person(SAID.author.id, EPOCH)
    assert total == UsageTotal(0, 1000, 200, 100, 2000, 0)


async def test_unreported_usage_of_a_summary_is_estimated(database: Database) -> None:
    summaries, spending = make_summaries(database, 10_000)
    async with summaries.paid(PRESET, SAID, PROMPT, 50) as request:
        request.text = "x" * 300
    assert await spent(database, spending) == [50 + 100 * 10]


async def test_summary_is_refused_when_the_budget_is_used_up(database: Database) -> None:
    summaries, spending = make_summaries(database, 1_040)
    with pytest.raises(BudgetUsedUp):
        async with summaries.paid(PRESET, SAID, PROMPT, 50):
            pytest.fail("it was allowed")
    assert await spent(database, spending) == [0]

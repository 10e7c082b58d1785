"""/settings usage: what a person's answers cost, for that person alone."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from typing_extensions import override

from bot.chat.command import Command
from bot.chat.incoming import Said, WakeReason
from bot.chat.usage import BudgetCap, BudgetKind, Period, UsageTotal
from bot.commands.reports import UsageView
from bot.commands.request import CommandRequest
from bot.errors import UserError
from bot.prompting.presets.preset import Preset
from bot.routing.presets import ActiveCharacters, ActivePreset
from bot.storage.usage import Budgets, UsageTotals
from tests.samples import make_incoming

NORA = Preset.model_validate({"name": "nora", "provider": "p", "model": "m"})
NOW = datetime(2026, 11, 22, 13, 30, tzinfo=UTC)
PERSON = BudgetCap(BudgetKind.PERSON, Period.DAY, "telegram:1", "2026-11-22", 500_000)
CHANNEL = BudgetCap(BudgetKind.CHANNEL, Period.MONTH, "telegram:5", "2026-11", 20_000_000)


class FakeTotals(UsageTotals):
    """Has one total for the day and one for the month."""

    def __init__(self, day: UsageTotal, month: UsageTotal) -> None:
        self._by_day_of_month = {22: day, 1: month}

    @override
    async def of_person(self, person: str, since: datetime) -> UsageTotal:
        assert person == "telegram:1"
        return self._by_day_of_month[since.day]


class FakeBudgets(Budgets):
    """Some is spent of the person's budget."""

    def __init__(self) -> None:
        """Use no database."""

    @override
    async def reserve(self, caps: Sequence[BudgetCap], amount: int) -> BudgetCap | None:
        return None

    @override
    async def settle(self, caps: Sequence[BudgetCap], reserved: int, spent: int) -> None:
        """Keep what is spent."""

    @override
    async def spent(self, caps: Sequence[BudgetCap]) -> Mapping[str, int]:
        return {PERSON.key: 123_400}


def request_of(said: Said) -> CommandRequest:
    active = ActiveCharacters((ActivePreset(NORA, None, None),))
    return CommandRequest(Command("settings", "usage"), said, active, (), NOW)


def make_view(*caps: BudgetCap) -> UsageView:
    day = UsageTotal(1, 1000, 800, 50, 2100, 0)
    month = UsageTotal(12, 30_000, 0, 900, 45_000, 2)
    return UsageView(FakeTotals(day, month), FakeBudgets(), lambda _said, _preset: caps)


async def test_usage_and_budgets_of_the_asker() -> None:
    assert (await make_view(PERSON, CHANNEL).show(request_of(make_incoming()))).text == (
        "Today: 1 answer, 1000 tokens read (80% from a cache), 50 written, cost $0.0021\n"
        "This month: 12 answers, 30000 tokens read (0% from a cache), 900 written,"
        " cost $0.0450, and 2 answers whose cost is not known\n"
        "Today, your budget: $0.1234 of $0.50 used\n"
        "This month, the budget of this channel: $0.00 of $20.00 used"
    )


@pytest.mark.parametrize(
    "said",
    [
        replace(make_incoming(wake=WakeReason.COMMAND), is_private=True),
        replace(make_incoming(wake=WakeReason.COMMAND, chat="-7"), interaction="t"),
    ],
)
async def test_usage_is_shown_where_nobody_else_reads(said: Said) -> None:
    assert (await make_view().show(request_of(said))).text.startswith("Today: 1 answer")


async def test_usage_is_not_shown_in_a_group() -> None:
    said = make_incoming(wake=WakeReason.COMMAND, chat="-7")
    with pytest.raises(UserError, match="Others here would see your usage"):
        await make_view().show(request_of(said))

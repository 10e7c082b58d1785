"""Test the reports of /context and /usage."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from inline_snapshot import snapshot
from typing_extensions import override

from bot.chat.command import Command
from bot.chat.incoming import IncomingMessage, WakeReason
from bot.chat.prompt import FinishReason, Message, Prompt, Usage
from bot.chat.receipt import DroppedItem, Receipt, Timings
from bot.chat.usage import BudgetCap, BudgetKind, Period, UsageTotal
from bot.commands.reports import ContextView, UsageView, describe_receipt
from bot.commands.request import CommandRequest
from bot.prompting.draft import Draft, HistoryUnit, PromptPart
from bot.prompting.fit import tokens_by_section
from bot.prompting.presets.preset import Preset
from bot.routing.presets import ActiveCharacters, ActivePreset
from bot.storage.receipts import Receipts
from bot.storage.usage import Budgets, UsageTotals
from tests.samples import format_receipt, make_incoming, mask_secret

DRAFT = Draft(
    empty_prompt=Prompt((), "default", "telegram:5"),
    system=(
        PromptPart("system", "You are Nora. " * 10, is_required=True),
        PromptPart("lore", "It rains.", "Rain"),
    ),
    pinned_messages=(Message("user", "hi"), Message("assistant", "ho")),
    summary=PromptPart("summary", "They talked of the sea."),
    history=(HistoryUnit((Message("user", "one " * 40), Message("assistant", "two " * 40))),),
    context=(PromptPart("stories", "Once at the inn …", "The Inn", score=0.834),),
    newest_message=Message("user", "and now?"),
)
RECEIPT = Receipt(
    preset="nora",
    preset_version=3,
    provider="local",
    prompt=DRAFT.prompt,
    layout=DRAFT.layout,
    dropped=(
        DroppedItem("stories", "An Epic", "larger than the remaining budget", 1, 900, 0.91),
        DroppedItem("history", "", "the budget was used up", 12),
    ),
    tokens=187,
    limit=1600,
    answer="Hi.",
    reason=FinishReason.STOP,
    usage=Usage(190, 150, 4),
    timings=Timings(0.21, 0.84, 3.2),
)


def test_context_shows_sections_stories_and_dropped_items() -> None:
    assert describe_receipt(17, RECEIPT) == snapshot("""\
nora (version 3) on local/default, receipt 17: 190 of 1600 tokens
███░░░░░░░░░ system 43 (23%)
█░░░░░░░░░░░ lore 4 (2%)
█░░░░░░░░░░░ pinned messages 19 (10%)
█░░░░░░░░░░░ summary 14 (7%)
██████░░░░░░ history 100 (53%)
█░░░░░░░░░░░ stories 6 (3%)
█░░░░░░░░░░░ newest message 4 (2%)
lore: “Rain”
stories: “The Inn” 0.83
Left out: stories “An Epic” 0.91, about 900 tokens – larger than the remaining budget
Left out: the 12 oldest messages – the budget was used up
queued 0.2 s, first token after 0.8 s, generated in 3.2 s, 4 tokens, 150 prompt tokens were cached \
(79%), cost not known\
""")


def test_context_of_a_receipt_without_usage_or_dropped_items_is_shown() -> None:
    bare = replace(RECEIPT, dropped=(), usage=Usage(), limit=None, preset_version=None)
    shown = describe_receipt(17, bare)
    assert shown.startswith("nora on local/default, receipt 17: 187 tokens\n")
    assert "Nothing was left out." in shown


def test_context_lists_a_limited_number_of_stories() -> None:
    stories = tuple(
        PromptPart("stories", "x", f"story {n} {'y' * 200}", score=0.5) for n in range(300)
    )
    long = replace(DRAFT, context=stories)
    receipt = replace(RECEIPT, prompt=long.prompt, layout=long.layout)
    receipt = replace(receipt, dropped=RECEIPT.dropped * 100)
    assert len(describe_receipt(17, receipt)) < 2000


@given(st.integers(0, 5000))
def test_section_tokens_add_up_to_the_prompt_tokens(tokens: int) -> None:
    receipt = replace(RECEIPT, usage=Usage(), tokens=tokens)
    assert sum(tokens_by_section(receipt).values()) == tokens


class OneReceipt(Receipts):
    """A receipt store in which every conversation has receipt 17."""

    def __init__(self) -> None:
        """Create it without a database."""

    @override
    async def find_for_last_message(self, conversation: str) -> Sequence[tuple[int, Receipt]]:
        return [(17, RECEIPT)]


@pytest.mark.parametrize(("for_admin", "lines"), [(True, 1), (False, 0)])
async def test_admins_get_a_link_to_the_answer_in_the_console(for_admin: bool, lines: int) -> None:
    view = ContextView(
        OneReceipt(), format_receipt, mask_secret, lambda number: f"http://here/answers/{number}"
    )

    shown = await view.describe_context("telegram:5", is_for_admin=for_admin)

    assert shown.splitlines().count("In the console: http://here/answers/17") == lines


NORA = Preset.model_validate({"name": "nora", "provider": "p", "model": "m"})
NOW = datetime(2026, 11, 22, 13, 30, tzinfo=UTC)
PERSON = BudgetCap(BudgetKind.PERSON, Period.DAY, "telegram:1", "2026-11-22", 500_000)
CHANNEL = BudgetCap(BudgetKind.CHANNEL, Period.MONTH, "telegram:5", "2026-11", 20_000_000)


class FakeTotals(UsageTotals):
    """Has one total for the day and one for the month."""

    def __init__(self, day: UsageTotal, month: UsageTotal) -> None:
        self._by_day_of_month = {22: day, 1: month}

    @override
    async def person_total(self, person: str, since: datetime) -> UsageTotal:
        assert person == "telegram:1"
        return self._by_day_of_month[since.day]


class FakeBudgets(Budgets):
    """Budgets of which a person has spent a part."""

    def __init__(self) -> None:
        """Create it without a database."""

    @override
    async def load_spent_amounts(self, caps: Sequence[BudgetCap]) -> Mapping[str, int]:
        return {PERSON.key: 123_400}


def make_usage_request(message: IncomingMessage) -> CommandRequest:
    active = ActiveCharacters((ActivePreset(NORA, None, None),))
    return CommandRequest(Command("settings", "usage"), message, active, (), NOW)


def make_view(*caps: BudgetCap) -> UsageView:
    day = UsageTotal(1, 1000, 800, 50, 2100, 0)
    month = UsageTotal(12, 30_000, 0, 900, 45_000, 2)
    return UsageView(FakeTotals(day, month), FakeBudgets(), lambda _said, _preset: caps)


async def test_usage_shows_costs_and_budgets_of_the_asker() -> None:
    assert (
        await make_view(PERSON, CHANNEL).show_usage(make_usage_request(make_incoming()))
    ).text == (
        "Today: 1 answer, 1000 tokens read (80% from a cache), 50 written, cost $0.0021\n"
        "This month: 12 answers, 30000 tokens read (0% from a cache), 900 written,"
        " cost $0.0450, plus 2 answers of unknown cost\n"
        "Today, your budget: $0.1234 of $0.50 used\n"
        "This month, this channel's budget: $0.00 of $20.00 used"
    )


@pytest.mark.parametrize(
    "message",
    [
        replace(make_incoming(wake=WakeReason.COMMAND), is_private=True),
        replace(make_incoming(wake=WakeReason.COMMAND, chat="-7"), interaction="t"),
    ],
)
async def test_usage_is_shown_only_in_private(message: IncomingMessage) -> None:
    assert (await make_view().show_usage(make_usage_request(message))).text.startswith(
        "Today: 1 answer"
    )

"""Test that budget is reserved before an answer, and the real cost is charged after it."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from bot.chat.incoming import Person
from bot.chat.prompt import Message, Prompt, Usage
from bot.chat.usage import BudgetCap, BudgetKind, Period, UsageTotal, format_cost
from bot.errors import BackendInterrupted, BackendUnavailable, BudgetUsedUp
from bot.prompting.presets.preset import Preset
from bot.runtime.in_process import InProcessRateLimits
from bot.storage.database import Database
from bot.storage.receipts import Receipts
from bot.storage.usage import Budgets, UsageLog, UsageTotals
from bot.turn.limits.rate_limits import AnswerLimits, LimitSettings, NoticeLimiter
from bot.turn.limits.slots import ProviderSlots
from bot.turn.limits.spending import BudgetedSummaries, BudgetRules, Spending
from tests.fakes import FakeBackend, FakeClock, FakeRemoteBackend
from tests.samples import ALICE, BOB, make_incoming
from tests.turn.budgets import DONE, PERSON_A_DAY, PROVIDERS, make_setup
from tests.turn.busy_channel import LIMITS_OF_CHATS, answer_all, asked
from tests.turn.setup import CHAT, Setup


async def costs(database: Database) -> list[int | None]:
    return [one.charge.cost for _, one in await Receipts(database).find_for_last_message(CHAT)]


async def test_receipt_records_the_cost_and_who_asked(database: Database) -> None:
    setup = make_setup(database, ["Hi.", DONE])
    await setup.say("hello")
    [(_, receipt)] = await Receipts(database).find_for_last_message(CHAT)
    assert receipt.charge.cost == 2000
    assert (receipt.charge.person, receipt.charge.model) == ("telegram:1", "m")
    assert receipt.prompt.max_output_tokens is None  # nothing is limited


async def test_cost_of_a_model_without_a_price_is_unknown(database: Database) -> None:
    setup = make_setup(database, ["Hi.", DONE], preset={"provider": "q"})
    await setup.say("hello")
    assert await costs(database) == [None]


async def test_cost_is_estimated_if_the_provider_reports_no_usage(database: Database) -> None:
    setup = make_setup(database, ["x" * 300])
    await setup.say("hello")
    [cost] = await costs(database)
    assert cost is not None
    assert 1000 <= cost < 1100  # 100 tokens of the answer, and the prompt


async def test_refusal_over_budget_says_when_the_budget_resets(database: Database) -> None:
    setup = make_setup(database, ["Hi.", DONE], budgets={PERSON_A_DAY: 4_100})
    await setup.say("hello", "again")
    assert setup.texts == [
        "Hi.",
        "⚠ Your budget of $0.0041 for today is used up. It resets at 2023-11-15 00:00 UTC.",
    ]
    assert len(setup.backend.prompts) == 1
    assert setup.backend.prompts[0].max_output_tokens == 400  # what is reserved is enough


async def test_daily_budget_resets_on_the_next_day(database: Database) -> None:
    setup = make_setup(database, ["Hi.", DONE], ["Ho.", DONE], budgets={PERSON_A_DAY: 4_100})
    await setup.say("hello", "again")
    await setup.clock.advance(86_400)
    await setup.say("and again")
    assert setup.texts[-1] == "Ho."


async def test_preset_may_have_its_own_budget(database: Database) -> None:
    setup = make_setup(database, ["Hi.", DONE], preset={"budget": {"month": 0.0041}})
    await setup.say("hello", "again")
    assert setup.texts[1] == (
        "⚠ This preset's budget of $0.0041 for this month is used up. It resets at 2023-12-01"
        " 00:00 UTC."
    )


async def test_request_that_failed_costs_nothing(database: Database) -> None:
    setup = make_setup(
        database, [BackendUnavailable("away")], ["Hi.", DONE], budgets={PERSON_A_DAY: 4_100}
    )
    await setup.say("hello", "again")
    assert setup.texts[1] == "Hi."


async def test_cheaper_model_answers_over_budget_with_one_notice(database: Database) -> None:
    cheaper = Preset.model_validate({"name": "small", "provider": "q", "model": "tiny"})
    small = FakeBackend(["Lo."], ["Li."])
    budgets = {PERSON_A_DAY: 4_100}
    setup = make_setup(database, ["Hi.", DONE], budgets=budgets, cheaper=cheaper, fallback=small)
    await setup.say("hello", "again", "and again")
    notice = "⚠ A budget is used up, so a cheaper model is answering for now."
    assert setup.texts == ["Hi.", "Lo.", notice, "Li."]
    assert [prompt.model for prompt in small.prompts] == ["tiny", "tiny"]
    turns = (await setup.session()).turns
    assert {turn.preset for turn in turns if turn.role == "assistant"} == {"nora"}


async def test_spending_in_a_topic_counts_against_the_topic_and_its_group(
    database: Database,
) -> None:
    limits = {(kind, Period.MONTH): 1 for kind in BudgetKind}
    spending = make_setup(database, budgets=limits).container.spending
    topic = make_incoming(thread="9", chat="-7")
    private = replace(make_incoming(), is_private=True)
    nora = Preset.model_validate({"name": "nora", "provider": "p", "model": "m"})
    assert [cap.owner for cap in spending.applicable_caps(topic, nora)] == [
        "telegram:1",
        "telegram:-7:9",
        "telegram:-7",
        "nora",
    ]
    assert [cap.kind for cap in spending.applicable_caps(private, nora)] == [
        "person",
        "channel",
        "preset",
    ]


@pytest.mark.parametrize(
    ("micros", "text"),
    [
        (0, "$0.00"),
        (40, "<$0.0001"),
        (410, "$0.0004"),
        (50_000, "$0.05"),
        (12_345_678, "$12.35"),
    ],
)
def test_amounts_are_formatted_with_significant_digits(micros: int, text: str) -> None:
    assert format_cost(micros) == text


@pytest.mark.parametrize(
    ("limit", "text", "requests"),
    [(20_000, "Once upon a time.", 2), (4_100, "Once upon\n\n⚠ (interrupted)", 1)],
    ids=["enough for both", "enough for one"],
)
async def test_budget_is_reserved_for_the_continuation_of_a_cut_answer(
    database: Database, limit: int, text: str, requests: int
) -> None:
    cut: list[Any] = ["Once upon ", BackendInterrupted("reset", can_continue=True)]
    backend = FakeRemoteBackend(cut, ["a time.", DONE])
    setup = make_setup(database, backend=backend, budgets={PERSON_A_DAY: limit})
    await setup.say("a story")
    assert setup.texts == [text]
    assert len(setup.backend.prompts) == requests
    [cost] = await costs(database)
    assert cost is not None
    assert cost > 2000 if requests == 2 else cost < 2000


LIMITS = {(BudgetKind.PERSON, Period.DAY): 6_000, (BudgetKind.CHANNEL, Period.DAY): 50_000}


def burst(database: Database) -> Setup:
    """Return a group in which one answer covers simultaneous questions of Alice and Bob."""
    script: list[Any] = ["Both of you.", DONE]
    group: dict[str, Any] = {"limits": LIMITS_OF_CHATS, "preset": {"context": "all"}}
    return make_setup(database, script, budgets=LIMITS, **group)


def caps(setup: Setup) -> dict[str, BudgetCap]:
    """Return the budgets of Alice, Bob and the channel, by owner."""
    preset, of = setup.resolver.default_preset, setup.container.spending.applicable_caps
    return {cap.owner: cap for one in (ALICE, BOB) for cap in of(asked(1, one), preset)}


async def answer_burst(setup: Setup, *used_up: Person) -> dict[str, int]:
    """Answer Alice and Bob, with the budgets of `used_up` spent; return the spending per budget."""
    budgets, by_owner = setup.container.budgets, caps(setup)
    for person in used_up:
        cap = by_owner[person.id]
        assert await budgets.reserve([cap], cap.limit) is None
    await answer_all(setup, asked(1, ALICE), asked(2, BOB))
    spent = await budgets.load_spent_amounts(list(by_owner.values()))
    return {owner: spent.get(cap.key, 0) for owner, cap in by_owner.items()}


@pytest.mark.parametrize(
    ("used_up", "spent"), [((), {ALICE: 0, BOB: 2_000}), ((BOB,), {ALICE: 2_000, BOB: 6_000})]
)
async def test_newest_author_within_budget_pays_for_a_shared_answer(
    database: Database, used_up: tuple[Person, ...], spent: dict[Person, int]
) -> None:
    setup = burst(database)
    of_people = {person.id: amount for person, amount in spent.items()}
    assert await answer_burst(setup, *used_up) == {**of_people, "telegram:5": 2_000}
    assert setup.texts == ["Both of you."]


async def test_nothing_stays_reserved_if_nobody_can_pay(database: Database) -> None:
    setup = burst(database)
    spent = await answer_burst(setup, ALICE, BOB)
    assert spent == {ALICE.id: 6_000, BOB.id: 6_000, "telegram:5": 0}
    [told] = setup.texts
    assert "Your budget of $0.0060 for today is used up" in told


async def test_person_over_their_rate_limit_does_not_delay_other_people(database: Database) -> None:
    """Bob is over his limit and writes last, but Alice's question must still be answered."""
    clock = FakeClock()
    rates = InProcessRateLimits(clock)
    settings = LimitSettings(answers_per_person=1, seconds=3600)
    limits = AnswerLimits(rates, clock, settings)
    scripts = ["For Bob."], ["Both of you."]
    group: dict[str, Any] = {"limits": LIMITS_OF_CHATS, "preset": {"context": "all"}}
    setup = Setup(database, *scripts, clock=clock, answer_limits=limits, **group)
    await setup.say(asked(1, BOB))
    await answer_all(setup, asked(2, ALICE), asked(3, BOB))
    assert setup.texts == ["For Bob.", "Both of you."]


SAID = make_incoming("hello")
PRESET = Preset.model_validate({"name": "nora", "provider": "p", "model": "m"})
PROMPT = Prompt((Message("user", "Summarize this."),), "m", "channel:summary")
EPOCH = datetime.fromtimestamp(0, UTC)


def make_summaries(database: Database, limit: int) -> tuple[BudgetedSummaries, Spending]:
    clock = FakeClock()
    rules = BudgetRules({(BudgetKind.PERSON, Period.DAY): limit}, max_output_tokens=100)
    rates = InProcessRateLimits(clock)
    spending = Spending(PROVIDERS, clock, Budgets(database), NoticeLimiter(rates), rules)
    slots = ProviderSlots(rates, clock, {}, 0)
    return BudgetedSummaries(spending, UsageLog(database, clock), slots), spending


async def spent(database: Database, spending: Spending) -> list[int]:
    return [
        *(
            await Budgets(database).load_spent_amounts(spending.applicable_caps(SAID, PRESET))
        ).values()
    ]


async def test_summary_is_charged_to_the_person_answered_but_not_counted_as_an_answer(
    database: Database,
) -> None:
    summaries, spending = make_summaries(database, 10_000)
    async with summaries.pay_for_summary(PRESET, SAID, PROMPT, 50) as request:
        assert request.prompt.max_output_tokens == 100
        request.usage = Usage(1000, 200, 100)  # costs 2,000 millionths
    assert await spent(database, spending) == [2000]
    total = await UsageTotals(database).person_total(SAID.author.id, EPOCH)
    assert total == UsageTotal(0, 1000, 200, 100, 2000, 0)


async def test_unreported_usage_of_a_summary_is_estimated(database: Database) -> None:
    summaries, spending = make_summaries(database, 10_000)
    async with summaries.pay_for_summary(PRESET, SAID, PROMPT, 50) as request:
        request.text = "x" * 300
    assert await spent(database, spending) == [50 + 100 * 10]


async def test_summary_is_refused_when_the_budget_is_used_up(database: Database) -> None:
    summaries, spending = make_summaries(database, 1_040)
    with pytest.raises(BudgetUsedUp):
        async with summaries.pay_for_summary(PRESET, SAID, PROMPT, 50):
            pytest.fail("it was allowed")
    assert await spent(database, spending) == [0]

"""Test that answers are charged, and that budgets are reserved before and settled after them."""

from dataclasses import replace
from typing import Any

import pytest

from bot.chat.usage import BudgetKind, Period, format_cost
from bot.errors import BackendInterrupted, BackendUnavailable
from bot.prompting.presets.preset import Preset
from bot.storage.database import Database
from bot.storage.receipts import Receipts
from bot.turn.limits.spending import BudgetRules, Spending
from tests.fakes import FakeBackend, FakeClock, FakeRemoteBackend
from tests.samples import BOB, make_incoming
from tests.turn.budgets import DONE, PERSON_A_DAY, make_setup
from tests.turn.setup import CHAT


async def costs(database: Database) -> list[int | None]:
    return [one.charge.cost for _, one in await Receipts(database).newest(CHAT)]


async def test_receipt_says_what_an_answer_cost_and_who_asked(database: Database) -> None:
    setup = make_setup(database, ["Hi.", DONE])
    await setup.say("hello")
    [(_, receipt)] = await Receipts(database).newest(CHAT)
    assert receipt.charge.cost == 2000
    assert (receipt.charge.person, receipt.charge.model) == ("telegram:1", "m")
    assert receipt.prompt.max_output_tokens is None  # nothing is limited


async def test_cost_of_a_model_without_a_price_is_not_known(database: Database) -> None:
    setup = make_setup(database, ["Hi.", DONE], preset={"provider": "q"})
    await setup.say("hello")
    assert await costs(database) == [None]


async def test_cost_is_estimated_where_the_provider_counts_nothing(database: Database) -> None:
    setup = make_setup(database, ["x" * 300])
    await setup.say("hello")
    [cost] = await costs(database)
    assert cost is not None
    assert 1000 <= cost < 1100  # 100 tokens of the answer, and the prompt


async def test_budget_refuses_with_the_time_of_renewal(database: Database) -> None:
    setup = make_setup(database, ["Hi.", DONE], limits={PERSON_A_DAY: 4_100})
    await setup.say("hello", "again")
    assert setup.texts == [
        "Hi.",
        "⚠ Your budget of $0.0041 is used up today. It is renewed at 2023-11-15 00:00 UTC.",
    ]
    assert len(setup.backend.prompts) == 1
    assert setup.backend.prompts[0].max_output_tokens == 400  # what is reserved is enough


async def test_budget_of_somebody_else_is_another_one(database: Database) -> None:
    setup = make_setup(database, ["Hi.", DONE], ["Ho.", DONE], limits={PERSON_A_DAY: 4_100})
    await setup.say("hello", make_incoming("again", key="5:2", author=BOB))
    assert setup.texts == ["Hi.", "Ho."]


async def test_budget_is_renewed(database: Database) -> None:
    setup = make_setup(database, ["Hi.", DONE], ["Ho.", DONE], limits={PERSON_A_DAY: 4_100})
    await setup.say("hello", "again")
    await setup.clock.advance(86_400)
    await setup.say("and again")
    assert setup.texts[-1] == "Ho."


async def test_preset_may_have_a_budget_of_its_own(database: Database) -> None:
    setup = make_setup(database, ["Hi.", DONE], preset={"budget": {"month": 0.0041}})
    await setup.say("hello", "again")
    assert setup.texts[1] == (
        "⚠ The budget of this preset of $0.0041 is used up this month. It is renewed at 2023-12-01"
        " 00:00 UTC."
    )


async def test_request_that_failed_costs_nothing(database: Database) -> None:
    setup = make_setup(
        database, [BackendUnavailable("away")], ["Hi.", DONE], limits={PERSON_A_DAY: 4_100}
    )
    await setup.say("hello", "again")
    assert setup.texts[1] == "Hi."


async def test_cheaper_model_answers_first_and_is_told_of_once(database: Database) -> None:
    cheaper = Preset.model_validate({"name": "small", "provider": "q", "model": "tiny"})
    small = FakeBackend(["Lo."], ["Li."])
    setup = make_setup(
        database,
        ["Hi.", DONE],
        limits={PERSON_A_DAY: 4_100},
        cheaper=cheaper,
        fallback=small,
    )
    await setup.say("hello", "again", "and again")
    notice = "⚠ A budget is used up, so a cheaper model answers for the time being."
    assert setup.texts == ["Hi.", "Lo.", notice, "Li."]
    assert [prompt.model for prompt in small.prompts] == ["tiny", "tiny"]
    turns = (await setup.session()).turns
    assert {turn.preset for turn in turns if turn.role == "assistant"} == {"nora"}


def test_channel_of_a_thread_is_its_parent_and_its_server_the_widest_scope() -> None:
    clock = FakeClock()
    limits = {(kind, Period.MONTH): 1 for kind in BudgetKind}
    spending = Spending({}, clock, rules=BudgetRules(limits))
    topic = make_incoming(thread="9", chat="-7")
    private = replace(make_incoming(), is_private=True)
    nora = Preset.model_validate({"name": "nora", "provider": "p", "model": "m"})
    assert [cap.owner for cap in spending.caps(topic, nora)] == [
        "telegram:1",
        "telegram:-7:9",
        "telegram:-7",
        "nora",
    ]
    assert [cap.kind for cap in spending.caps(private, nora)] == ["person", "channel", "preset"]


@pytest.mark.parametrize(
    ("micros", "text"), [(0, "$0.00"), (410, "$0.0004"), (50_000, "$0.05"), (12_345_678, "$12.35")]
)
def test_amounts_are_written_with_the_digits_that_matter(micros: int, text: str) -> None:
    assert format_cost(micros) == text


@pytest.mark.parametrize(
    ("limit", "text", "requests"),
    [(20_000, "Once upon a time.", 2), (4_100, "Once upon\n\n⚠ (interrupted)", 1)],
    ids=["enough for both", "enough for one"],
)
async def test_continuation_of_a_cut_answer_is_reserved_like_another_answer(
    database: Database, limit: int, text: str, requests: int
) -> None:
    cut: list[Any] = ["Once upon ", BackendInterrupted("reset", can_continue=True)]
    setup = make_setup(
        database,
        backend=FakeRemoteBackend(cut, ["a time.", DONE]),
        limits={PERSON_A_DAY: limit},
    )
    await setup.say("a story")
    assert setup.texts == [text]
    assert len(setup.backend.prompts) == requests
    [cost] = await costs(database)
    assert cost is not None
    assert cost > 2000 if requests == 2 else cost < 2000

"""Usage and the list of channels, as pages and over the API."""

from dataclasses import replace
from datetime import UTC, date, datetime

import pytest

from bot.chat.usage import AnswerCharge, UsageRow, UsageTotal
from bot.console.channels import ChannelsPage
from bot.console.usage_page import UsagePage, usage_sums
from bot.runtime.clock import SystemClock
from bot.storage.chat_settings import SqlChatSettings
from bot.storage.reports import ServiceState
from bot.storage.usage import UsageTotals
from tests.support.console import ConsoleUnderTest, MakeParts, store_answers
from tests.support.store import RECEIPT

CLOCK = SystemClock()


@pytest.fixture
def make_parts() -> MakeParts:
    return lambda database: [
        UsagePage(UsageTotals(database), CLOCK),
        ChannelsPage(ServiceState(database, CLOCK), "assistant"),
    ]


async def store_paid_answer(console: ConsoleUnderTest) -> None:
    paid = replace(RECEIPT, charge=AnswerCharge("telegram:1", None, "=gpt", 2_500))
    await store_answers(console, paid)


async def test_usage_is_added_up_and_sent_as_csv(console: ConsoleUnderTest) -> None:
    await store_paid_answer(console)
    today = datetime.now(UTC).date().isoformat()
    await console.log_in()

    table = await console.page("/usage.csv")
    page = await console.page("/usage?by=channel")

    line = f"{today},telegram:1,telegram:5,,nora,local,'=gpt,1,121,100,4,0.002500,0"
    assert table.splitlines()[1:] == [line]
    assert '<a href="/answers?channel=telegram%3A5"><span class="place" title="telegram:5">' in page
    assert "$0.0025" in page


async def test_days_are_bounded_and_wrong_ones_refused(console: ConsoleUnderTest) -> None:
    found = await console.read("/usage?until=0001-01-01&since=9999-12-31")
    assert found == {"since": "2020-01-01", "until": "2020-01-01", "sums": []}
    found = await console.read("/usage?since=&until=")  # the default
    begin, end = (date.fromisoformat(found[name]) for name in ("since", "until"))
    assert ((end - begin).days, found["sums"]) == (29, [])
    await console.log_in()
    for query in ("since=soon", "by=nothing"):
        assert (await console.client.get(f"/usage?{query}")).status == 422


def test_sums_are_sorted_and_complete() -> None:
    total = UsageTotal(2, 100, 40, 10, 5_000, 1)
    rows = [
        UsageRow("2026-11-01", "a", "c", "", "small", "local", "m", total),
        UsageRow("2026-11-02", "b", "c", "", "large", "local", "m", replace(total, answers=9)),
        UsageRow("2026-11-02", "a", "c", "", "large", "local", "m", total),
    ]

    assert [one.name for one in usage_sums(rows, "day")] == ["2026-11-02", "2026-11-01"]
    assert [(one.name, one.answers) for one in usage_sums(rows, "preset")] == [
        *(("large", 11), ("small", 2))
    ]
    [whole] = usage_sums(rows, "channel")
    assert (whole.prompt_tokens, whole.cost, whole.answers_without_cost) == (300, 0.015, 3)


async def test_channels_show_settings_but_no_personas(console: ConsoleUnderTest) -> None:
    await store_paid_answer(console)
    settings = SqlChatSettings(console.database, CLOCK)
    await settings.set("telegram:5", "preset", "nora", "telegram:1")
    await settings.set("telegram:5", "persona telegram:1", "a private word", "telegram:1")
    await console.log_in()

    found = await console.read("/channels")
    page = await console.page("/channels")

    assert [(one["channel"], one["newest"]) for one in found["channels"]] == [("telegram:5", 1)]
    assert [(one["key"], one["value"]) for one in found["settings"]] == [("preset", "nora")]
    assert "a private word" not in page
    assert "assistant answers" in page

"""Home, usage, and the list of channels, as pages and over the API."""

from dataclasses import replace
from datetime import UTC, date, datetime

import pytest

from bot.chat.prompt import Usage
from bot.chat.receipt import Timings
from bot.chat.usage import AnswerCharge, UsageTotal
from bot.console.channels import ChannelsPage
from bot.console.home import HomePage, sum_usage
from bot.runtime.clock import SystemClock
from bot.storage.chat_settings import SqlChatSettings
from bot.storage.operation import SqlMessageNotes
from bot.storage.reports import ServiceState
from bot.storage.usage import UsageLog, UsageTotals
from bot.telemetry.logs import RecentEvents, create_failure_note
from tests.support.console import ConsoleUnderTest, MakeParts, store_answers
from tests.support.store import RECEIPT

CLOCK = SystemClock()


@pytest.fixture
def make_parts() -> MakeParts:
    return lambda database: [
        HomePage(UsageTotals(database), None, lambda: {"Model": True, "Discord": False}, CLOCK),
        ChannelsPage(ServiceState(database, CLOCK), "assistant"),
    ]


async def store_paid_answer(console: ConsoleUnderTest) -> None:
    paid = replace(RECEIPT, charge=AnswerCharge("telegram:1", None, "=gpt", 2_500))
    await store_answers(console, paid)


async def test_usage_is_summed_and_downloaded_as_csv(console: ConsoleUnderTest) -> None:
    await store_paid_answer(console)
    today = datetime.now(UTC).date().isoformat()
    await console.log_in()

    table = await console.page("/usage.csv")
    page = await console.page("/home?by=channel")

    line = f"{today},telegram:1,telegram:5,,nora,local,'=gpt,1,121,100,4,0.002500,0"
    assert table.splitlines()[1:] == [line]
    assert "&amp;channel=telegram%3A5" in page
    assert '<span class="place" title="telegram:5">' in page
    assert "$0.0025" in page


async def test_cost_of_requests_without_an_answer_is_shown_without_a_link(
    console: ConsoleUnderTest,
) -> None:
    log, charge = UsageLog(console.database, CLOCK), AnswerCharge("web:console", None, "gpt", 1_500)
    await log.record("telegram:5", "nora", "local", charge, Usage(10, 0, 1))
    await console.log_in()

    table = await console.page("/usage.csv")
    page = await console.page("/home?by=person")

    assert table.endswith(",web:console,telegram:5,,nora,local,gpt,0,10,0,1,0.001500,0\n")
    assert '<td class="r">$0.0015</td>' in page
    assert "person=web%3Aconsole" not in page


async def test_date_ranges_are_limited_and_invalid_dates_refused(console: ConsoleUnderTest) -> None:
    found = await console.read("/usage?until=0001-01-01&since=9999-12-31")
    assert found == {"since": "2020-01-01", "until": "2020-01-01", "sums": []}
    found = await console.read("/usage?since=&until=")  # the default
    begin, end = (date.fromisoformat(found[name]) for name in ("since", "until"))
    assert ((end - begin).days, found["sums"]) == (29, [])
    await console.log_in()
    for path in ("/usage.csv?since=soon", "/home?by=nothing", "/home?span=1y"):
        assert (await console.client.get(path)).status == 422


def test_usage_is_summed_per_name_and_sorted() -> None:
    total = UsageTotal(2, 100, 40, 10, 5_000, 1)
    rows = [(0, "small", total), (3, "large", replace(total, answers=9)), (5, "large", total)]

    cheap = replace(total, prompt_tokens=9_000, cost=1)
    large, small, _ = sum_usage([(0, "cheap", cheap), *rows])

    assert [(one.name, one.answers) for one in (large, small)] == [("large", 11), ("small", 2)]
    assert (large.prompt_tokens, large.cost, large.answers_without_cost) == (200, 0.01, 2)


async def test_chart_figures_are_returned_for_each_time_step(console: ConsoleUnderTest) -> None:
    fast, slow = (replace(RECEIPT, timings=Timings(0.0, one, 2.0)) for one in (0.5, 1.5))
    await store_answers(console, fast, slow, replace(fast, preset="marlowe"))
    events = RecentEvents()
    notes = SqlMessageNotes(console.database, CLOCK)
    await notes.add([create_failure_note(events, "discord:5:1")])

    day = await console.read("/figures?by=preset")
    month = await console.read("/figures?by=preset&span=30d")

    for found, steps in ((day, 24), (month, 30)):
        assert [one["name"] for one in found["sums"]] == ["nora", "marlowe"]
        assert [len(one) for one in found["answers"]] == [steps, steps]
        assert [one[-1] for one in found["answers"]] == [2, 1]
        assert (found["errors"][-1], sum(found["errors"])) == (1, 1)
        assert found["first_words"][-1] == found["first_word"] == [0.5, 1.5]
        assert found["first_words"][0] is None
        assert round(found["cached"][-1]) == round(100 * 100 / 121)
    await console.log_in()
    assert "1 answer failed." in await console.page("/home")


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

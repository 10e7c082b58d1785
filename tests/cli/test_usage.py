"""`troupe usage` prints what answers cost as CSV."""

import asyncio
import csv
import io
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from bot.chat.prompt import Usage
from bot.chat.session import TurnResult
from bot.chat.usage import AnswerCharge, UsageRow, UsageTotal, format_usage_table
from bot.errors import UserError
from bot.runtime.clock import SystemClock
from bot.storage.conversations import Conversations
from bot.storage.database import open_database
from bot.storage.inbox import SqlInbox
from tests.cli.command import troupe
from tests.commands.test_reports import RECEIPT
from tests.samples import begin, make_incoming

HEAD = (
    "day,person,channel,server,preset,provider,model,answers,prompt_tokens,cached_tokens,"
    "output_tokens,cost_usd,answers_without_cost"
)


@pytest.fixture(autouse=True)
def _prepare(folder: Path) -> None:
    (folder / "data").mkdir()


def usage(*words: str) -> list[str]:
    return troupe("usage", *words).splitlines()


def store_answers() -> None:
    paid = replace(
        RECEIPT, usage=Usage(100, 40, 10), charge=AnswerCharge("telegram:1", None, "gpt", 2500)
    )
    unpriced = replace(paid, preset="=nora", charge=AnswerCharge("telegram:1", None, "tiny"))

    async def finish() -> None:
        async with open_database("sqlite:///data/troupe.db") as database:
            conversations = Conversations(database, SystemClock())
            await SqlInbox(database, SystemClock()).receive([make_incoming()], {})
            claim, message = await begin(conversations)
            result = TurnResult(receipts=[paid, paid, unpriced])
            await conversations.finish(claim, message, result)

    asyncio.run(finish())


def test_usage_has_a_row_for_each_model_and_no_formulas() -> None:
    store_answers()
    today = datetime.now(UTC).date().isoformat()
    assert usage("--since", "2026-01-01") == [
        HEAD,
        f"{today},telegram:1,telegram:5,,'=nora,local,tiny,1,100,40,10,,1",
        f"{today},telegram:1,telegram:5,,nora,local,gpt,2,200,80,20,0.005000,0",
    ]


@pytest.mark.parametrize("model", ["=1+1", "+1", "-1", "@SUM(1)", "＝1", "\t=1", "\r\n=1"])
def test_no_name_is_a_formula(model: str) -> None:
    total = UsageTotal(1, 0, 0, 0, 0, 0)
    row = UsageRow("2026-01-01", "p", "c", "", "nora", "local", model, total)

    [read] = csv.DictReader(io.StringIO(format_usage_table([row]), newline=""))

    assert read["model"] == f"'{model.strip()}"


def test_name_with_a_line_break_makes_no_row() -> None:
    total = UsageTotal(1, 0, 0, 0, 0, 0)
    row = UsageRow("2026-01-01", "p", "c", "", "nora", "local", "m\r=1\n=2\0", total)

    [_, line] = format_usage_table([row]).splitlines()

    assert line == "2026-01-01,p,c,,nora,local,m =1 =2,1,0,0,0,0.000000,0"


def test_usage_of_other_days_is_left_out() -> None:
    store_answers()
    assert usage("--since", "2020-01-01", "--until", "2020-01-31") == [HEAD]


def test_usage_without_a_database_is_empty() -> None:
    assert usage() == [HEAD]


def test_day_that_is_none_is_named() -> None:
    with pytest.raises(UserError, match="'soon' is not a date; write it as 2026-11-01"):
        usage("--since", "soon")

"""`troupe usage` prints the costs of answers as CSV."""

import csv
import io
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from bot.chat.prompt import Usage
from bot.chat.usage import AnswerCharge, UsageRow, UsageTotal, format_usage_csv
from bot.errors import UserError
from tests.cli.command import troupe, use_database
from tests.commands.test_reports import RECEIPT
from tests.support.store import store_answer

HEAD = (
    "day,person,channel,server,preset,provider,model,answers,prompt_tokens,cached_tokens,"
    "output_tokens,cost_usd,answers_without_cost"
)


def usage(*words: str) -> list[str]:
    return troupe("usage", *words).splitlines()


def store_answers() -> None:
    paid = replace(
        RECEIPT, usage=Usage(100, 40, 10), charge=AnswerCharge("telegram:1", None, "gpt", 2500)
    )
    unpriced = replace(paid, preset="=nora", charge=AnswerCharge("telegram:1", None, "tiny"))
    use_database(lambda database: store_answer(database, paid, paid, unpriced))


def test_usage_has_a_row_per_model_and_escapes_formulas() -> None:
    store_answers()
    today = datetime.now(UTC).date().isoformat()
    assert usage("--since", "2026-01-01") == [
        HEAD,
        f"{today},telegram:1,telegram:5,,'=nora,local,tiny,1,100,40,10,,1",
        f"{today},telegram:1,telegram:5,,nora,local,gpt,2,200,80,20,0.005000,0",
    ]


@pytest.mark.parametrize("model", ["=1+1", "+1", "-1", "@SUM(1)", "＝1", "\t=1", "\r\n=1"])
def test_names_cannot_inject_a_formula_or_a_row(model: str) -> None:
    total = UsageTotal(1, 0, 0, 0, 0, 0)
    rows = [
        UsageRow("2026-01-01", "p", "c", "", "nora", "local", one, total)
        for one in (model, "m\r=1\n=2\0")
    ]
    table = io.StringIO(format_usage_csv(rows), newline="")
    assert [row["model"] for row in csv.DictReader(table)] == [f"'{model.strip()}", "m =1 =2"]


def test_usage_of_other_days_or_without_a_database_is_empty() -> None:
    assert usage() == [HEAD]
    store_answers()
    assert usage("--since", "2020-01-01", "--until", "2020-01-31") == [HEAD]
    with pytest.raises(UserError, match="'soon' is not a date; write it as 2026-11-01"):
        usage("--since", "soon")

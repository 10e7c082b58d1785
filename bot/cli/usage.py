"""`troupe usage`: what answers cost, by day, as a table for spreadsheets."""

import sys
from collections.abc import Sequence
from datetime import UTC, date, datetime, time, timedelta
from typing import Annotated

import typer
import uvloop

from bot.chat.usage import UsageRow, format_usage_table
from bot.cli.typer_apps import command_app
from bot.errors import UserError
from bot.settings import Settings, read_settings
from bot.storage.database import database_exists, open_database
from bot.storage.usage import UsageTotals

app = command_app()


@app.command()
def usage(
    since: Annotated[
        str | None, typer.Option(help="The first day, such as 2026-11-01; by default this month.")
    ] = None,
    until: Annotated[str | None, typer.Option(help="The last day; by default today.")] = None,
) -> None:
    """Print what answers cost, as CSV.

    There is a row for each day, person, channel, preset and model. Days are those of UTC. Where the
    price of a model is not known its answers have no cost.
    """
    today = datetime.now(UTC).date()
    first = _parse_day(since) if since else today.replace(day=1)
    last = _parse_day(until) if until else today
    rows = uvloop.run(read_usage(read_settings(), first, last))
    sys.stdout.write(format_usage_table(rows))


async def read_usage(settings: Settings, first: date, last: date) -> Sequence[UsageRow]:
    """Return the usage from the first day to the last, both included."""
    if not database_exists(settings.sqlalchemy_url):
        return ()
    begin, end = (datetime.combine(day, time.min, UTC) for day in (first, last + timedelta(days=1)))
    async with open_database(settings.sqlalchemy_url, settings.text_encryption) as database:
        return await UsageTotals(database).by_day(begin, end)


def _parse_day(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise UserError(f"{text!r} is not a date; write it as 2026-11-01") from None

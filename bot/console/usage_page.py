"""Usage and cost by day, preset, channel, person or model; the same rows as CSV."""

from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from typing import Literal, TypeAlias

from aiohttp import web
from pydantic import BaseModel, Field

from bot.chat.access import Scope
from bot.chat.usage import MICROS, UsageRow, UsageTotal, format_cost, format_usage_table
from bot.console.app import protected
from bot.console.routes import ConsoleRequest, NavigationItem, Page, RouteGroup, route
from bot.ports import Clock
from bot.storage.usage import UsageTotals
from bot.texts.text import translatable

_DAYS = 30
_MAX_DAYS = 400
_BAR_WIDTH = 1000
_FIRST_DAY = date(2020, 1, 1)

Grouping: TypeAlias = Literal["day", "preset", "channel", "person", "model"]


class UsageQuery(BaseModel):
    """Which days, and what is added up."""

    by: Grouping = "day"
    since: date | Literal[""] = Field("", description="By default a month ago; days are UTC's.")
    until: date | Literal[""] = Field("", description="The last day; by default today.")


class UsageSum(BaseModel):
    """What answers took together."""

    name: str = Field(description="The day, preset, channel, person or model.")
    answers: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    cost: float = Field(description="In US dollars, of the answers whose cost is known.")
    answers_without_cost: int


class UsageList(BaseModel):
    since: date
    until: date
    sums: list[UsageSum]


class UsagePage(RouteGroup):
    """Adds up what answers cost."""

    navigation = (NavigationItem("/usage", translatable("Usage and cost"), "usage"),)

    def __init__(self, totals: UsageTotals, clock: Clock) -> None:
        self._totals = totals
        self._clock = clock

    def _days(self, query: UsageQuery) -> tuple[date, date]:
        today = datetime.fromtimestamp(self._clock.now(), UTC).date()
        until = max(_FIRST_DAY, min(query.until or today, today))
        since = min(query.since or until - timedelta(days=_DAYS - 1), until)
        return max(since, until - timedelta(days=_MAX_DAYS)), until

    async def _rows(self, query: UsageQuery) -> Sequence[UsageRow]:
        since, until = self._days(query)
        begin, end = (
            datetime.combine(day, time.min, UTC) for day in (since, until + timedelta(days=1))
        )
        return await self._totals.by_day(begin, end)

    @route(
        "GET /api/v1/usage",
        Scope.READ,
        "What answers took and cost.",
        query=UsageQuery,
        answer=UsageList,
    )
    async def _list(self, request: ConsoleRequest) -> UsageList:
        query = request.query(UsageQuery)
        since, until = self._days(query)
        sums = usage_sums(await self._rows(query), query.by)
        return UsageList(since=since, until=until, sums=sums)

    @route("GET /usage", Scope.READ, "The page of usage and cost.", query=UsageQuery)
    async def _page(self, request: ConsoleRequest) -> Page:
        query = request.query(UsageQuery)
        found = await self._list(request)
        most = max((one.prompt_tokens + one.output_tokens for one in found.sums), default=0)
        bars = {
            one.name: round(_BAR_WIDTH * (one.prompt_tokens + one.output_tokens) / max(1, most))
            for one in found.sums
        }
        costs = {one.name: format_cost(round(one.cost * MICROS)) for one in found.sums}
        chart = _day_chart(found, request.look.language) if query.by == "day" else None
        return Page(
            "usage.html",
            {"found": found, "by": query.by, "bars": bars, "costs": costs, "chart": chart},
        )

    @route(
        "GET /usage.csv",
        Scope.READ,
        "The usage as CSV: a row for each day, person, channel and model.",
        query=UsageQuery,
    )
    async def _table(self, request: ConsoleRequest) -> web.Response:
        text = format_usage_table(await self._rows(request.query(UsageQuery)))
        response = web.Response(text=text, content_type="text/csv")
        response.headers["Content-Disposition"] = 'attachment; filename="usage.csv"'
        return protected(response, "")


def _day_chart(found: UsageList, language: str) -> dict[str, object] | None:
    """Return what charts.js draws: the tokens of every day, also of those without any."""
    if not found.sums:
        return None
    by_day = {one.name: one for one in found.sums}
    count = (found.until - found.since).days + 1
    days = [found.since + timedelta(days=number) for number in range(count)]
    used = [by_day.get(day.isoformat()) for day in days]
    read = [one.prompt_tokens + one.output_tokens if one else 0 for one in used]
    written = [one.output_tokens if one else 0 for one in used]
    return {
        "unit": "day",
        "live": False,
        "title": translatable("Day").translate_to(language),
        "times": [int(datetime.combine(day, time.min, UTC).timestamp()) for day in days],
        "series": [
            {
                "label": translatable("Read and written").translate_to(language),
                "color": "c-1",
                "values": read,
            },
            {
                "label": translatable("Written").translate_to(language),
                "color": "c-2",
                "values": written,
            },
        ],
    }


def usage_sums(rows: Sequence[UsageRow], by: Grouping) -> list[UsageSum]:
    """Add up rows: days in their order, everything else with the most tokens first."""
    groups: dict[str, list[UsageTotal]] = {}
    for row in rows:
        groups.setdefault(_names(row)[by], []).append(row.total)
    sums = [_sum(name, totals) for name, totals in groups.items()]
    if by == "day":
        return sorted(sums, key=lambda one: one.name, reverse=True)
    return sorted(sums, key=lambda one: one.prompt_tokens + one.output_tokens, reverse=True)


def _names(row: UsageRow) -> Mapping[Grouping, str]:
    return {
        "day": row.day,
        "preset": row.preset,
        "channel": row.conversation,
        "person": row.person,
        "model": f"{row.provider}/{row.model}",
    }


def _sum(name: str, totals: Sequence[UsageTotal]) -> UsageSum:
    return UsageSum(
        name=name,
        answers=sum(one.answers for one in totals),
        prompt_tokens=sum(one.prompt_tokens for one in totals),
        cached_tokens=sum(one.cached_tokens for one in totals),
        output_tokens=sum(one.output_tokens for one in totals),
        cost=sum(one.cost for one in totals) / MICROS,
        answers_without_cost=sum(one.unpriced for one in totals),
    )
